"""Start a process that cannot hold up this one in its first instant.

`subprocess` uses vfork: the calling thread sleeps in the kernel, and keeps Python's lock, until the child has become
another program. A child that is stopped before that, or whose program lies on a disk that does not answer, would stop
every thread here. After a fork only the calling thread waits, and another can end the child.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Forking"]

_lock = threading.Lock()
_begun: list[tuple[bool, ...]] = []
_SWITCHES = ("_USE_VFORK", "_USE_POSIX_SPAWN")  # the C library's posix_spawn is a vfork, too


class Forking:
    """The start of one process. `start` is for the thread that waits, `kill` for any other."""

    def __init__(self) -> None:
        """Begin with no process."""
        self._child: subprocess.Popen[bytes] | None = None
        self.is_killed = False
        """Whether `kill` has ended it."""

    def start(self, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        """Start it, with options of `subprocess.Popen`; returns when it has become another program, or has died."""
        begun = self

        class Child(subprocess.Popen[bytes]):
            def __init__(self) -> None:
                begun._child = self  # the number comes with the fork, and the constructor returns later
                super().__init__(command, **_only_fork(), **options)

        with _no_vfork():
            return Child()

    def kill(self) -> None:
        """End the process that is being started, if there is one."""
        child = self._child
        pid = getattr(child, "pid", None)
        if child is not None and pid is not None and child.returncode is None:
            self.is_killed = True
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _only_fork() -> dict[str, Any]:
    """Return what keeps Python 3.10 from vfork, which has no switch for it: to become the user that one is."""
    return {"user": os.geteuid()} if sys.version_info < (3, 11) else {}


@contextlib.contextmanager
def _no_vfork() -> Iterator[None]:
    """Switch vfork off, as the documentation of `subprocess` names it; what starts meanwhile elsewhere is slower."""
    with _lock:
        _begun.append(tuple(getattr(subprocess, name, True) for name in _SWITCHES))
        for name in _SWITCHES:
            setattr(subprocess, name, False)
    try:
        yield
    finally:
        with _lock:
            last = _begun.pop()  # what was there before the first of those that start now is at the bottom
            if not _begun:
                for name, value in zip(_SWITCHES, last, strict=True):
                    setattr(subprocess, name, value)
