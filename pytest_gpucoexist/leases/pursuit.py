"""One request on its way to its devices: attempts, and the wait between them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pytest_gpucoexist.leases.hold import Hold
from pytest_gpucoexist.leases.queue import Turn
from pytest_gpucoexist.leases.table import TableMissingError

if TYPE_CHECKING:
    from pytest_gpucoexist.leases.claims import Claim
    from pytest_gpucoexist.leases.guard import Guard
    from pytest_gpucoexist.leases.lease import OnWait
    from pytest_gpucoexist.leases.places import Place
    from pytest_gpucoexist.leases.queue import Watch
    from pytest_gpucoexist.leases.request import Chosen, Request
    from pytest_gpucoexist.leases.waiting import Wait

__all__ = ["AT_ONCE_S", "Pursuit"]

AT_ONCE_S = 0.02
"""What is called busy at once is tried for as long: another one may just be looking."""

_SHORTEST_S, _LONGEST_S = 0.001, 0.02
_TELL_S = 1.0


class Pursuit:
    """A request, what it has locked, and its place in the queues. Its owner closes `hold` when anything is raised."""

    def __init__(self, request: Request, place: Place, watch: Watch, guard: Guard) -> None:
        """Nothing is opened yet."""
        self.request = request
        self.hold: Hold | None = None
        self._place = place
        self._watch = watch
        self._guard = guard
        self._turn: Turn | None = None

    def attempt(self) -> Chosen | None:
        """Lock and check devices for all groups, or none and return None. Raises OSError."""
        hold = self._opened()
        if hold is None:
            return None
        turn = self._turn = self._turn or Turn(hold, self._watch)

        def may_take(claim: Claim) -> bool:
            return self._guard.may_ask(claim.key) and turn.may_take(claim)

        while (chosen := self.request.attempt(hold, may_take)) is not None:
            if not hold.intact():  # what was locked is not what others lock
                self._reopen()
                return None
            if self._guard.check(hold):
                return chosen
            hold.give(tuple(hold.claims))
        return None

    def _opened(self) -> Hold | None:
        if self.hold is not None and not self.hold.intact():
            self._reopen()
        if self.hold is None:
            try:
                self.hold = Hold(self._place)
            except TableMissingError:
                return None
        return self.hold

    def _reopen(self) -> None:
        hold, self.hold, self._turn = self.hold, None, None
        if hold is not None:
            hold.close()

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
                wait.check()
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
