"""A lock on the PCI function itself: its attribute `vendor` in sysfs, which every user of the machine can open.

It needs no folder, crosses users, and tells sessions apart that keep their tables in different folders. The whole
device is an exclusive `flock`, a share or an instance a shared one. Which bytes belong to whose share cannot be locked
exclusively in a file that is only open for reading. So a share *announces* them by shared locks, and then looks: if
anybody else has announced one of them too, it withdraws. Of two who come at the same time at least one sees the other,
so no two keep the same byte; at worst both withdraw, and try again.

A program without this package takes part with `flock /sys/bus/pci/devices/ADDRESS/vendor PROGRAM`. Sysfs mounted in
another network namespace (most containers) is another file: such a process is not seen.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pytest_gpucoexist.leases.forks import close, opened
from pytest_gpucoexist.leases.layout import KEEPERS, PRESENCE, SLOT_BYTES, slot
from pytest_gpucoexist.leases.ofd import conflict, free_ranges, lock, unlock

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpucoexist.leases.claims import Claim

__all__ = ["FunctionLock", "attribute"]

_Ranges = list[tuple[int, int]]


def attribute(functions: str, address: str) -> str:
    """Return the path of the file that is locked for a PCI function, in the folder that has one for each function."""
    return f"{functions}/{address}/vendor"


class FunctionLock:
    """What one lease has locked of one PCI function."""

    def __init__(self, path: str) -> None:
        """Open the attribute at `path`. Raises OSError."""
        self.fd = opened(path, os.O_RDONLY | os.O_NOFOLLOW)
        self._announced: dict[str, _Ranges] = {}

    def is_there(self) -> bool:
        """Whether the function has not been removed since it was opened: then its file is another one by now."""
        try:
            os.pread(self.fd, 1, 0)
        except OSError:  # ENODEV
            return False
        return True

    def works(self) -> bool:
        """Whether the kernel has these locks on this file. Raises OSError where it has not."""
        lock(self.fd, KEEPERS, 1, shared=True)
        unlock(self.fd, KEEPERS, 1)
        # Of an exclusive flock nobody can tell without taking one: a moment's shared one is in the way of that alone.
        try:
            fcntl.flock(self.fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(self.fd, fcntl.LOCK_UN)
        return True

    def take(self, claim: Claim, wanted: Sequence[tuple[int, int]] = ()) -> bool:
        """Lock what a claim says, or nothing and return False. `wanted` are the bytes of a share to try first."""
        whole = claim.memory_mib is None and claim.parent is None
        try:
            fcntl.flock(self.fd, (fcntl.LOCK_EX if whole else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        if whole or self._announce(claim, wanted):
            return True
        if not self._announced:
            fcntl.flock(self.fd, fcntl.LOCK_UN)
        return False

    def _announce(self, claim: Claim, wanted: Sequence[tuple[int, int]]) -> bool:
        mine = list(wanted) or self._bytes(claim)
        if not mine:
            return False
        if claim.parent is None:
            # Shares of a device and its instances never meet; those of the device may.
            must_be_free = [*mine, (PRESENCE, 1)]
        else:
            must_be_free = [*mine, (slot(claim.parent), SLOT_BYTES)]
            mine = [*mine, (PRESENCE, 1)]
        for at, length in mine:
            lock(self.fd, at, length, shared=True)
        self._announced[claim.name] = mine
        if not any(conflict(self.fd, at, length) for at, length in must_be_free):
            return True
        self._withdraw(claim)
        if wanted:  # somebody of another folder has them: perhaps there are others
            return self._announce(claim, ())
        return False

    def _bytes(self, claim: Claim) -> _Ranges:
        start = slot(claim.name)
        if claim.memory_mib is None:
            return [(start, SLOT_BYTES)]
        found: _Ranges = []
        left = claim.memory_mib
        for at, size in free_ranges(self.fd, start, claim.capacity_mib):
            found.append((at, min(size, left)))
            left -= found[-1][1]
            if left == 0:
                return found
        return []

    def give(self, claim: Claim) -> bool:
        """Unlock it; return whether nothing is left."""
        self._withdraw(claim)
        if not self._announced:
            fcntl.flock(self.fd, fcntl.LOCK_UN)
        return not self._announced

    def _withdraw(self, claim: Claim) -> None:
        ranges = self._announced.pop(claim.name, [])
        for at, length in ranges:
            if at != PRESENCE or not self._announced:
                unlock(self.fd, at, length)

    def close(self) -> None:
        """Unlock everything."""
        unlock(self.fd, 0, 0)
        fcntl.flock(self.fd, fcntl.LOCK_UN)
        close(self.fd)
