"""One device in one vendor process, as pytest's process sees it: its memory, its arrays, and what it is asked to do.

The process is sent the modules of `transfer` that it needs; what a device's runtime says comes back as the error that
it was there.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist import errors
from pytest_gpucoexist.errors import EngineError, TransferError, VendorProcessError
from pytest_gpucoexist.processes.bundle import LOAD, shipment
from pytest_gpucoexist.processes.isolation import mapped_files
from pytest_gpucoexist.processes.references import Reference, project_folders, reference_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from pytest_gpucoexist.model.machine import Gpu
    from pytest_gpucoexist.processes.opening import OpenedProcess

__all__ = ["SHIPPED", "DeviceBuffer", "Endpoint", "open_endpoint", "visible_devices"]

PACKAGE = "_gpucoexist_shipped"
SHIPPED = (
    *("errors", "model", "model.identity", "staging", "staging.arrays", "staging.child"),
    *("transfer", "transfer.control", "transfer.cuda_engine", "transfer.engine", "transfer.futex"),
    *("transfer.hip_engine", "transfer.host_engine", "transfer.lane", "transfer.nodes", "transfer.ring"),
    *("transfer.runtime", "transfer.runtime_engine", "transfer.segment", "transfer.signatures", "transfer.syscalls"),
)
"""What a vendor process is sent; a test holds it to what these modules import."""

_RUNTIMES = {"nvidia": "cuda", "amd": "hip"}
_BUFFER = "gpucoexist buffer"  # `child.BUFFER`, which is not imported here

_loaded: weakref.WeakSet[Any] = weakref.WeakSet()
_hung: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
_numbers = itertools.count(1)


@dataclass(eq=False, slots=True)
class DeviceBuffer:
    """Memory of a device: allocated, or borrowed from an array that a function made (`kind`). `close` gives it back."""

    endpoint: Endpoint
    pointer: int
    size_bytes: int
    number: int = 0
    kind: str = ""
    is_closed: bool = field(default=False, init=False)

    def close(self) -> None:
        """Give it back; what has become of the device then is no error any more."""
        if self.is_closed:
            return
        self.is_closed = True
        with contextlib.suppress(VendorProcessError, EngineError):
            if self.kind:
                self.endpoint.tell("release", self.number)
            else:
                self.endpoint.ask("free", self.endpoint.key, self.pointer)

    def __enter__(self) -> DeviceBuffer:  # noqa: PYI034 - Self is of Python 3.11
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Give it back."""
        self.close()

    def __repr__(self) -> str:
        """Name the device and the size."""
        what = f" of a {self.kind}" if self.kind else ""
        return f"<DeviceBuffer of {self.size_bytes} bytes{what} on {self.endpoint.gpu.vendor} {self.endpoint.key}>"


