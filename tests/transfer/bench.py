"""What tests do with engines: in this process, or in a child (`Remote`) whose environment is another runtime's."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import random
import threading
import time
from pathlib import Path
from typing import Any

from pytest_gpucoexist.transfer import ring
from pytest_gpucoexist.transfer.cuda_engine import CudaEngine
from pytest_gpucoexist.transfer.hip_engine import HipEngine
from pytest_gpucoexist.transfer.host_engine import HostEngine
from pytest_gpucoexist.transfer.segment import Place, Segment


class NothingEngine(HostEngine):
    """Copies nothing to and from the host, at once: what is left is what handing over costs."""

    def to_host(self, address: int, pointer: int, size_bytes: int, event: int) -> None:
        """Do nothing."""

    def from_host(self, pointer: int, address: int, size_bytes: int, event: int) -> None:
        """Do nothing."""

    def wait(self, event: int, deadline_s: float) -> None:
        """Do nothing."""


ENGINES: dict[str, Any] = {"host": HostEngine, "cuda": CudaEngine, "hip": HipEngine, "nothing": NothingEngine}
GUARD = 64


def data_of(seed: int, size: int) -> bytes:
    """What is copied: bytes that repeat nowhere."""
    return random.Random(seed).randbytes(size)


def left_behind() -> dict[str, Any]:
    """What a process has: descriptors by what they are, mappings of shared memory, threads."""
    names = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the one that lists
            names.append(os.readlink(f"/proc/self/fd/{number}"))
    maps = [line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:" in line]
    threads = sorted(each.name for each in threading.enumerate())
    ours = [name for name in names if "gpucoexist" in name or "pidfd" in name]
    return {"descriptors": len(names), "ours": ours, "mapped": maps, "threads": threads}


class Bench:
    """Engines, host memory and one segment, by numbers that can cross a pipe."""

    def __init__(self) -> None:
        self.engines: list[Any] = []
        self.segment: Segment | None = None
        self._memory: list[tuple[int, mmap.mmap]] = []

    def open(self, runtime: str, pci_address: str | None, **options: Any) -> int:
        self.engines.append(ENGINES[runtime](pci_address, **options))
        return len(self.engines) - 1

    def engine(self, number: int, method: str, *arguments: Any) -> Any:
        return getattr(self.engines[number], method)(*arguments)

    def memory(self, size_bytes: int) -> int:
        memory = mmap.mmap(-1, size_bytes)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self._memory.append((address, memory))
        return address

    def put(self, address: int, data: bytes) -> None:
        ctypes.memmove(address, data, len(data))

    def get(self, address: int, size_bytes: int) -> bytes:
        return ctypes.string_at(address, size_bytes)

    def attach(self, place: Place | int, number: int | None = None) -> int:
        """Map a segment and pin it for an engine; returns its address."""
        self.segment = Segment.open(place) if isinstance(place, int) else Segment.open_at(place)
        if number is not None:
            self.engines[number].register(self.segment.address, self.segment.size_bytes)
        return self.segment.address

    def use_events(self, sender: int, receiver: int) -> None:
        """Hand over by these eventfds."""
        assert self.segment is not None
        self.segment.control.use_events({"sender": sender, "receiver": receiver})

    def prepare(self, number: int, size: int, seed: int | None) -> int:
        """Allocate and fill device memory: with what is sent, or with what must not be left of it."""
        engine = self.engines[number]
        pointer: int = engine.allocate(size + GUARD)
        engine.fill(pointer, 0xAA, size + GUARD)
        if seed is not None:
            self.write(number, pointer, data_of(seed, size))
        return pointer

    def limit(self, number: int, bytes_per_s: float) -> None:
        """Give a host engine the rate of another link."""
        for lane in self.engines[number]._lanes.values():
            lane._bytes_per_s = bytes_per_s

    def send(self, number: int, pointer: int, size: int, pace: ring.Pace) -> ring.Passed:
        assert self.segment is not None
        return ring.send(self.engines[number], self.segment, pointer, size, pace)

    def receive(self, number: int, pointer: int, size: int, pace: ring.Pace) -> ring.Passed:
        assert self.segment is not None
        return ring.receive(self.engines[number], self.segment, pointer, size, pace)

    def alone(self, number: int, role: str, pointer: int, size: int, depth: int) -> float:
        """Copy all chunks through the slots as a ring would, with nobody to wait for; returns the seconds."""
        engine, segment = self.engines[number], self.segment
        assert segment is not None
        slots, chunk = segment.layout.slots, segment.layout.slot_bytes
        chunks = -(-size // chunk)
        queued = 0
        begun = time.perf_counter()
        for done in range(chunks):
            while queued < min(chunks, done + min(depth, slots)):
                address, at = segment.slot_address(queued % slots), pointer + queued * chunk
                many = min(chunk, size - queued * chunk)
                if role == "sender":
                    engine.to_host(address, at, many, queued % slots)
                else:
                    engine.from_host(at, address, many, queued % slots)
                queued += 1
            engine.wait(done % slots, 60.0)
        return time.perf_counter() - begun

    def arrived(self, number: int, pointer: int, size: int, seed: int) -> bool:
        """Whether all bytes are those that were sent, and those after them what they were."""
        return self.read(number, pointer, size + GUARD) == data_of(seed, size) + b"\xaa" * GUARD

    def write(self, number: int, pointer: int, data: bytes) -> None:
        engine, address = self.engines[number], self.memory(max(1, len(data)))
        self.put(address, data)
        engine.from_host(pointer, address, len(data), 1)
        engine.wait(1, 60.0)

    def read(self, number: int, pointer: int, size: int) -> bytes:
        engine, address = self.engines[number], self.memory(size)
        engine.to_host(address, pointer, size, 1)
        engine.wait(1, 60.0)
        return self.get(address, size)

    def current_context(self, number: int) -> int:
        """The thread's CUDA context, 0 for none."""
        context = ctypes.c_void_p()
        library = self.engines[number]._api._handle
        assert library.cuCtxGetCurrent(ctypes.byref(context)) == 0
        return context.value or 0

    def current_device(self, number: int) -> int:
        """The thread's HIP device."""
        device = ctypes.c_int(-1)
        assert self.engines[number]._api.code("current", ctypes.byref(device)) == 0
        return device.value

    def last_error(self, number: int) -> int:
        """The thread's last error of HIP."""
        code: int = self.engines[number]._api.code("forget")
        return code

    def left(self) -> dict[str, Any]:
        return left_behind()

    def pid(self) -> int:
        return os.getpid()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def close(self) -> None:
        """End everything that was made here."""
        for engine in self.engines:
            engine.close()
        if self.segment is not None:
            self.segment.close()
        for _, memory in self._memory:
            memory.close()
        self._memory.clear()
