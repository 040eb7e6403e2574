"""The only door to the operating system.

Probes and gates speak to a `Host`, never to `/sys`, `/proc`, `/dev`, `/etc` or `os.environ`. Paths are absolute
texts with forward slashes, as they are on the machine that the host stands for. Reading methods raise `OSError` with
its errno, as the kernel would; `status_of_errno` turns that into a fact's status.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Literal, Protocol, runtime_checkable

from pytest_gpucoexist.model.readings import Status

__all__ = ["Completed", "HelperReply", "Host", "Identity", "KernelLog", "Node"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """What `stat` says about a path, links followed. `major` and `minor` are of device nodes only."""

    kind: Literal["file", "dir", "chardev", "blockdev", "other"]
    mode: int = 0
    uid: int = 0
    gid: int = 0
    size_bytes: int = 0
    major: int | None = None
    minor: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The process whose rights count. `groups` holds every gid, the effective one too; names where they are known."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    group_names: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """A program that ended, or was ended at its deadline (`timed_out`, returncode None)."""

    returncode: int | None
    stdout: bytes = b""
    stderr: bytes = b""
    timed_out: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HelperReply:
    """What came back from a helper process.

    `status` is `ok` (then `data` is what the helper sent), `absent` (its library is not installed), `unsupported`
    (installed, but there is no driver or device to ask), `denied` or `broken` (deadline, crash, signal, garbage,
    exception). `detail` is the reason in words; `left_behind` is the PID of a helper that could not be killed.
    """

    status: Literal["ok", "unsupported", "denied", "absent", "broken"]
    data: Any = None
    detail: str | None = None
    left_behind: int | None = None
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLog:
    """What the kernel has logged since this boot, as text in the format of its `source`.

    `complete` is False when the beginning of the boot is not in it, None when nobody can tell. `lost` counts records
    that were overwritten while they were being read. `read_at_s` is the clock of the records (seconds that this boot
    has been awake) when they were read. Where there is no text, `status` and `detail` say why.
    """

    status: Status
    text: str = ""
    source: str = ""
    detail: str | None = None
    complete: bool | None = None
    first_sequence: int | None = None
    lost: int = 0
    read_at_s: float | None = None


@runtime_checkable
class Host(Protocol):
    """One machine as seen by one process: this one (`LocalHost`) or a recorded one (`ReplayHost`)."""

    @property
    def name(self) -> str:
        """A name for people: the host name, or the recording's."""
        ...

    @property
    def simulated(self) -> bool:
        """True when nothing read here is of this machine."""
        ...

    @property
    def platform(self) -> str:
        """`sys.platform` of that machine: `linux`, `win32`, `darwin`."""
        ...

    @property
    def environ(self) -> Mapping[str, str]:
        """The environment of the process; a snapshot that nobody may change."""
        ...

    @property
    def python_path(self) -> Sequence[str]:
        """The folders where the process finds its packages (`sys.path`), in order."""
        ...

    def identity(self) -> Identity:
        """Whose rights count."""
        ...

    def read_bytes(self, path: str, limit: int = 65536) -> bytes:
        """Read at most `limit` bytes. Raises OSError."""
        ...

    def open_file(self, path: str) -> BinaryIO:
        """Open a regular file for reading at any place, for files too large to read whole; the caller closes it.

        Raises OSError: EINVAL for anything but a regular file, ENODATA where a recording knows it and did not keep it.
        """
        ...

    def read_text(self, path: str, limit: int = 65536) -> str:
        """Read as text: NUL padding and the white space at the end removed, bad bytes replaced. Raises OSError."""
        ...

    def list_dir(self, path: str) -> list[str]:
        """Names in a folder, sorted. Raises OSError."""
        ...

    def read_link(self, path: str) -> str:
        """Return the text of a symbolic link. Raises OSError (EINVAL when it is none)."""
        ...

    def resolve(self, path: str) -> str:
        """Follow every link of a path. Raises OSError (ENOENT when it dangles)."""
        ...

    def stat(self, path: str) -> Node:
        """Kind, mode and owner, links followed. Raises OSError."""
        ...

    def exists(self, path: str) -> bool:
        """Whether `stat` would succeed."""
        ...

    def may_open(self, path: str, *, write: bool) -> None:
        """Check that this process may open the path, without opening it. Raises OSError (EACCES, ENOENT, …).

        Where the answer is not recorded (a tree without `/dev`), raises OSError with errno ENODATA.
        """
        ...

    def covers(self, path: str) -> bool:
        """Whether this host can know about the path at all. A recording without `/dev` does not cover `/dev/kfd`."""
        ...

    def run(self, argv: Sequence[str], *, timeout_s: float = 5.0) -> Completed:
        """Run a program (no shell). Raises OSError when it cannot be started or was not recorded."""
        ...

    def ask(self, helper: str, request: Mapping[str, Any] | None = None, *, deadline_s: float = 5.0) -> HelperReply:
        """Run one of the package's helpers (`nvml`, `amdsmi`, …) in a process of its own. Never raises."""
        ...

    def ask_all(
        self, helpers: Sequence[str], request: Mapping[str, Any] | None = None, *, deadline_s: float = 5.0
    ) -> dict[str, HelperReply]:
        """Like `ask`, for several helpers at the same time: it takes as long as the slowest."""
        ...

    def kernel_log(self, *, allow_programs: bool = False) -> KernelLog:
        """Return the kernel's log of this boot, or why it cannot be read. Never raises.

        `allow_programs`: where `/dev/kmsg` cannot be read, journalctl may be run.
        """
        ...

    def time(self) -> float:
        """Seconds since the epoch; in a recording, when it was made."""
        ...
