"""Host memory that stands for a device: the engine of simulated machines, without any driver.

It behaves as CUDA and HIP do: copies are asynchronous and in order per direction, a pointer that it has not allocated
is an error and no crash, memory is pinned once per process, and codes are those of the vendors (`signatures.KINDS`)
with names of its own. A rate stands for the link. What it cannot show is a device memory that the host may not read.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import threading
import weakref
from typing import TYPE_CHECKING, ClassVar

from pytest_gpucoexist.errors import EngineError
from pytest_gpucoexist.model.identity import normal_pci_address
from pytest_gpucoexist.transfer.lane import Lane, Mark
from pytest_gpucoexist.transfer.signatures import KINDS

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["HostEngine"]

_NAMES = {
    1: "HOST_ERROR_INVALID_VALUE",
    2: "HOST_ERROR_OUT_OF_MEMORY",
    101: "HOST_ERROR_INVALID_DEVICE",
    600: "HOST_ERROR_NOT_READY",
    705: "HOST_ERROR_PEER_ACCESS_NOT_ENABLED",
    712: "HOST_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
    713: "HOST_ERROR_HOST_MEMORY_NOT_REGISTERED",
}
_SETTLE_S = 30.0


class HostEngine:
    """One simulated device of `memory_bytes`, each direction at `bytes_per_s`, or as fast as it goes.

    It reaches every other one of this process, or those whose addresses are `reaches`.
    """

    _pinned: ClassVar[dict[int, int]] = {}  # of the process, as in a driver
    _lock: ClassVar[threading.Lock] = threading.Lock()
    _open: ClassVar[weakref.WeakValueDictionary[str, HostEngine]] = weakref.WeakValueDictionary()

    runtime = "host"

    def __init__(
        self,
        pci_address: str | None = None,
        *,
        memory_bytes: int = 1 << 30,
        bytes_per_s: float | None = None,
        reaches: frozenset[str] | None = None,
    ) -> None:
        address = None if pci_address is None else normal_pci_address(pci_address)
        if pci_address is not None and address is None:
            raise EngineError(f"host: {pci_address!r} is no PCI address", kind="argument")
        self.pci_address = address
        self._total_bytes = memory_bytes
        self._memory: dict[int, mmap.mmap] = {}
        self._adopted: dict[int, int] = {}
        self._registered: set[int] = set()
        self._marks: dict[int, Mark] = {}
        self._reaches = reaches
        self._peers: set[str] = set()
        self._closed = False
        self._lanes = {
            name: Lane(f"{address or 'host'} {name}", bytes_per_s) for name in ("to host", "from host", "on device")
        }
        if address is not None:
            self._open[address] = self

    def allocate(self, size_bytes: int) -> int:
        self._check(size_bytes)
        if size_bytes == 0:
            raise _error("allocate", 1, "allocating 0 bytes")
        free, total = self.memory_bytes()
        if size_bytes > free:
            raise _error("allocate", 2, f"allocating {size_bytes} bytes, where {free} of {total} are free")
        memory = mmap.mmap(-1, size_bytes)
        pointer = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self._memory[pointer] = memory
        return pointer

    def adopt(self, pointer: int, size_bytes: int) -> None:
        """Take memory of somebody else's, who keeps it, for memory of this device."""
        self._check(size_bytes)
        self._adopted[pointer] = size_bytes

    def free(self, pointer: int) -> None:
        self._check()
        if pointer not in self._memory:
            raise _error("free", 1, f"freeing {pointer:#x}, which this engine has not allocated")
        if not all(lane.settle(_SETTLE_S) for lane in self._lanes.values()):
            raise _late("free", f"a copy before {pointer:#x} is freed", _SETTLE_S)
        self._memory.pop(pointer).close()

    def register(self, address: int, size_bytes: int) -> None:
        self._check(size_bytes)
        doing = f"pinning {size_bytes} bytes at {address:#x}"
        if size_bytes == 0 or not _mapped(address, size_bytes):
            raise _error("register", 1, f"{doing}, which are not all mapped")
        with self._lock:
            for start, size in self._pinned.items():
                if address < start + size and start < address + size_bytes:
                    raise _error("register", 712, f"{doing}: {size} bytes at {start:#x} are pinned")
            self._pinned[address] = size_bytes
        self._registered.add(address)

    def unregister(self, address: int) -> None:
        self._check()
        with self._lock:
            if self._pinned.pop(address, None) is None:
                raise _error("unregister", 713, f"unpinning {address:#x}")
        self._registered.discard(address)

    def to_host(self, address: int, pointer: int, size_bytes: int, event: int) -> None:
        self._inside("to_host", pointer, size_bytes)
        self._queue("to host", lambda: ctypes.memmove(address, pointer, size_bytes), size_bytes, event)

    def from_host(self, pointer: int, address: int, size_bytes: int, event: int) -> None:
        self._inside("from_host", pointer, size_bytes)
        self._queue("from host", lambda: ctypes.memmove(pointer, address, size_bytes), size_bytes, event)

    def on_device(self, target: int, source: int, size_bytes: int, event: int) -> None:
        self._inside("on_device", target, size_bytes)
        self._inside("on_device", source, size_bytes)
        self._queue("on device", lambda: ctypes.memmove(target, source, size_bytes), size_bytes, event)

    def fill(self, pointer: int, byte: int, size_bytes: int) -> None:
        self._inside("fill", pointer, size_bytes)
        if not 0 <= byte <= 255:
            raise _error("fill", 1, f"filling with {byte}, which is no byte")
        mark = Mark()
        self._lanes["on device"].put(lambda: ctypes.memset(pointer, byte, size_bytes), size_bytes, mark)
        if not mark.wait(_SETTLE_S):
            raise _late("fill", f"filling {size_bytes} bytes", _SETTLE_S)

    def wait(self, event: int, deadline_s: float) -> None:
        if not self._mark("wait", event).wait(deadline_s):
            raise _late("wait", f"what was queued before event {event}", deadline_s)

    def settle(self) -> None:
        self._check()
        if not all(lane.settle(_SETTLE_S) for lane in self._lanes.values()):
            raise _late("settle", "what was queued", _SETTLE_S)

    def elapsed_s(self, first: int, last: int) -> float | None:
        ended = [self._mark("elapsed_s", event).ended_s for event in (first, last)]
        if ended[0] is None or ended[1] is None:
            raise _error("elapsed_s", 600, f"reading the time between events {first} and {last}")
        return ended[1] - ended[0]

    def memory_bytes(self) -> tuple[int, int]:
        self._check()
        return self._total_bytes - sum(len(each) for each in self._memory.values()), self._total_bytes

    def peer(self, other_pci: str) -> bool:
        """Look for another simulated device that this process has open. Raises EngineError "no-device"."""
        self._check()
        if other_pci not in self._open or other_pci == self.pci_address:
            seen = ", ".join(sorted(set(self._open) - {self.pci_address or ""})) or "none"
            raise _error("peer", 101, f"looking for {other_pci} beside {self.pci_address}: open are {seen}")
        if self._reaches is not None and other_pci not in self._reaches:
            return False
        self._peers.add(other_pci)
        return True

    def to_peer(self, other_pci: str, target: int, source: int, size_bytes: int, event: int) -> None:
        self._inside("to_peer", source, size_bytes)
        other = self._open.get(other_pci)
        if other_pci not in self._peers or other is None:
            raise _error("to_peer", 705, f"copying to {other_pci}, which is no peer of {self.pci_address}")
        other._inside("to_peer", target, size_bytes)  # noqa: SLF001 - the other device's own check
        self._queue("on device", lambda: ctypes.memmove(target, source, size_bytes), size_bytes, event)

    def close(self) -> None:
        """End what is queued, whether done or not, then free and unregister everything."""
        if self._closed:
            return
        self._closed = True
        if self.pci_address is not None and self._open.get(self.pci_address) is self:
            del self._open[self.pci_address]
        for lane in self._lanes.values():
            lane.stop()
        with self._lock:
            for address in self._registered:
                self._pinned.pop(address, None)
        for memory in self._memory.values():
            memory.close()
        self._memory.clear()

    def _queue(self, lane: str, work: Callable[[], object], size_bytes: int, event: int) -> None:
        mark = self._marks[event] = Mark()
        self._lanes[lane].put(work if size_bytes else None, size_bytes, mark)

    def _mark(self, call: str, event: int) -> Mark:
        self._check()
        if event not in self._marks:
            raise _error(call, 1, f"event {event}, which was never recorded")
        return self._marks[event]

    def _inside(self, call: str, pointer: int, size_bytes: int) -> None:
        self._check(size_bytes)
        own = [(start, len(memory)) for start, memory in self._memory.items()]
        if size_bytes and not any(
            start <= pointer and pointer + size_bytes <= start + size for start, size in (*own, *self._adopted.items())
        ):
            raise _error(call, 1, f"{size_bytes} bytes at {pointer:#x} do not lie in one allocation of this engine")

    def _check(self, size_bytes: int = 0) -> None:
        if self._closed:
            raise EngineError(f"host: the engine of {self.pci_address} is closed", kind="closed")
        if size_bytes < 0:
            raise EngineError(f"host: {size_bytes} is no size", kind="argument")


def _mapped(address: int, size_bytes: int) -> bool:
    """Ask the kernel whether every page of a range is mapped (mincore(2): ENOMEM when not)."""
    if address <= 0:
        return False
    page = mmap.PAGESIZE
    start = address // page * page
    pages = -(-(address + size_bytes - start) // page)
    # By steps: the vector has a byte for each page, and a size that is nonsense must not be allocated.
    libc = ctypes.CDLL(None, use_errno=True)
    vector = ctypes.create_string_buffer(1 << 16)
    for first in itertools.islice(range(0, pages, len(vector)), 1 << 16):
        count = min(len(vector), pages - first)
        if libc.mincore(ctypes.c_void_p(start + first * page), ctypes.c_size_t(count * page), vector) != 0:
            return False
    return True


def _error(call: str, code: int, doing: str) -> EngineError:
    message = f"host: {doing}: {call} answered {_NAMES[code]} ({code})"
    return EngineError(message, call=call, code=code, name=_NAMES[code], kind=KINDS[code])


def _late(call: str, what: str, deadline_s: float) -> EngineError:
    return EngineError(f"host: {what} did not end within {deadline_s:g} s", call=call, kind="deadline")
