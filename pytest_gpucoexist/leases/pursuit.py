"""One request on its way to its devices: attempts, and the wait between them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pytest_gpucoexist.leases.queue import Turn
from pytest_gpucoexist.leases.table import TableMissingError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpucoexist.leases.claims import Claim
    from pytest_gpucoexist.leases.guard import Guard
    from pytest_gpucoexist.leases.hold import Hold
    from pytest_gpucoexist.leases.lease import OnWait
    from pytest_gpucoexist.leases.queue import Watch
    from pytest_gpucoexist.leases.request import Chosen, Request
    from pytest_gpucoexist.leases.waiting import Wait

__all__ = ["AT_ONCE_S", "Pursuit"]

AT_ONCE_S = 0.02
"""What is called busy at once is tried for as long: another one may just be looking."""

_SHORTEST_S, _LONGEST_S = 0.001, 0.02
_EAGER_S = 0.0005
_TELL_S = 1.0


class Pursuit:
    """A request, what it has locked, and its place in the queues. Its owner closes `hold` when anything is raised."""

    def __init__(self, request: Request, opening: Callable[[], Hold], watch: Watch, guard: Guard) -> None:
        """Open nothing yet: `opening` does, and raises TableMissingError and OSError."""
        self.request = request
        self.hold: Hold | None = None
        self._opening = opening
        self._watch = watch
        self._guard = guard
        self._turn: Turn | None = None
        self._trouble = ""

    def attempt(self) -> Chosen | None:
        """Lock and check devices for all groups, or none and return None. Raises OSError."""
        while True:
            hold = self._opened()
            if hold is None:
                return None
            if self._turn is None:
                self._turn = Turn(hold, self._watch)
            chosen = self.request.attempt(hold, self._may_take)
            if not hold.intact():  # what was locked is not what others lock
                self._reopen()
            elif chosen is None or self._guard.check(hold):
                return chosen
            else:
                hold.give(tuple(hold.claims))

    def _may_take(self, claim: Claim) -> bool:
        return self._guard.may_ask(claim.key) and self._turn is not None and self._turn.may_take(claim)

    def _opened(self) -> Hold | None:
        if self.hold is None:
            try:
                self.hold = self._opening()
            except TableMissingError as error:
                self._trouble = str(error)
                return None
            self._trouble = ""
        return self.hold

    def _reopen(self) -> None:
        hold, self.hold, self._turn = self.hold, None, None
        if hold is not None:
            hold.close()

    def eager(self, limit_s: float) -> Chosen | None:
        """Attempt for as long without a place in the queue, which is work: what is wanted is free in a moment."""
        end_s = time.monotonic() + limit_s
        chosen = None
        while chosen is None and time.monotonic() < end_s:
            time.sleep(_EAGER_S)
            chosen = self.attempt()
        return chosen

    def wait(self, wait: Wait, on_wait: OnWait | None) -> Chosen:
        """Attempt until it succeeds or `wait` says that it is over, in the order of arrival.

        Raises what `wait.check` and `on_wait` raise, and OSError.
        """
        next_s = AT_ONCE_S
        try:
            while True:
                if wait.may_queue and self._turn is not None and not self._turn.is_drawn:
                    self._turn.draw(self.request.all_claims())
                chosen = self.attempt()
                if chosen is not None:
                    return chosen
                wait.check(self.hold, self._trouble)
                waited_s = wait.elapsed_s
                if waited_s >= next_s:
                    next_s = waited_s + _TELL_S
                    waiting = wait.describe(self.hold, self._turn)
                    if on_wait is not None:
                        on_wait(waiting)
                time.sleep(min(_LONGEST_S, max(_SHORTEST_S, waited_s / 16)))
                if self._turn is not None:
                    self._turn.beat()
        finally:
            wait.close()
            if self._turn is not None:
                self._turn.leave()
