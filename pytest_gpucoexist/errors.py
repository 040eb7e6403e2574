"""Every error that this package raises.

    GpuCoexistError
    ├── UserError              something that a person wrote; pytest shows it as a usage error
    │   ├── RequirementError   a mark's arguments (also: `gpu_marks`, `--gpu-require`)
    │   ├── RecordingError     a recording that cannot be replayed
    │   └── ReportError        a report that cannot be read or merged
    ├── DataError              JSON that does not have the shape it should have
    ├── DeviceBusyError        devices that others hold or use
    ├── VendorProcessError     a child process of one vendor, and what was asked of it
    │   ├── VendorLaunchError    it did not start
    │   ├── VendorFunctionError  it has no such function, or cannot import its module
    │   ├── VendorPayloadError   an argument or a result that cannot travel
    │   ├── VendorCallError      the function raised
    │   ├── VendorDeadlineError  the function did not return in time; the process was killed
    │   └── VendorEndedError     the process ended: a crash, an exit, a kill
    └── TransferError          data that could not be moved between devices
        ├── EngineError        a device's runtime refused, failed, or did not end in time
        ├── SegmentError       the memory that two processes share cannot be made, opened or used
        └── PeerError          the other side of a staged copy failed, ended, or is silent

Each can be pickled (tests run in worker processes) and says what was tried, what was found and what to do.
"""

from __future__ import annotations

__all__ = [
    "DataError",
    "DeviceBusyError",
    "EngineError",
    "GpuCoexistError",
    "PeerError",
    "RecordingError",
    "ReportError",
    "RequirementError",
    "SegmentError",
    "TransferError",
    "UserError",
    "VendorCallError",
    "VendorDeadlineError",
    "VendorEndedError",
    "VendorFunctionError",
    "VendorLaunchError",
    "VendorPayloadError",
    "VendorProcessError",
    "error_named",
]


class GpuCoexistError(Exception):
    """Base of all errors raised by this package."""


class UserError(GpuCoexistError):
    """Something that a person wrote and can correct."""


class RequirementError(UserError):
    """Arguments of a mark, of `gpu_marks` or of `--gpu-require` that mean nothing."""


class RecordingError(UserError):
    """A recording that cannot be replayed: missing, unsafe, too large, or of no known layout."""


class ReportError(UserError):
    """A report that cannot be read or merged."""


class DataError(GpuCoexistError):
    """JSON that does not have the shape it should have; the message names the path in it."""


class DeviceBusyError(GpuCoexistError):
    """Devices that others hold or use.

    `elsewhere` is true when those in the way are processes that hold no lease: then `--gpu-busy` says what follows.
    """

    elsewhere: bool = False


class TransferError(GpuCoexistError):
    """Data that could not be moved between devices."""


class EngineError(TransferError):
    """A device's runtime refused, failed, or did not end in time.

    `call` is the runtime's function, `code` its answer and `name` the vendor's name of that answer
    ("CUDA_ERROR_OUT_OF_MEMORY"); None and "" where the runtime was not at fault or gave no answer. `kind` says the same
    for every runtime: "library", "no-device", "argument", "memory", "registered", "not-registered", "not-ready",
    "peer", "lost", "deadline", "closed" or "other".
    """

    def __init__(
        self, message: str, *, call: str = "", code: int | None = None, name: str = "", kind: str = "other"
    ) -> None:
        super().__init__(message)
        self.call = call
        self.code = code
        self.name = name
        self.kind = kind


class SegmentError(TransferError):
    """The memory that two processes share cannot be made, opened or used."""


class PeerError(TransferError):
    """The other side of a staged copy failed, ended, or is silent; the message has its own words where it left any."""


class VendorProcessError(GpuCoexistError):
    """A child process of one vendor, and what was asked of it.

    `stdout` and `stderr` are what it wrote meanwhile. `trace` is where it was (Python's frames of all its threads),
    written by the process itself when it crashed or when its deadline came.
    """

    def __init__(self, message: str, *, stdout: str = "", stderr: str = "", trace: str = "") -> None:
        super().__init__(message)
        self.stdout = stdout
        self.stderr = stderr
        self.trace = trace


class VendorLaunchError(VendorProcessError):
    """The process did not start: no such interpreter, one that is too old, a library that the loader misses."""


class VendorFunctionError(VendorProcessError):
    """The process has no such function: it is no module's, or its module cannot be imported in that interpreter."""


class VendorPayloadError(VendorProcessError):
    """An argument or a result that cannot travel between processes; the message names the part of it."""


class VendorCallError(VendorProcessError):
    """The function raised. `remote_traceback` is the text of the traceback in the process.

    `remote_type` is the name of the exception's type with its module (`builtins.ValueError`), `remote_text` its text.
    """

    remote_type: str = ""
    remote_text: str = ""
    remote_traceback: str = ""


class VendorDeadlineError(VendorProcessError):
    """The function did not return within its deadline (seconds), and the process was killed."""


class VendorEndedError(VendorProcessError):
    """The process ended while it was needed. `code` is its exit status, `signal` the name of what killed it."""

    code: int | None = None
    signal: str | None = None


def error_named(name: str) -> type[GpuCoexistError]:
    """Return the error class of a name that came from another process; the base class when there is none."""
    found = globals().get(name)
    return found if isinstance(found, type) and issubclass(found, GpuCoexistError) else GpuCoexistError
