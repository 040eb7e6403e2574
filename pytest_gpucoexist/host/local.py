"""This machine. The one module that touches `/sys`, `/proc`, `/dev`, `/etc` and `os.environ`."""

from __future__ import annotations

import errno
import functools
import os
import stat
import sys
import time
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, BinaryIO, ParamSpec, TypeVar

from pytest_gpucoexist.host.base import Completed, HelperReply, Identity, KernelLog, Node
from pytest_gpucoexist.host.common import as_text, os_error
from pytest_gpucoexist.host.guarded import GuardedReader
from pytest_gpucoexist.host.tree import node_of_stat

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["LocalHost"]

P = ParamSpec("P")
R = TypeVar("R")

_CHUNK_BYTES = 1 << 20


def _translated(call: Callable[P, R]) -> Callable[P, R]:
    """Let nothing but an OSError with an errno of the kernel leave a method that asks the kernel."""

    @functools.wraps(call)
    def inner(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return call(*args, **kwargs)
        except OSError as exc:
            path = str(args[1]) if len(args) > 1 else ""
            if exc.errno == errno.ESRCH:
                # A process that ended between two reads of its /proc folder.
                raise os_error(errno.ENOENT, path) from exc
            if exc.errno is None:
                raise os_error(errno.EIO, path) from exc
            raise
        except ValueError as exc:
            # A NUL or a lone surrogate in a path: no file can have that name.
            raise os_error(errno.EINVAL, repr(args[1:])) from exc

    return inner


class LocalHost:
    """This machine, as this process sees it. Takes a snapshot of the environment and of `sys.path`."""

    def __init__(self) -> None:
        self._environ = MappingProxyType(dict(os.environ))
        self._python_path = tuple(sys.path)
        self._guarded = GuardedReader(self._environ)
        self._linux = sys.platform.startswith("linux")

    @property
    def name(self) -> str:
        """The host name."""
        import platform

        return platform.node() or "localhost"

    @property
    def simulated(self) -> bool:
        """Always false."""
        return False

    @property
    def platform(self) -> str:
        """`sys.platform`."""
        return sys.platform

    @property
    def environ(self) -> Mapping[str, str]:
        """The environment when this host was made."""
        return self._environ

    @property
    def python_path(self) -> Sequence[str]:
        """`sys.path` when this host was made."""
        return self._python_path

    def identity(self) -> Identity:
        """Effective user, group and all groups; names of the groups that have one."""
        if not self._linux:
            return Identity(uid=0, gid=0)
        gid = os.getegid()
        groups = tuple(sorted({gid, *os.getgroups()}))
        # Names of the groups that own device nodes too, so that a reason can name what is missing. From the file: the
        # name service of a company can take seconds, and its groups own no device nodes.
        names = {
            name: number
            for name, number in _local_groups(self).items()
            if number in groups or name in {"render", "video"}
        }
        return Identity(uid=os.geteuid(), gid=gid, groups=groups, group_names=names)

    @_translated
    def read_bytes(self, path: str, limit: int = 65536) -> bytes:
        """Read at most `limit` bytes. Raises OSError."""
        self._only_linux(path)
        if self._guarded.guards(path):
            data = self._guarded.read(path, limit)
            if data is not None:
                return data
        # Without waiting: a FIFO or a terminal in the way gives nothing instead of a stall.
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            parts: list[bytes] = []
            left = limit
            while left > 0:
                part = os.read(handle, min(left, _CHUNK_BYTES))
                if not part:
                    break
                parts.append(part)
                left -= len(part)
            return b"".join(parts)
        finally:
            os.close(handle)

    @_translated
    def open_file(self, path: str) -> BinaryIO:
        """Open a regular file for reading. Raises OSError (EINVAL for others)."""
        self._only_linux(path)
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise os_error(errno.EINVAL, path)  # before open(): to open a device node can wake a GPU
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        return os.fdopen(handle, "rb")

    def read_text(self, path: str, limit: int = 65536) -> str:
        """Read as text, without padding. Raises OSError."""
        return as_text(self.read_bytes(path, limit))

    @_translated
    def list_dir(self, path: str) -> list[str]:
        """Names in a folder, sorted. Raises OSError."""
        self._only_linux(path)
        return sorted(os.listdir(path))

    @_translated
    def read_link(self, path: str) -> str:
        """Return the text of a symbolic link. Raises OSError (EINVAL when it is none)."""
        self._only_linux(path)
        return os.readlink(path)

    @_translated
    def resolve(self, path: str) -> str:
        """Follow every link of a path. Raises OSError (ENOENT when it dangles)."""
        self._only_linux(path)
        return os.path.realpath(path, strict=True)

    @_translated
    def stat(self, path: str) -> Node:
        """Kind, mode and owner, links followed. Raises OSError."""
        self._only_linux(path)
        return node_of_stat(os.stat(path))

    def exists(self, path: str) -> bool:
        """Whether `stat` would succeed."""
        try:
            self.stat(path)
        except OSError:
            return False
        return True

    @_translated
    def may_open(self, path: str, *, write: bool) -> None:
        """Ask the kernel, for the effective user, without opening. Raises OSError (EACCES, ENOENT, …)."""
        self._only_linux(path)
        wanted = os.R_OK | os.W_OK if write else os.R_OK
        if not os.access(path, wanted, effective_ids=os.access in os.supports_effective_ids):
            os.stat(path)  # says ENOENT, ELOOP or a folder that may not be entered
            raise os_error(errno.EACCES, path)

    def covers(self, path: str) -> bool:  # noqa: ARG002 - this machine is here as a whole
        """Whether this host can know: everywhere on Linux, nowhere else."""
        return self._linux

    def run(self, argv: Sequence[str], *, timeout_s: float = 5.0) -> Completed:
        """Run a program, without a shell, in a session of its own that is ended with it. Raises OSError."""
        from pytest_gpucoexist.host.processes import run_program

        return run_program(argv, self._environ, timeout_s)

    def ask(self, helper: str, request: Mapping[str, Any] | None = None, *, deadline_s: float = 5.0) -> HelperReply:
        """Run one of the package's helpers in a process of its own. Never raises."""
        return self.ask_all([helper], request, deadline_s=deadline_s)[helper]

    def ask_all(
        self, helpers: Sequence[str], request: Mapping[str, Any] | None = None, *, deadline_s: float = 5.0
    ) -> dict[str, HelperReply]:
        """Run several helpers at the same time."""
        if not self._linux:
            return {name: HelperReply(status="absent", detail=f"not asked on {sys.platform}") for name in helpers}
        from pytest_gpucoexist.host.helpers import ask_helpers

        return ask_helpers(
            helpers, request or {}, environ=self._environ, python_path=self._python_path, deadline_s=deadline_s
        )

    def kernel_log(self, *, allow_programs: bool = False) -> KernelLog:
        """Read `/dev/kmsg`, else (where programs are allowed) ask journalctl. Never raises."""
        if not self._linux:
            return KernelLog(status="absent", detail=f"no kernel log of Linux on {sys.platform}")
        from pytest_gpucoexist.host.kernel_log import local_kernel_log

        return local_kernel_log(self, allow_programs=allow_programs)

    def time(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def _only_linux(self, path: str) -> None:
        """Elsewhere there is nothing to find: the paths of this package are those of Linux."""
        if not self._linux:
            raise os_error(errno.ENOENT, path)


def _local_groups(host: LocalHost) -> dict[str, int]:
    """Read the names and numbers of `/etc/group` (group(5)); none where it cannot be read."""
    try:
        text = host.read_text("/etc/group", _CHUNK_BYTES)
    except OSError:
        return {}
    entries = (line.split(":") for line in text.splitlines())
    return {entry[0]: int(entry[2]) for entry in entries if len(entry) == 4 and entry[2].isdecimal()}
