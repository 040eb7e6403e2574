"""Everything that one lease has locked: in the table of a folder, and of the PCI functions themselves."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from pytest_gpucoexist.leases.forks import generation
from pytest_gpucoexist.leases.function import FunctionLock, attribute
from pytest_gpucoexist.leases.table import TableLocks

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_gpucoexist.leases.claims import Claim
    from pytest_gpucoexist.leases.places import Place

__all__ = ["Hold"]


class Hold:
    """The kernel's side of one lease, or of one request that waits. Not safe to use from two threads at once."""

    def __init__(self, place: Place) -> None:
        """Open the table of a place. Raises TableMissingError and OSError."""
        self._place = place
        self._generation = generation()
        self.table = TableLocks(place.folder) if place.folder is not None else None
        self.functions: dict[str, FunctionLock] = {}
        self._unlockable: set[str] = set()
        self.claims: dict[str, Claim] = {}

    def function(self, address: str) -> FunctionLock | None:
        """Return the lock of a PCI function, opened when it is first asked for; None where there is none to lock."""
        known = self.functions.get(address)
        if known is None and self._place.functions is not None and address not in self._unlockable:
            try:
                known = self.functions[address] = FunctionLock(attribute(self._place.functions, address))
            except OSError:  # no sysfs in this container, or a function that is gone
                self._unlockable.add(address)
        return known

    def free(self, claim: Claim) -> bool:
        """Whether nobody else has locked it, as far as the table knows. Takes nothing."""
        return self.table is None or self.table.free(claim)

    def take(self, claim: Claim) -> bool:
        """Lock a device, or nothing and return False."""
        if self.table is not None and not self.table.take(claim):
            return False
        if claim.function is not None:
            function = self.function(claim.function)
            wanted = self.table.ranges(claim) if self.table is not None else ()
            if function is not None and not function.take(claim, wanted):
                if self.table is not None:
                    self.table.give(claim)
                return False
        self.claims[claim.key] = claim
        return True

    def give(self, keys: Iterable[str]) -> None:
        """Unlock devices. What is not held is no error."""
        if self._generation != generation():
            return  # a forked child: it has nothing of this
        for key in keys:
            claim = self.claims.pop(key, None)
            if claim is None:
                continue
            function = self.functions.get(claim.function or "")
            if function is not None:
                function.give(claim)
            if self.table is not None:
                self.table.give(claim)

    def intact(self) -> bool:
        """Whether what is locked is still what others would find."""
        return self.table is None or self.table.intact()

    def close(self) -> None:
        """Unlock everything. Doing so twice is no error."""
        if self._generation != generation():
            return
        self._generation = -1
        self.claims.clear()
        for function in self.functions.values():
            function.close()
        if self.table is not None:
            self.table.close()


def refused(error: OSError) -> bool:
    """Whether a file system has no such locks, in distinction to a folder that this user may not use."""
    return error.errno in {errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}
