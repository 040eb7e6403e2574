"""Who uses devices of another process's lease, and goes on when that lease has ended: nobody else gets them meanwhile.

A lease that can be inherited announces its number for each of its devices, and whoever inherits it the same number as
an heir. Both are shared locks on one byte, so they end with their process. A number that an heir announces and no lease
is of a parent that died before its child, or gave its devices back. For an instance, the card has both too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.leases.layout import SLOT_BYTES, heirs, lent, number_in_slot
from pytest_gpucoexist.leases.ofd import conflict, conflicts, lock, unlock

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_gpucoexist.leases.claims import Claim

__all__ = ["Heirs"]


class Heirs:
    """What one lease announces in the table, through its own opening of it."""

    def __init__(self, fd: int) -> None:
        """`fd` is that of the table."""
        self._fd = fd
        self._said: set[int] = set()

    def lend(self, space: str, claims: Iterable[Claim]) -> None:
        """Announce a lease, which is told from others by `space`. Raises OSError."""
        self._say(lent(name) + number_in_slot(space) for claim in claims for name in claim.real)

    def inherit(self, claim: Claim) -> bool:
        """Announce an heir; return whether the lease has not ended. Raises OSError."""
        number = number_in_slot(claim.heir_of)
        self._say(heirs(name) + number for name in claim.real)
        return conflict(self._fd, lent(claim.real[0]) + number, 1) is not None

    def orphaned(self, claim: Claim) -> bool:
        """Whether somebody uses the device by a lease that has ended."""
        return any(
            conflict(self._fd, lent(name) + at - heirs(name), 1) is None
            for name in claim.real
            for start, length in conflicts(self._fd, heirs(name), SLOT_BYTES)
            for at in range(start, start + length)
        )

    def take_back(self, claim: Claim) -> None:
        """End what was said of a device. What else is held of its card may still be said of that."""
        for start in (lent(claim.real[0]), heirs(claim.real[0])):
            for at in [at for at in self._said if start <= at < start + SLOT_BYTES]:
                unlock(self._fd, at, 1)
                self._said.discard(at)

    def end(self) -> None:
        """End everything that was said."""
        for at in tuple(self._said):
            unlock(self._fd, at, 1)
            self._said.discard(at)

    def _say(self, places: Iterable[int]) -> None:
        for at in set(places) - self._said:
            self._said.add(at)  # first: an interrupt must not leave what nobody ends
            lock(self._fd, at, 1, shared=True)
