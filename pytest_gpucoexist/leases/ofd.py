"""Locks on ranges of bytes that belong to an open file description (`F_OFD_SETLK`, Linux 3.15, fcntl(2)).

The kernel drops them when the last descriptor of that opening is closed, however its process ends. Two openings of one
process exclude each other like two processes, so threads need nothing else. A lock needs no bytes in the file.
"""

from __future__ import annotations

import errno
import struct
from typing import TYPE_CHECKING

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["any_file_locks", "available", "conflict", "conflicts", "free_ranges", "lock", "unlock"]

# struct flock of the C library, with 64-bit offsets: type, whence, start, length, pid; native alignment.
_FLOCK = struct.Struct("hhqqi0q")


def available() -> bool:
    """Whether this system has such locks at all. A file system can still refuse them (`lock` raises OSError then)."""
    return fcntl is not None and hasattr(fcntl, "F_OFD_SETLK")


def any_file_locks() -> bool:
    """Whether this system has `flock`."""
    return fcntl is not None


def lock(fd: int, start: int, length: int, *, shared: bool = False) -> bool:
    """Lock a range, or return False when another opening has a lock in the way. Never waits.

    Raises OSError: EBADF where `fd` was not opened for writing and the lock is not `shared`; EINVAL, ENOLCK and the
    like where the file system has no such locks.
    """
    kind = fcntl.F_RDLCK if shared else fcntl.F_WRLCK
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, 0, start, length, 0))
    except OSError as error:
        if error.errno in {errno.EAGAIN, errno.EACCES}:
            return False
        raise
    return True


def unlock(fd: int, start: int, length: int) -> None:
    """Give a range back. What was not locked is no error."""
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, 0, start, length, 0))


def conflict(fd: int, start: int, length: int, *, shared: bool = False) -> tuple[int, int] | None:
    """Return start and length of one lock of another opening that stands in the way, or None. Takes nothing.

    Works on a descriptor that is open for reading alone: with `shared` False it sees shared locks too.
    """
    kind = fcntl.F_RDLCK if shared else fcntl.F_WRLCK
    found = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _FLOCK.pack(kind, 0, start, length, 0))
    kind, _, at, size, _ = _FLOCK.unpack(found)
    return None if kind == fcntl.F_UNLCK else (at, size)


def conflicts(fd: int, start: int, length: int) -> Iterator[tuple[int, int]]:
    """Yield (start, length) of every lock of other openings in a range, clipped to it, in order.

    The kernel tells one of them at a time, not the first: what lies before and after it is asked again.
    """
    found = conflict(fd, start, length)
    if found is None:
        return
    end = start + length
    low = max(start, found[0])
    # A length of 0 is a lock to the end of the file.
    high = end if found[1] == 0 else min(end, found[0] + found[1])
    if low > start:
        yield from conflicts(fd, start, low - start)
    yield low, high - low
    if high < end:
        yield from conflicts(fd, high, end - high)


def free_ranges(fd: int, start: int, length: int) -> Iterator[tuple[int, int]]:
    """Yield (start, length) of what no other opening has locked in a range, in order."""
    at = start
    for low, size in conflicts(fd, start, length):
        if low > at:
            yield at, low - at
        at = max(at, low + size)
    if at < start + length:
        yield at, start + length - at
