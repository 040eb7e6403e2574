"""Simulated devices: as much memory as the GPU has, and clear words when it is misused."""

from __future__ import annotations

import pickle
import sys

import pytest

from pytest_gpucoexist.model.machine import Gpu
from pytest_gpucoexist.testing.simulated import SimulatedDevice, SimulatedMemoryError, SimulatedUseError

GIB = 2**30


def a_gpu(memory_bytes: int | None = GIB) -> Gpu:
    return Gpu(
        id="nvidia0", vendor="nvidia", kind="discrete", pci_address="0000:41:00.0", memory_total_bytes=memory_bytes
    )


def test_what_was_written_is_read() -> None:
    with SimulatedDevice(a_gpu()) as device:
        buffer = device.allocate(1000)
        assert buffer.read() == bytes(1000)
        buffer.write(b"abc", 10)
        buffer.write(memoryview(b"xy"), 998)
        assert buffer.read(3, 10) == b"abc"
        assert buffer.read(offset=997) == b"\0xy"
        assert device.allocate(0).read() == b""


def test_copies_between_devices_of_two_vendors() -> None:
    nvidia = SimulatedDevice(a_gpu())
    amd = SimulatedDevice(Gpu(id="amd0", vendor="amd", kind="discrete", memory_total_bytes=GIB))
    source, target = nvidia.allocate(8), amd.allocate(16)
    source.write(b"8 bytes!")
    source.copy_to(target)
    assert target.read(8) == b"8 bytes!"
    source.copy_to(target, 1)
    with pytest.raises(SimulatedUseError, match=r"amd0 \(simulated\): write of 16 bytes at 0 in a buffer of 8 bytes"):
        target.copy_to(amd.allocate(8))


def test_memory_is_bounded_by_the_gpus_and_comes_back() -> None:
    device = SimulatedDevice(a_gpu())
    half = device.allocate(GIB // 2)
    with pytest.raises(
        SimulatedMemoryError, match=r"nvidia0 \(simulated\): out of memory: 536870913 bytes asked, 536870912 of"
    ):
        device.allocate(GIB // 2 + 1)
    with pytest.raises(MemoryError):
        device.allocate(GIB)
    half.free()
    half.free()
    assert device.free_bytes == GIB
    device.allocate(GIB)
    assert device.free_bytes == 0


def test_allocations_are_rounded_up() -> None:
    device = SimulatedDevice(a_gpu())
    device.allocate(1)
    assert device.used_bytes == 256


def test_a_device_may_have_more_memory_than_this_machine() -> None:
    device = SimulatedDevice(a_gpu(1 << 44))
    buffer = device.allocate(1 << 43)
    buffer.write(b"end", (1 << 43) - 3)
    assert buffer.read(3, (1 << 43) - 3) == b"end"
    device.close()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux")
def test_what_this_machine_cannot_map_is_said() -> None:
    with pytest.raises(SimulatedMemoryError, match="this machine cannot map"):
        SimulatedDevice(a_gpu(1 << 62)).allocate(1 << 60)


def test_use_after_free_and_after_close_are_errors() -> None:
    device = SimulatedDevice(a_gpu())
    freed, closed = device.allocate(8), device.allocate(8)
    freed.free()
    with pytest.raises(SimulatedUseError, match="read of 8 bytes at 0 in a buffer that was freed"):
        freed.read()
    device.close()
    device.close()
    with pytest.raises(SimulatedUseError, match="that was freed"):
        closed.write(b"x")
    with pytest.raises(SimulatedUseError, match="a device that was closed"):
        device.allocate(1)
    assert device.used_bytes == 0


@pytest.mark.parametrize(("offset", "count"), [(8, 1), (-1, 1), (0, 9), (0, -1)])
def test_beyond_the_end_is_an_error(offset: int, count: int) -> None:
    buffer = SimulatedDevice(a_gpu()).allocate(8)
    with pytest.raises(SimulatedUseError, match="in a buffer of 8 bytes"):
        buffer.read(count, offset)


def test_a_negative_size_is_an_error() -> None:
    with pytest.raises(SimulatedUseError, match="cannot allocate -1 bytes"):
        SimulatedDevice(a_gpu()).allocate(-1)


def test_a_gpu_of_unknown_size_has_eight_gib() -> None:
    device = SimulatedDevice(a_gpu(None))
    assert device.total_bytes == 8 * GIB
    assert "0000:41:00.0" in repr(device)
    assert "Simulated" in repr(device)


def test_its_errors_cross_processes() -> None:
    error = pickle.loads(pickle.dumps(SimulatedMemoryError("text")))
    assert isinstance(error, MemoryError)
    assert str(error) == "text"
