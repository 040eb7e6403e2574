"""What every engine does, whatever its runtime. `Devices` says where one is to be had."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import pytest

from pytest_gpucoexist.errors import EngineError
from tests.transfer.bench import data_of

SIZES = [1, 3, 4095, 4097, (1 << 20) + 13]
LONG_S = 60.0


class Asked(Protocol):
    """A bench in this process or in a child."""

    def ask(self, name: str, *arguments: Any, **options: Any) -> Any:
        """Call a method of the bench."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """A bench, with two devices that are peers: `first` and `second`. `slow` makes copies of `first` take for ever."""

    bench: Asked
    runtime: str
    first: str
    second: str
    absent: str
    prefix: str
    slow: Callable[[], Any]
    options: dict[str, Any] = field(default_factory=dict)

    def open(self, pci_address: str | None = None) -> Opened:
        return Opened(self.bench, self.bench.ask("open", self.runtime, pci_address or self.first, **self.options))


class Opened:
    """An engine of the bench: its methods."""

    def __init__(self, bench: Asked, number: int) -> None:
        self.bench = bench
        self.number = number

    def __getattr__(self, method: str) -> Callable[..., Any]:
        return lambda *arguments: self.bench.ask("engine", self.number, method, *arguments)

    def filled(self, size: int, seed: int) -> int:
        """Allocate device memory with known content."""
        pointer: int = self.allocate(size)
        self.bench.ask("write", self.number, pointer, data_of(seed, size))
        return pointer

    def content(self, pointer: int, size: int) -> bytes:
        found: bytes = self.bench.ask("read", self.number, pointer, size)
        return found


class EngineContract:
    """Tests for a fixture `devices`."""

    @pytest.mark.parametrize("size", SIZES)
    def test_what_goes_to_the_device_comes_back(self, devices: Devices, size: int) -> None:
        engine, data = devices.open(), data_of(1, size)
        pointer = engine.allocate(size + 128)
        engine.fill(pointer, 0x5A, size + 128)
        devices.bench.ask("write", engine.number, pointer + 64, data)
        edge = b"\x5a" * 64
        assert engine.content(pointer, size + 128) == edge + data + edge

    @pytest.mark.parametrize("size", SIZES)
    def test_copies_on_the_device(self, devices: Devices, size: int) -> None:
        engine = devices.open()
        source, target = engine.filled(size, 2), engine.allocate(size)
        engine.on_device(target, source, size, 7)
        engine.wait(7, LONG_S)
        assert engine.content(target, size) == data_of(2, size)

    def test_copies_of_one_direction_are_done_in_order(self, devices: Devices) -> None:
        engine, size = devices.open(), 1 << 16
        pointer, address = engine.allocate(size), devices.bench.ask("memory", 20 * size)
        for number in range(20):
            devices.bench.ask("put", address + number * size, bytes([number]) * size)
        for number in range(20):
            engine.from_host(pointer, address + number * size, size, number)
        engine.wait(19, LONG_S)
        assert engine.content(pointer, size) == bytes([19]) * size
        for number in range(20):
            engine.wait(number, 0.0)  # they ended before, so not even a moment is needed

    def test_a_size_of_nothing_only_records(self, devices: Devices) -> None:
        engine = devices.open()
        pointer = engine.filled(16, 3)
        for event, copy in enumerate((engine.to_host, engine.from_host, engine.on_device)):
            copy(pointer, pointer, 0, event)
            engine.wait(event, LONG_S)
        assert engine.elapsed_s(0, 1) is None or engine.elapsed_s(0, 1) >= 0.0
        assert engine.content(pointer, 16) == data_of(3, 16)

    def test_an_event_that_is_recorded_again_stands_for_the_later_copy(self, devices: Devices) -> None:
        engine, size = devices.open(), 1 << 20
        pointer, address = engine.filled(size, 4), devices.bench.ask("memory", 2 * size)
        for number in range(2):
            engine.to_host(address + number * size, pointer, size, 9)
        engine.wait(9, LONG_S)
        assert devices.bench.ask("get", address + size, size) == data_of(4, size)

    def test_pinned_memory_is_pinned_once(self, devices: Devices) -> None:
        engine = devices.open()
        address = devices.bench.ask("memory", 1 << 20)
        engine.register(address, 1 << 20)
        with pytest.raises(EngineError, match=r"unregister it there|are pinned") as caught:
            engine.register(address, 1 << 20)
        self._is(caught.value, devices, "registered", 712)
        engine.unregister(address)
        with pytest.raises(EngineError) as caught:
            engine.unregister(address)
        self._is(caught.value, devices, "not-registered", 713)
        engine.register(address, 1 << 20)
        engine.close()
        other = devices.open()
        other.register(address, 1 << 20)
        pointer = other.filled(4097, 5)
        other.to_host(address, pointer, 4097, 0)
        other.wait(0, LONG_S)
        assert devices.bench.ask("get", address, 4097) == data_of(5, 4097)
        other.unregister(address)

    def test_memory_that_is_not_there_cannot_be_pinned(self, devices: Devices) -> None:
        with pytest.raises(EngineError) as caught:
            devices.open().register(0, 4096)
        assert caught.value.kind == "argument"

    def test_a_pointer_that_means_nothing_is_an_error(self, devices: Devices) -> None:
        engine = devices.open()
        address = devices.bench.ask("memory", 4096)
        pointer = engine.allocate(4096)
        copys: list[Callable[[], Any]] = [
            lambda: engine.to_host(address, 0x10, 16, 0),
            lambda: engine.from_host(0x10, address, 16, 0),
            lambda: engine.on_device(0x10, pointer, 16, 0),
            lambda: engine.fill(0x10, 0, 16),
            lambda: engine.to_host(address, pointer, 1 << 40, 0),
        ]
        for copy in copys:
            with pytest.raises(EngineError) as caught:
                copy()
            self._is(caught.value, devices, "argument", 1)
        with pytest.raises(EngineError, match="has not allocated") as caught:
            engine.free(pointer + 8)
        assert caught.value.kind == "argument"
        engine.fill(pointer, 1, 4096)  # after all that, it works as before
        assert engine.content(pointer, 4096) == b"\x01" * 4096

    def test_arguments_that_mean_nothing(self, devices: Devices) -> None:
        engine = devices.open()
        pointer = engine.allocate(16)
        calls: list[Callable[[], Any]] = [
            lambda: engine.allocate(0),
            lambda: engine.allocate(-1),
            lambda: engine.fill(pointer, 256, 16),
            lambda: engine.wait(4, 1.0),
            lambda: engine.elapsed_s(4, 5),
            lambda: devices.bench.ask("open", devices.runtime, "0000:zz:00.0", **devices.options),
        ]
        for call in calls:
            with pytest.raises(EngineError) as caught:
                call()
            assert caught.value.kind == "argument"

    def test_more_memory_than_the_device_has(self, devices: Devices) -> None:
        engine = devices.open()
        free, total = engine.memory_bytes()
        assert 0 < free <= total
        with pytest.raises(EngineError, match=rf"allocating {total + 1} bytes.* {free} of {total} are free") as caught:
            engine.allocate(total + 1)
        self._is(caught.value, devices, "memory", 2)
        pointer = engine.allocate(1 << 20)
        assert engine.memory_bytes()[0] <= free - (1 << 20)
        engine.free(pointer)
        assert engine.memory_bytes() == (free, total)

    def test_a_copy_that_does_not_end_is_an_error_at_the_deadline(self, devices: Devices) -> None:
        engine = devices.open()
        pointer, address = engine.allocate(1 << 20), devices.bench.ask("memory", 1 << 20)
        engine.register(address, 1 << 20)  # or a driver copies before it returns
        devices.slow()
        engine.to_host(address, pointer, 1 << 20, 3)
        with pytest.raises(EngineError, match=r"before event 3 did not end within 0\.05 s") as caught:
            engine.wait(3, 0.05)
        assert caught.value.kind == "deadline"

    def test_the_time_between_events(self, devices: Devices) -> None:
        engine, size = devices.open(), 1 << 20
        pointer, address = engine.allocate(size), devices.bench.ask("memory", size)
        for event in range(4):
            engine.to_host(address, pointer, size if event else 0, event)
        engine.wait(3, LONG_S)
        parts = [engine.elapsed_s(event, event + 1) for event in range(3)]
        assert all(part > 0 for part in parts)
        assert engine.elapsed_s(0, 3) == pytest.approx(sum(parts), rel=1e-3, abs=1e-5)

    def test_a_peer_is_reached(self, devices: Devices) -> None:
        first, second, size = devices.open(), devices.open(devices.second), 4097
        source, target = first.filled(size, 6), second.allocate(size)
        with pytest.raises(EngineError) as caught:
            first.to_peer(devices.second, target, source, size, 0)
        assert caught.value.kind == "peer"
        assert first.peer(devices.second) is True
        assert first.peer(devices.second) is True
        first.to_peer(devices.second, target, source, size, 0)
        first.wait(0, LONG_S)
        assert second.content(target, size) == data_of(6, size)

    def test_a_device_is_found_by_its_address_or_not_at_all(self, devices: Devices) -> None:
        first, second = devices.open(), devices.open(devices.second)
        assert devices.first != devices.second
        del first, second
        engine = devices.open()
        with pytest.raises(EngineError, match=f"{devices.absent}") as caught:
            engine.peer(devices.absent)
        assert caught.value.kind == "no-device"

    def test_closed_is_closed(self, devices: Devices) -> None:
        engine = devices.open()
        pointer = engine.allocate(64)
        engine.to_host(devices.bench.ask("memory", 64), pointer, 64, 0)
        engine.close()
        engine.close()
        calls: list[Callable[[], Any]] = [engine.memory_bytes, lambda: engine.allocate(1), lambda: engine.wait(0, 1.0)]
        for call in calls:
            with pytest.raises(EngineError, match="is closed") as caught:
                call()
            assert caught.value.kind == "closed"

    def test_all_memory_comes_back_when_an_engine_is_closed(self, devices: Devices) -> None:
        keeps, watches = devices.open(), devices.open()
        free = watches.memory_bytes()
        for _ in range(3):
            keeps.allocate(1 << 20)
        keeps.close()
        assert watches.memory_bytes() == free

    def _is(self, error: EngineError, devices: Devices, kind: str, code: int) -> None:
        assert (error.kind, error.code) == (kind, code)
        assert error.name.startswith(devices.prefix)
        assert error.call
        assert error.name in str(error)
