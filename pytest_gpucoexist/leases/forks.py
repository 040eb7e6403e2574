"""Descriptors that hold locks, and a forked child that must not keep them.

A child of `fork` has every descriptor of its parent, and a lock lives until the last of them is closed: a server that
a test forked would hold the test's device for as long as it runs. So a child closes them first of all. A child made by
a library without Python's knowledge keeps them, until it executes another program.
"""

from __future__ import annotations

import contextlib
import os
import threading

__all__ = ["close", "generation", "keep", "opened"]

_lock = threading.RLock()  # no fork between an opening and its entry here
_open: set[int] = set()
_generation = [0]


def generation() -> int:
    """Return a number that is another one in each forked child: what an object opened before is not the child's."""
    return _generation[0]


def opened(path: str, flags: int, mode: int = 0o666, dir_fd: int | None = None) -> int:
    """Open like `os.open`, not inherited by programs nor by forked children. Raises OSError."""
    with _lock:
        fd = os.open(path, flags | os.O_CLOEXEC, mode, dir_fd=dir_fd)
        _open.add(fd)
    return fd


def close(fd: int) -> None:
    """Close what `opened` returned."""
    with _lock:
        _open.discard(fd)
        os.close(fd)


def keep(fd: int) -> None:
    """Leave a descriptor open in forked children from now on."""
    with _lock:
        _open.discard(fd)


def _in_child() -> None:
    _generation[0] += 1
    for fd in _open:
        with contextlib.suppress(OSError):
            os.close(fd)
    _open.clear()
    _lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_in_child)
