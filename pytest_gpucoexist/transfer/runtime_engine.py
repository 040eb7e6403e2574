"""What the engines of CUDA and HIP have in common: streams and events by number, waiting with a deadline, and an end.

A wait polls. Blocking in the runtime could not be ended, and would hold no deadline; polling lets the interpreter's
lock go at each query, spins for the first 30 µs, and then sleeps an eighth of what it has waited, so that it is never
late by more than that (and 1 ms). With two copies queued the next one runs meanwhile, and the lateness costs nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.errors import EngineError
from pytest_gpucoexist.model.identity import normal_pci_address
from pytest_gpucoexist.transfer.runtime import Runtime
from pytest_gpucoexist.transfer.signatures import NOT_READY

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from pytest_gpucoexist.transfer.signatures import Table

__all__ = ["RuntimeEngine"]

TO_HOST, FROM_HOST, ON_DEVICE = range(3)  # one stream per direction

_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING, hipStreamNonBlocking: no order with what others put in the default stream
_TIMED = 0  # CU_EVENT_DEFAULT, hipEventDefault: the event keeps its time
_PORTABLE_MAPPED = 3  # CU_MEMHOSTREGISTER_PORTABLE | _DEVICEMAP, hipHostRegisterPortable | hipHostRegisterMapped
_SPIN_S = 30e-6
_LONGEST_SLEEP_S = 1e-3
_FILL_EVENT = -1
_CLOSE_S = 5.0
_FILL_S = 30.0


class RuntimeEngine(ABC):
    """A device of one runtime. Subclasses make it current, and copy in their runtime's words."""

    TABLE: Table

    def __init__(self, pci_address: str | None, *, library: str | None = None, close_s: float = _CLOSE_S) -> None:
        address = normal_pci_address(pci_address or "")
        if address is None:
            raise EngineError(f"{self.TABLE.title}: {pci_address!r} is no PCI address", kind="argument")
        self.runtime = self.TABLE.runtime
        self.pci_address = address
        self._close_s = close_s
        self._closed = False
        self._api = Runtime(self.TABLE, library)
        self._allocated: dict[int, int] = {}
        self._registered: dict[int, int] = {}
        self._events: dict[int, Any] = {}
        self._streams: list[Any] = []
        self._api.initialise()
        self._device = self._api.device(address)
        self._prepare()
        try:
            with self._current():
                for _ in range(3):
                    self._streams.append(self._made("new_stream", _NON_BLOCKING))
        except EngineError:
            with contextlib.suppress(EngineError):
                self.close()
            raise

    @abstractmethod
    def _prepare(self) -> None:
        """Make the device ready for this process; called once."""

    @abstractmethod
    def _current(self) -> AbstractContextManager[object]:
        """Make the device the thread's current one, and afterwards the one that was."""

    @abstractmethod
    def _copy(self, direction: int, target: int, source: int, size_bytes: int, stream: Any) -> tuple[str, int]:
        """Begin a copy. Returns the operation and its code."""

    @abstractmethod
    def _finish(self) -> None:
        """Let go of the device; called once, last."""

    def allocate(self, size_bytes: int) -> int:
        self._check(size_bytes)
        if size_bytes == 0:
            raise EngineError(f"{self.TABLE.title}: allocating 0 bytes", kind="argument")
        pointer = ctypes.c_uint64(0)
        with self._current():
            code = self._api.code("allocate", ctypes.byref(pointer), size_bytes)
            if code:
                raise self._api.error(f"allocating {size_bytes} bytes on {self._room()}", "allocate", code)
        self._allocated[pointer.value] = size_bytes
        return pointer.value

    def free(self, pointer: int) -> None:
        self._check()
        if pointer not in self._allocated:
            message = f"{self.TABLE.title}: freeing {pointer:#x}, which this engine has not allocated"
            raise EngineError(message, call=self._name("free"), kind="argument")
        with self._current():
            self._api.call(f"freeing {pointer:#x}", "free", pointer)
        del self._allocated[pointer]

    def register(self, address: int, size_bytes: int) -> None:
        self._check(size_bytes)
        with self._current():
            doing = f"pinning {size_bytes} bytes of host memory at {address:#x} for {self.pci_address}"
            self._api.call(doing, "register", address, size_bytes, _PORTABLE_MAPPED)
        self._registered[address] = size_bytes

    def unregister(self, address: int) -> None:
        self._check()
        with self._current():
            self._api.call(f"unpinning host memory at {address:#x}", "unregister", address)
        self._registered.pop(address, None)

    def to_host(self, address: int, pointer: int, size_bytes: int, event: int) -> None:
        self._begin(TO_HOST, address, pointer, size_bytes, event)

    def from_host(self, pointer: int, address: int, size_bytes: int, event: int) -> None:
        self._begin(FROM_HOST, pointer, address, size_bytes, event)

    def on_device(self, target: int, source: int, size_bytes: int, event: int) -> None:
        self._begin(ON_DEVICE, target, source, size_bytes, event)

    def fill(self, pointer: int, byte: int, size_bytes: int) -> None:
        self._check(size_bytes)
        if not 0 <= byte <= 255:
            raise EngineError(f"{self.TABLE.title}: {byte} is no byte", kind="argument")
        with self._current():
            if size_bytes:
                doing = f"filling {size_bytes} bytes at {pointer:#x} of {self.pci_address}"
                self._api.call(doing, "fill", pointer, byte, size_bytes, self._streams[ON_DEVICE])
            self._record(_FILL_EVENT, ON_DEVICE)
        self.wait(_FILL_EVENT, _FILL_S)

    def settle(self) -> None:
        self._check()
        with self._current():
            self._api.call(f"waiting for everything on {self.pci_address}", "synchronise")

    def wait(self, event: int, deadline_s: float) -> None:
        self._check()
        handle = self._events.get(event)
        if handle is None:
            raise EngineError(f"{self.TABLE.title}: event {event} was never recorded", kind="argument")
        with self._current():
            if not _polled(lambda: self._ready("query_event", handle), deadline_s):
                what = f"{self.TABLE.title}: what was queued on {self.pci_address} before event {event}"
                raise EngineError(
                    f"{what} did not end within {deadline_s:g} s; it cannot be taken back: end this process",
                    call=self._name("query_event"),
                    kind="deadline",
                )

    def elapsed_s(self, first: int, last: int) -> float | None:
        self._check()
        if first not in self._events or last not in self._events:
            raise EngineError(f"{self.TABLE.title}: event {first} or {last} was never recorded", kind="argument")
        milliseconds = ctypes.c_float(0.0)
        with self._current():
            doing = f"reading the time between events {first} and {last}"
            self._api.call(doing, "elapsed", ctypes.byref(milliseconds), self._events[first], self._events[last])
        return milliseconds.value / 1e3

    def memory_bytes(self) -> tuple[int, int]:
        self._check()
        free, total = ctypes.c_size_t(0), ctypes.c_size_t(0)
        with self._current():
            doing = f"reading the memory of {self.pci_address}"
            self._api.call(doing, "memory", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def close(self) -> None:
        """Wait at most `close_s` for what is queued; then everything is given back, whatever fails on the way.

        Raises EngineError: the first that failed, or "deadline" when a copy does not end. Then the memory under it
        stays as it is, because a device may still write to it; only the end of the process can take it back.
        """
        if self._closed:
            return
        self._closed = True
        with self._current():
            if not _polled(lambda: all(map(self._ended, self._streams)), self._close_s):
                message = f"{self.TABLE.title}: a copy of {self.pci_address} does not end: end this process"
                raise EngineError(message, call=self._name("query_stream"), kind="deadline")
            failed = [self._freed("unregister", address) for address in self._registered]
            failed += [self._freed("free", pointer) for pointer in self._allocated]
            failed += [self._freed("end_event", handle) for handle in self._events.values()]
            failed += [self._freed("end_stream", handle) for handle in self._streams]
        self._finish()
        for error in filter(None, failed):
            raise error

    def _begin(self, direction: int, target: int, source: int, size_bytes: int, event: int) -> None:
        self._check(size_bytes)
        with self._current():
            self._event(event)  # before the copy: one that is queued must be one that can be waited for
            if size_bytes:
                operation, code = self._copy(direction, target, source, size_bytes, self._streams[direction])
                if code:
                    doing = f"copying {size_bytes} bytes from {source:#x} to {target:#x} ({self.pci_address})"
                    raise self._api.error(doing, operation, code)
            self._record(event, direction)

    def _record(self, event: int, direction: int) -> None:
        self._api.call(f"recording event {event}", "record", self._event(event), self._streams[direction])

    def _event(self, event: int) -> Any:
        if event not in self._events:
            self._events[event] = self._made("new_event", _TIMED)
        return self._events[event]

    def _made(self, operation: str, flags: int) -> Any:
        handle = ctypes.c_void_p()
        self._api.call(f"making a stream or an event on {self.pci_address}", operation, ctypes.byref(handle), flags)
        return handle

    def _ready(self, operation: str, handle: Any) -> bool:
        code = self._api.code(operation, handle)
        if code == 0:
            return True
        if code == NOT_READY:
            return False
        raise self._api.error(f"waiting for {self.pci_address}", operation, code)

    def _ended(self, stream: Any) -> bool:
        with contextlib.suppress(EngineError):  # a stream that failed has ended; whoever waits for it is told
            return self._ready("query_stream", stream)
        return True

    def _freed(self, operation: str, handle: Any) -> EngineError | None:
        code = self._api.code(operation, handle)
        return self._api.error(f"closing {self.pci_address}", operation, code) if code else None

    def _check(self, size_bytes: int = 0) -> None:
        if self._closed:
            raise EngineError(f"{self.TABLE.title}: the engine of {self.pci_address} is closed", kind="closed")
        if size_bytes < 0:
            raise EngineError(f"{self.TABLE.title}: {size_bytes} is no size", kind="argument")

    def _room(self) -> str:
        free, total = ctypes.c_size_t(0), ctypes.c_size_t(0)
        if self._api.code("memory", ctypes.byref(free), ctypes.byref(total)):
            return str(self.pci_address)
        return f"{self.pci_address}, where {free.value} of {total.value} are free,"

    def _name(self, operation: str) -> str:
        return self.TABLE.functions[operation].name


def _polled(ended: Callable[[], bool], deadline_s: float) -> bool:
    """Ask until it has ended; false when the time is over first."""
    if ended():
        return True
    begun = time.monotonic()
    while not ended():
        waited = time.monotonic() - begun
        if waited >= deadline_s:
            return ended()
        if waited > _SPIN_S:
            time.sleep(min(max(waited / 8, 20e-6), _LONGEST_SLEEP_S, deadline_s - waited))
    return True
