"""The table: one file of a folder whose byte ranges are locked, never written. It is the truth about its devices.

Whole device: an exclusive lock on its slot. A share of N MiB: exclusive locks on any N bytes of the slot that are
free, among as many as the device has MiB, so the shares of a device cannot come to more than its memory. An instance or
partition: a shared lock on the slot of its parent, and its own slot.

Whoever uses the table has a shared `flock` on the folder, and a table is made under an exclusive one. So a table that
somebody removed is made anew only when nobody holds anything of the old one. Nor is an empty file taken for a table
that somebody laid there: its first bytes say that it is one, and are written under the same lock.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

from pytest_gpucoexist.errors import GpuCoexistError
from pytest_gpucoexist.leases.forks import close, opened
from pytest_gpucoexist.leases.layout import SLOT_BYTES, slot
from pytest_gpucoexist.leases.ofd import conflict, free_ranges, lock, unlock

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from pytest_gpucoexist.leases.claims import Claim

__all__ = ["HEAD", "NAME", "TableLocks", "TableMissingError", "open_table"]

NAME = "table"
HEAD = b"gpucoexist leases 1\n"


class TableMissingError(GpuCoexistError):
    """The table was removed while somebody holds devices in it: a new one has to wait for them."""


def open_table(folder: str) -> tuple[int, int]:
    """Open the table of a folder, or make it; return the folder's descriptor, with its lock, and the table's.

    Raises TableMissingError, and OSError: ELOOP where a link lies in its place, EINVAL where it is no plain file.
    """
    folder_fd = opened(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder_fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return folder_fd, _open_or_make(folder_fd)
    except BlockingIOError as error:
        close(folder_fd)
        raise TableMissingError(f"{folder}: its table is gone or just being made; others still use it") from error
    except BaseException:
        close(folder_fd)
        raise


def _open_or_make(folder_fd: int) -> int:
    fd = _open_existing(folder_fd)
    if fd is None:
        _make(folder_fd)
        fd = _open_existing(folder_fd)
        if fd is None:
            raise BlockingIOError  # removed again already
    return fd


def _open_existing(folder_fd: int) -> int | None:
    """Open the table; None where there is none yet, or an empty file."""
    try:
        # Never with O_CREAT: in a sticky folder, fs.protected_regular forbids that for the file of another user.
        fd = opened(NAME, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY, dir_fd=folder_fd)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        close(fd)
        raise OSError(errno.EINVAL, "is no plain file", NAME)
    if os.pread(fd, len(HEAD), 0) != HEAD:
        close(fd)
        return None
    return fd


def _make(folder_fd: int) -> None:
    fcntl.flock(folder_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:
        try:
            fd = opened(NAME, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=folder_fd)
            # Who may write the folder may take part; the umask of whoever came first must not say who.
            writers = os.fstat(folder_fd).st_mode & 0o022
            os.fchmod(fd, 0o600 | writers | writers << 1)
        except FileExistsError:
            fd = opened(NAME, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY, dir_fd=folder_fd)
        try:
            os.pwrite(fd, HEAD, 0)
        finally:
            close(fd)
    finally:
        fcntl.flock(folder_fd, fcntl.LOCK_SH | fcntl.LOCK_NB)


class TableLocks:
    """What one lease has locked in a table. Not safe to use from two threads at once."""

    def __init__(self, folder: str) -> None:
        """Open it. Raises like `open_table`."""
        self.folder_fd, self.locked_fd = open_table(folder)
        self.fd: int | None = self.locked_fd
        self._ranges: dict[str, list[tuple[int, int]]] = {}
        self._parents: dict[str, int] = {}

    def take(self, claim: Claim) -> bool:
        """Lock what a claim says, or nothing and return False."""
        if claim.name in self._ranges or claim.name in self._parents or claim.parent in self._ranges:
            return False  # one's own locks are never in one's own way
        if claim.parent is not None:
            if not lock(self.locked_fd, slot(claim.parent), SLOT_BYTES, shared=True):
                return False
            self._parents[claim.parent] = self._parents.get(claim.parent, 0) + 1
        ranges = self._take_bytes(claim)
        if ranges is None:
            self._give_parent(claim)
            return False
        self._ranges[claim.name] = ranges
        return True

    def _take_bytes(self, claim: Claim) -> list[tuple[int, int]] | None:
        start = slot(claim.name)
        if claim.memory_mib is None:
            return [(start, SLOT_BYTES)] if lock(self.locked_fd, start, SLOT_BYTES) else None
        taken: list[tuple[int, int]] = []
        left = claim.memory_mib
        for at, size in free_ranges(self.locked_fd, start, claim.capacity_mib):
            length = min(size, left)
            if lock(self.locked_fd, at, length):  # somebody may have been faster: then there may be other bytes
                taken.append((at, length))
                left -= length
                if left == 0:
                    return taken
        for at, length in taken:
            unlock(self.locked_fd, at, length)
        return None

    def free(self, claim: Claim) -> bool:
        """Whether `take` would succeed now. Takes nothing."""
        if claim.name in self._ranges or claim.name in self._parents or claim.parent in self._ranges:
            return False
        if claim.parent is not None and conflict(self.locked_fd, slot(claim.parent), SLOT_BYTES, shared=True):
            return False
        start = slot(claim.name)
        if claim.memory_mib is None:
            return conflict(self.locked_fd, start, SLOT_BYTES) is None
        return sum(size for _, size in free_ranges(self.locked_fd, start, claim.capacity_mib)) >= claim.memory_mib

    def ranges(self, claim: Claim) -> tuple[tuple[int, int], ...]:
        """Return (start, length) of what is locked of the device's own slot."""
        return tuple(self._ranges.get(claim.name, ()))

    def give(self, claim: Claim) -> None:
        """Unlock it. What is not held is no error."""
        ranges = self._ranges.pop(claim.name, None)
        if ranges is not None:
            # Not by closing alone: a child between fork and exec has the same opening.
            for at, length in ranges:
                unlock(self.locked_fd, at, length)
            self._give_parent(claim)

    def _give_parent(self, claim: Claim) -> None:
        if claim.parent is None:
            return
        self._parents[claim.parent] -= 1
        if not self._parents[claim.parent]:
            del self._parents[claim.parent]
            unlock(self.locked_fd, slot(claim.parent), SLOT_BYTES)

    def intact(self) -> bool:
        """Whether the file that is locked is still the one that others find."""
        try:
            found = os.stat(NAME, dir_fd=self.folder_fd, follow_symlinks=False)
        except OSError:
            return False
        mine = os.fstat(self.locked_fd)
        return (found.st_ino, found.st_dev) == (mine.st_ino, mine.st_dev)

    def rest(self) -> None:
        """Take no part any more, with nothing locked, but stay open."""
        fcntl.flock(self.folder_fd, fcntl.LOCK_UN)

    def wake(self) -> None:
        """Take part again. Whether it is still the table (`intact`) shows after locking. Raises TableMissingError."""
        try:
            fcntl.flock(self.folder_fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise TableMissingError("the table is just being made") from error

    def close(self) -> None:
        """Unlock everything."""
        self._ranges.clear()
        self._parents.clear()
        unlock(self.locked_fd, 0, 0)  # a length of 0 is all of the file
        fcntl.flock(self.folder_fd, fcntl.LOCK_UN)
        close(self.locked_fd)
        close(self.folder_fd)
