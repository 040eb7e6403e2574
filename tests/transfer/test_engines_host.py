"""Host memory that stands for devices: the contract, and what only it has."""

from __future__ import annotations

import pickle
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucoexist.errors import EngineError
from pytest_gpucoexist.transfer.engine import open_engine
from pytest_gpucoexist.transfer.host_engine import HostEngine
from tests.transfer.bench import Bench, left_behind
from tests.transfer.engine_contract import Devices, EngineContract

if TYPE_CHECKING:
    from collections.abc import Iterator

FIRST, SECOND, ABSENT = "0000:01:00.0", "0000:02:00.0", "0000:77:00.0"


class _Here:
    """A bench of this process."""

    def __init__(self) -> None:
        self.bench = Bench()

    def ask(self, name: str, *arguments: Any, **options: Any) -> Any:
        return getattr(self.bench, name)(*arguments, **options)


@pytest.fixture
def devices() -> Iterator[Devices]:
    """Two simulated devices, which leave neither memory nor threads."""
    before = left_behind()
    here = _Here()

    def slow() -> None:
        for engine in here.bench.engines:
            for lane in engine._lanes.values():
                lane._bytes_per_s = 1.0

    yield Devices(
        bench=here, runtime="host", first=FIRST, second=SECOND, absent=ABSENT, prefix="HOST_ERROR_", slow=slow
    )
    here.bench.close()
    assert left_behind() == before
    assert HostEngine._pinned == {}
    assert not {FIRST, SECOND} & set(HostEngine._open)


class TestHostEngine(EngineContract):
    """The contract."""

    def test_a_device_that_cannot_reach_another(self, devices: Devices) -> None:
        first = HostEngine(FIRST, reaches=frozenset())
        second = HostEngine(SECOND)
        try:
            assert first.peer(SECOND) is False
            with pytest.raises(EngineError, match="no peer") as caught:
                first.to_peer(SECOND, second.allocate(1), first.allocate(1), 1, 0)
            assert caught.value.kind == "peer"
        finally:
            first.close()
            second.close()

    def test_copies_do_not_hold_the_caller(self, devices: Devices) -> None:
        """Queued at a rate that would take 8 s; the caller has them queued, and then does not wait for them."""
        engine = HostEngine(FIRST, bytes_per_s=1e6)
        pointer, target = engine.allocate(1 << 20), engine.allocate(1 << 20)
        begun = time.monotonic()
        for event in range(8):
            engine.on_device(target, pointer, 1 << 20, event)
        with pytest.raises(EngineError) as caught:
            engine.elapsed_s(0, 7)
        assert caught.value.kind == "not-ready"
        engine.close()
        assert time.monotonic() - begun < 8 * (1 << 20) / 1e6

    def test_the_rate_is_that_of_the_link_however_late_the_thread_is(self, devices: Devices) -> None:
        """Never faster than the rate; both directions at once do not share it."""
        engine = HostEngine(FIRST, bytes_per_s=64e6)
        address = devices.bench.ask("memory", 1 << 20)
        pointer = engine.allocate(1 << 20)
        for event in range(8):
            engine.to_host(address, pointer, 1 << 19, event)
            engine.from_host(pointer + (1 << 19), address + (1 << 19), 1 << 19, 100 + event)
        for event in (7, 107):
            engine.wait(event, 60.0)
        each_s = (1 << 19) / 64e6
        for first in (0, 100):
            took = engine.elapsed_s(first, first + 7)
            assert took is not None
            assert took >= 7 * each_s * 0.999
        engine.close()

    def test_memory_is_given_back_after_the_copies_from_it(self, devices: Devices) -> None:
        engine = HostEngine(FIRST, bytes_per_s=32e6)
        pointer, address = engine.allocate(1 << 20), devices.bench.ask("memory", 1 << 20)
        engine.fill(pointer, 0x11, 1 << 20)
        engine.to_host(address, pointer, 1 << 20, 0)
        engine.free(pointer)
        engine.wait(0, 0.0)
        assert devices.bench.ask("get", address, 1 << 20) == b"\x11" * (1 << 20)
        engine.close()

    def test_both_directions_have_threads_of_their_own_and_lose_them(self, devices: Devices) -> None:
        engine = HostEngine(FIRST)
        before = threading.active_count()
        pointer = engine.allocate(64)
        engine.to_host(devices.bench.ask("memory", 64), pointer, 64, 0)
        engine.on_device(pointer, pointer, 64, 1)
        assert threading.active_count() == before + 2
        engine.close()
        assert threading.active_count() == before


def test_opened_by_name() -> None:
    engine = open_engine("host", "00000000:01:00.0")
    assert (engine.runtime, engine.pci_address) == ("host", FIRST)
    engine.close()
    with pytest.raises(EngineError, match="no runtime 'opencl': there are cuda, hip and host") as caught:
        open_engine("opencl", FIRST)
    assert caught.value.kind == "argument"


def test_the_error_can_be_pickled() -> None:
    error = EngineError("text", call="cuMemAlloc_v2", code=2, name="CUDA_ERROR_OUT_OF_MEMORY", kind="memory")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), vars(again)) == (str(error), vars(error))