class Endpoint:
    """A device that is open in a vendor process. `visible` are the PCI addresses that its runtime shows there.

    Methods raise EngineError (`kind` says why), VendorDeadlineError when the runtime does not answer (the process is
    killed then) and VendorEndedError.
    """

    def __init__(self, process: OpenedProcess, gpu: Gpu, runtime: str, deadline_s: float) -> None:
        """Open it: `open_endpoint` knows the runtime."""
        self.process = process
        self.gpu = gpu
        self.runtime = runtime
        self.key = gpu.key
        self.deadline_s = deadline_s
        self._lost: str | None = None
        _load(process, deadline_s)
        said = self.ask("open_device", self.key, runtime, gpu.pci_address)
        self.visible: tuple[str, ...] = tuple(said["visible"])
        self.library: str = said["library"]

    @property
    def broken(self) -> str | None:
        """Why nothing more is asked of it: the device is lost, or a copy of its process does not end."""
        return self._lost or _hung.get(self.process.process)

    @property
    def pid(self) -> int:
        """The process."""
        return self.process.process.pid

    def allocate(self, size_bytes: int) -> DeviceBuffer:
        """Allocate device memory; its content is whatever it is."""
        return DeviceBuffer(self, self.ask("allocate", self.key, size_bytes), size_bytes)

    def borrow(self, function: Callable[..., Any], *args: Any, deadline_s: float = 60.0) -> DeviceBuffer:
        """Call a module-level function there and use the memory of the array that it returns, which is kept.

        The array must be on this device and contiguous; it says where by `__cuda_array_interface__` or DLPack.
        """
        found = reference_of(function)
        number = next(_numbers)
        asked = (number, self.key, (found.module, found.function, found.file), project_folders(), list(args))
        pointer, size_bytes, kind = self.ask("borrow", *asked, deadline_s=deadline_s)
        return DeviceBuffer(self, pointer, size_bytes, number, kind)

    def run(self, function: Callable[..., Any], *args: Any, deadline_s: float = 60.0) -> Any:
        """Call a module-level function there and return its result, when what it queued on the device has ended.

        An argument that is a DeviceBuffer of this device is there the array that it was borrowed from, or else an
        object with `__cuda_array_interface__`. Raises VendorCallError when the function raised.
        """
        found = reference_of(function)
        given = [self._given(each) for each in args]
        asked = (self.key, (found.module, found.function, found.file), project_folders(), given)
        return self.tell("call", *asked, deadline_s=deadline_s)

    def memory_bytes(self) -> tuple[int, int]:
        """Return free and total memory of the device."""
        free, total = self.ask("memory", self.key)
        return free, total

    def ask(self, name: str, *args: Any, deadline_s: float | None = None) -> Any:
        """Call a function of `child` that is `answered`."""
        if self.broken is not None:
            raise EngineError(f"{self.key} is of no use to process {self.pid} any more: {self.broken}", kind="closed")
        status, value = self.tell(name, *args, deadline_s=deadline_s)
        if status == "failed":
            error = _error(value)
            kind = error.kind if isinstance(error, EngineError) else None
            # To free or unpin anything would wait for what does not end; the end of the process takes it back.
            if kind == "lost":
                self._lost = str(error)
            elif kind == "deadline":
                _hung[self.process.process] = str(error)
            raise error
        return value

    def tell(self, name: str, *args: Any, deadline_s: float | None = None) -> Any:
        """Call any function of `child`."""
        function = Reference(module=f"{PACKAGE}.staging.child", function=name, file=None)
        return self.process.run(function, *args, deadline_s=self.deadline_s if deadline_s is None else deadline_s)

    def close(self) -> None:
        """Close all devices of the process, as far as it still answers; its end does the same."""
        with contextlib.suppress(VendorProcessError, TransferError):
            self.ask("close")

    def _given(self, argument: Any) -> Any:
        if not isinstance(argument, DeviceBuffer):
            return argument
        if argument.endpoint.process is not self.process:
            raise TransferError(f"{argument!r} is memory of another process: copy it to a buffer of {self.key} first")
        return {_BUFFER: (argument.number, argument.pointer, argument.size_bytes)}


def open_endpoint(process: OpenedProcess, gpu: Gpu, *, simulated: bool = False, deadline_s: float = 30.0) -> Endpoint:
    """Open a device in a process that sees it. `simulated`: host memory stands for it, and no driver is used.

    Raises TransferError for a device whose vendor's runtime is not known here, EngineError when it cannot be opened.
    """
    runtime = "host" if simulated else _RUNTIMES.get(gpu.vendor)
    if runtime is None:
        raise TransferError(
            f"no copies with {gpu.key}: this version knows CUDA and HIP, and no runtime of {gpu.vendor}"
        )
    return Endpoint(process, gpu, runtime, deadline_s)


def visible_devices(process: OpenedProcess, *, deadline_s: float = 30.0) -> tuple[str, ...] | None:
    """Return the PCI addresses that the runtime of a process's vendor shows there; None where it is not loaded.

    Asked of the runtime itself, without a context. Raises EngineError and the errors of the process.
    """
    runtime = _RUNTIMES.get(process.vendor)
    library = {"cuda": "libcuda.so", "hip": "libamdhip64.so"}.get(runtime or "")
    if library is None or not any(
        os.path.basename(path).startswith(library) for path in mapped_files(process.host, process.process.pid)
    ):
        return None
    _load(process, deadline_s)
    asked = Reference(module=f"{PACKAGE}.staging.child", function="visible", file=None)
    status, value = process.run(asked, runtime, deadline_s=deadline_s)
    if status == "failed":
        raise _error(value)
    return tuple(value)


def _load(process: OpenedProcess, deadline_s: float) -> None:
    if process.process not in _loaded:
        process.run(LOAD, shipment(SHIPPED, PACKAGE), deadline_s=deadline_s)
        _loaded.add(process.process)


def _error(told: dict[str, Any]) -> TransferError:
    kind = getattr(errors, told["type"], TransferError)
    error: TransferError = kind(told["text"], **told["fields"])
    return error
