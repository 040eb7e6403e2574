"""Workers, their lines of tests, and what kind of worker can run what."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.placement.engine.needs import Need

if TYPE_CHECKING:
    from pytest_gpucoexist.placement.engine.ledger import Booking, Ledger
    from pytest_gpucoexist.placement.engine.pools import UnitState
    from pytest_gpucoexist.placement.engine.values import Assignment

__all__ = ["Kind", "Placed", "Worker", "closes"]


class Kind:
    """Workers that can run the same: of one site, with the same devices to use and the same tests collected."""

    __slots__ = ("can_run", "ledger", "needs", "only", "possible")

    def __init__(
        self,
        ledger: Ledger,
        only: frozenset[int] | None,
        can_run: frozenset[int] | None,
        needs: list[Need | None] | None = None,
    ) -> None:
        """Prepare every demand of the site, unless that was done."""
        self.ledger = ledger
        self.only = only
        self.can_run = can_run
        if needs is None:
            needs = [None if demand is None else Need(demand, ledger, only) for demand in ledger.site.demands]
        self.needs = needs
        self.possible: list[bool] = []
        self.judge()

    def judge(self) -> None:
        """Find out again what these workers can run, after devices were lost."""
        self.possible = [need is not None and need.possible() for need in self.needs]


class Placed:
    """A test that is assigned. It is active once it is the first of its worker's line and waits for nobody."""

    __slots__ = (
        *("assignment", "bookings", "ending", "expected_s", "heirs", "sets_up", "since_s", "start_s", "test", "unit"),
        *("waits", "worker"),
    )

    def __init__(self, worker: Worker, test: int, unit: UnitState | None, expected_s: float, since_s: float) -> None:
        """Begin without devices."""
        self.worker = worker
        self.test = test
        self.unit = unit
        self.expected_s = expected_s
        self.since_s = since_s
        self.start_s: float | None = None
        self.bookings: list[Booking] = []
        self.waits: list[Placed] = []
        self.heirs: list[Placed] = []
        self.ending = False
        self.sets_up = False
        """Whether it is the first of its unit on this worker."""
        self.assignment: Assignment | None = None

    def ends_s(self, now_s: float) -> float:
        """Expect when it ends; one that runs longer than expected, a tenth of what it took until now later."""
        if self.start_s is not None:
            if self.ending:
                return now_s
            end_s = self.start_s + self.expected_s
            return end_s if end_s > now_s else now_s + (now_s - self.start_s) / 10
        return max((each.ends_s(now_s) for each in self.waits), default=now_s) + self.expected_s


class Worker:
    """A worker that is up. `held`: how much it has of which device for its open unit, booked as `hold`."""

    __slots__ = ("fresh", "guess", "held", "hold", "home", "kind", "last", "line", "name", "unit")

    def __init__(self, name: str, kind: Kind, home: frozenset[int]) -> None:
        """Begin with nothing to do."""
        self.name = name
        self.kind = kind
        self.home = home
        self.line: list[Placed] = []
        self.unit: UnitState | None = None
        self.fresh = False
        """Whether the next test has to set its unit up."""
        self.guess: int | None = None
        """The loose test that it was last said to run next: given to it when another would do no better."""
        self.held: dict[int, int] = {}
        self.hold: list[Booking] = []
        self.last: tuple[int, ...] = ()


def closes(placed: Placed) -> bool:
    """Whether a test is the last of the unit that its worker has open, whose devices are free after it."""
    unit = placed.worker.unit
    return unit is not None and placed.unit is unit and not unit.tests
