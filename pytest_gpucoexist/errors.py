"""Every error that this package raises.

    GpuCoexistError
    ├── UserError              something that a person wrote; pytest shows it as a usage error
    │   ├── RequirementError   a mark's arguments (also: `gpu_marks`, `--gpu-require`)
    │   ├── RecordingError     a recording that cannot be replayed
    │   └── ReportError        a report that cannot be read or merged
    ├── DataError              JSON that does not have the shape it should have
    └── DeviceBusyError        devices that others hold or use

Each can be pickled (tests run in worker processes) and says what was tried, what was found and what to do.
"""

from __future__ import annotations

__all__ = [
    "DataError",
    "DeviceBusyError",
    "GpuCoexistError",
    "RecordingError",
    "ReportError",
    "RequirementError",
    "UserError",
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


def error_named(name: str) -> type[GpuCoexistError]:
    """Return the error class of a name that came from another process; the base class when there is none."""
    found = globals().get(name)
    return found if isinstance(found, type) and issubclass(found, GpuCoexistError) else GpuCoexistError
