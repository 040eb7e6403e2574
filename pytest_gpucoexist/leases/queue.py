"""First come, first served: who waits for a device holds the byte of a ticket in its queue, for everybody to see.

A ticket is the time of arrival in milliseconds of the machine's monotonic clock, so nobody has to hand tickets out, and
nobody can be stopped while he does. Nobody takes a device that an earlier ticket waits for, so a request for many
devices is not starved by small ones. A dead waiter's bytes are gone with it. A living one moves the byte that is its
pulse each time it looks for devices; one that has not moved it for `SILENT_S` is stopped, and may be passed.

Bytes are announced by shared locks, which work on files that are open for reading alone (`function.py`).
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

from pytest_gpucoexist.leases.layout import PULSE_BYTES, TICKETS, pulse, queue
from pytest_gpucoexist.leases.ofd import conflict, conflicts, lock, unlock

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pytest_gpucoexist.leases.claims import Claim
    from pytest_gpucoexist.leases.hold import Hold

__all__ = ["SILENT_S", "Turn", "Watch"]

SILENT_S = 0.25
_LOOKS = 8  # of one's own: who was stopped oneself cannot say that another one did not move
_REMEMBERED = 512


class Watch:
    """Remembers the pulse of other waiters, for one process: who was seen stopped does not hold up its next test."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int], tuple[int, float, int]] = {}

    def lives(self, file: str, fd: int, ticket: int) -> bool:
        """Whether a waiter is there and, as far as can be known by now, moves."""
        found = conflict(fd, pulse(ticket), PULSE_BYTES)
        if found is None:
            self._seen.pop((file, ticket), None)
            return False
        now = time.monotonic()
        at, since, looks = self._seen.get((file, ticket), (-1, now, 0))
        if at != found[0]:
            if len(self._seen) >= _REMEMBERED:
                self._seen.clear()
            since, looks = now, 0
        self._seen[file, ticket] = (found[0], since, looks + 1)
        return now - since < SILENT_S or looks < _LOOKS


class Turn:
    """The place of one request in the queues of its devices; before `draw`, behind everybody."""

    def __init__(self, hold: Hold, watch: Watch) -> None:
        """`hold` has the files; its closing ends the wait too."""
        self._hold = hold
        self._watch = watch
        self._ticket: int | None = None
        self._entries: list[tuple[int, int]] = []
        self._files: dict[str, int] = {}
        self._beat = 0

    @property
    def is_drawn(self) -> bool:
        """Whether others can see this request."""
        return self._ticket is not None

    def may_take(self, claim: Claim) -> bool:
        """Whether nobody who came earlier, and moves, waits for this device or for the card that it is part of."""
        return next(self._earlier(claim), None) is None

    def ahead(self, claims: Iterable[Claim]) -> int:
        """Count the waiters that came earlier and could use any of these devices."""
        return len({ticket for claim in claims for ticket in self._earlier(claim)})

    def _earlier(self, claim: Claim) -> Iterator[int]:
        found = self._hold.queue_file(claim)
        if found is None:
            return
        file, fd = found
        before = TICKETS if self._ticket is None else self._ticket
        for name in (claim.name, claim.parent):
            if name is not None:
                start = queue(name)
                for at, length in conflicts(fd, start, before):
                    for ticket in range(at - start, at - start + length):
                        if self._watch.lives(file, fd, ticket):
                            yield ticket

    def draw(self, claims: Iterable[Claim]) -> None:
        """Enter the queues of these devices. Raises OSError."""
        claims = tuple(claims)
        for claim in claims:
            found = self._hold.queue_file(claim)
            if found is not None:
                self._files[found[0]] = found[1]
        number = int(time.monotonic() * 1000) % TICKETS
        while not self._alone(number):
            number = (number + random.randint(1, 4)) % TICKETS
        self._ticket = number
        for claim in claims:
            found = self._hold.queue_file(claim)
            if found is not None:
                lock(found[1], queue(claim.name) + number, 1, shared=True)
                self._entries.append((found[1], queue(claim.name) + number))

    def _alone(self, number: int) -> bool:
        """Begin the pulse of a ticket, unless somebody else has this one."""
        start = pulse(number)
        for fd in self._files.values():
            lock(fd, start, 1, shared=True)
        self._beat = 0
        if not any(conflict(fd, start, PULSE_BYTES) for fd in self._files.values()):
            return True
        for fd in self._files.values():
            unlock(fd, start, 1)
        return False

    def beat(self) -> None:
        """Show that this waiter is alive."""
        if self._ticket is None:
            return
        old = self._beat
        self._beat = (old + 1) % PULSE_BYTES
        start = pulse(self._ticket)
        for fd in self._files.values():
            lock(fd, start + self._beat, 1, shared=True)
            unlock(fd, start + old, 1)

    def leave(self) -> None:
        """Leave all queues."""
        if self._ticket is not None:
            for fd, at in self._entries:
                unlock(fd, at, 1)
            for fd in self._files.values():
                unlock(fd, pulse(self._ticket), PULSE_BYTES)
        self._ticket = None
        self._entries.clear()
        self._files.clear()
