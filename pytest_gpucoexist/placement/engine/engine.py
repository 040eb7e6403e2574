"""The scheduler: which test runs on which worker with which devices. Pure: no I/O, and the time is handed in.

Its caller reports events (`worker_up`, `ending`, `finished`, `refused`, …) and after each asks `decide` for new
assignments, which may be of any worker. Times are seconds of one monotonic clock of the caller.

    engine = Engine(tests, units=units, sites=[site])
    engine.worker_up("gw0", site.name)
    while not engine.is_done:
        for assignment in engine.decide(now_s):
            ...  # send it; the worker runs its assignments in the order in which they came
        ...  # wait for a worker
        engine.finished(worker, test, now_s)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.placement.engine.account import Account
from pytest_gpucoexist.placement.engine.crew import Worker
from pytest_gpucoexist.placement.engine.machines import Machines
from pytest_gpucoexist.placement.engine.plan import Plan
from pytest_gpucoexist.placement.engine.policy import decide
from pytest_gpucoexist.placement.engine.pools import Pools
from pytest_gpucoexist.placement.engine.urgency import in_order, usual
from pytest_gpucoexist.placement.engine.values import Downed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from pytest_gpucoexist.placement.engine.crew import Placed
    from pytest_gpucoexist.placement.engine.urgency import Urgency
    from pytest_gpucoexist.placement.engine.values import Assignment, Site, Statistics, Test, Unit

__all__ = ["Engine"]


class Engine:
    """Plans which test goes where. The kernel's locks of the workers remain the truth about devices."""

    def __init__(
        self,
        tests: Sequence[Test],
        *,
        units: Iterable[Unit] = (),
        sites: Iterable[Site] = (),
        keep_order: bool = False,
        workers_per_device: int = 1,
    ) -> None:
        """Take the tests of the suite in its order, the units that they name, and the machines that are known.

        With `keep_order` (for `--sw`, `--ff`, `--nf`) no test is handed out before an earlier one: a stop at the first
        failure leaves nothing behind it undone but what other workers ran at that moment. One that has to wait for
        devices makes the later ones wait.
        `workers_per_device` says how many workers a device keeps busy, for `useful_workers`.
        """
        self._account = Account()
        self._pools = Pools(tests, units)
        self._machines = Machines(self._pools)
        self._plan = Plan(self._pools, self._machines, self._account, keep_order=keep_order)
        self._per_device = workers_per_device
        self._keep_order = keep_order
        for site in sites:
            self.add_site(site)
        self._urgency: Urgency = in_order if keep_order else usual(self._machines)
        self._pools.fill(self._urgency)
        self._rehearsed = keep_order

    def add_site(self, site: Site) -> None:
        """Add a machine, before its first worker is up. Its demands are indexed like those of every other site."""
        self._machines.add_site(site)

    # Workers

    def worker_up(
        self,
        worker: str,
        site: str,
        *,
        only: Collection[str] | None = None,
        home: Collection[str] = (),
        can_run: Collection[int] | None = None,
    ) -> None:
        """Count on a worker from now on, a new one or one that replaces another.

        `only`: keys of the devices that it can use at all (its environment hides others), None: all of the site.
        `home`: devices that it should be given where there is a choice. `can_run`: tests that it collected, None: all.
        """
        if worker in self._plan.workers:
            raise ValueError(f"worker {worker} is up already")
        kind = self._machines.kind(site, only, can_run)
        at_home = frozenset(kind.ledger.index[key] for key in home if key in kind.ledger.index)
        self._plan.workers[worker] = Worker(worker, kind, at_home)

    def worker_down(self, worker: str, now_s: float, *, began: int | None = None, replaced: bool = True) -> Downed:
        """Forget a worker that crashed or was shut down. What it had not begun goes back to be run elsewhere.

        The test that it ran does not go back: it is for the caller to report, and to `give_back` when it may run again.
        One that waited for devices of another worker (`Assignment.after`) counts as not begun, unless the caller knows
        that it had `began`. When the worker is not
        `replaced` and nobody else can run what it could, tests that only it could run become `unmet`.
        """
        gone = self._plan.workers[worker]
        running = None
        returned = []
        for placed in reversed(list(gone.line)):
            if placed is gone.line[0] and (placed.start_s is not None or placed.test == began):
                running = placed.test
                self._plan.end(placed, now_s)
            else:
                self._plan.cancel(placed, now_s)
                returned.append(placed.test)
        self.give_back(returned)
        self._plan.close(gone, now_s)
        del self._plan.workers[worker]
        if not replaced and all(each.kind is not gone.kind for each in self._plan.workers.values()):
            self._machines.forget(gone.kind)
        return Downed(running=running, returned=tuple(sorted(returned)))

    def give_back(self, tests: Iterable[int]) -> None:
        """Make tests pending again that were assigned once: run them anew, or elsewhere."""
        for test in tests:
            self._pools.put_back(test, self._urgency)

    def useful_workers(self) -> int:
        """Say how many workers the pending tests can keep busy: by devices or shares of them, and CPU-only tests.

        Never less than 1. Workers above this number may be shut down (those that have nothing assigned).
        """
        on_devices = max(self._machines.usable_devices() * self._per_device, self._machines.side_by_side())
        return max(1, min(self._pools.count, on_devices + self._pools.without_device()))

    # What happens

    def ending(self, worker: str, test: int, now_s: float) -> None:  # noqa: ARG002
        """Note that a test is about to end (its call is over, its teardown begins): its devices may be promised."""
        placed = self._first(worker, test)
        if placed.start_s is not None:
            placed.ending = True

    def started(self, worker: str, test: int, now_s: float) -> None:
        """Note that a test has its devices. Only for statistics and estimates; without it they are guessed."""
        placed = self._first(worker, test)
        if placed.start_s is None:
            self._plan.began(placed, now_s)
        else:
            placed.start_s = now_s
            self._account.corrected(placed, now_s)

    def finished(self, worker: str, test: int, now_s: float, *, setup_s: float | None = None) -> None:
        """Note that a test ended and its worker goes on: what it held is free, its unit's devices if no more follows.

        `setup_s` is what the set-up of its unit took, when this test had to do it.
        """
        placed = self._first(worker, test)
        if setup_s is not None and placed.unit is not None:
            self._pools.measured(placed.unit, setup_s)
        if placed.start_s is not None and (placed.unit is None or not placed.sets_up):
            self._pools.learn(test, now_s - placed.start_s)
        self._plan.end(placed, now_s)

    def refused(self, worker: str, test: int, keys: Collection[str], now_s: float) -> None:
        """Note that a test did not begin because another session holds these devices: it goes back, they are avoided.

        Until `freed` says otherwise. Assignments of the same worker that came later go back as well: assign anew.
        """
        first = self._first(worker, test)
        for placed in reversed(list(first.worker.line)):
            self._plan.cancel(placed, now_s)
            self.give_back([placed.test])
        self._plan.close(first.worker, now_s)
        self.busy_elsewhere(first.worker.kind.ledger.site.name, keys, now_s)

    def freed(self, site: str, keys: Iterable[str], now_s: float) -> None:  # noqa: ARG002
        """Note that devices are no longer held elsewhere: they may be given again."""
        ledger = self._machines.ledgers[site]
        ledger.away -= {ledger.index[key] for key in keys if key in ledger.index}

    def busy_elsewhere(self, site: str, keys: Iterable[str], now_s: float) -> None:  # noqa: ARG002
        """Note that others hold these devices, before any test ran into it."""
        ledger = self._machines.ledgers[site]
        ledger.away |= {ledger.index[key] for key in keys if key in ledger.index}

    def lost(self, site: str, keys: Iterable[str], reason: str, now_s: float) -> tuple[int, ...]:  # noqa: ARG002
        """Take devices out for good (unfit, gone from the bus), with what is a part of them.

        Tests that run there go on. Returns the pending tests that no worker can run any more because of it; they
        will be assigned with `unmet`.
        """
        before = self._machines.impossible()
        self._machines.lose(site, keys, reason)
        demands = self._machines.impossible() - before
        return tuple(test for test in self._pools.pending() if self._pools.tests[test].demand in demands)

    # What to do

    def decide(self, now_s: float) -> tuple[Assignment, ...]:
        """Hand out what can be handed out now. Devices of each assignment are taken from then on.

        Call it after every event (or several). Returns () when nothing can be given at this moment.
        """
        if not self._rehearsed and self._plan.workers:
            self._rehearsed = True
            self._rehearse()
        self._account.begins(now_s)
        return tuple(decide(self._plan, now_s))

    def _rehearse(self) -> None:
        from pytest_gpucoexist.placement.engine.rehearsal import best_urgency

        better = best_urgency(self._plan)
        if better is not None:
            self._urgency = better
            self._pools.fill(better)

    def predict(self, worker: str) -> int | None:
        """Guess what a worker will run after everything that it was assigned; None: no guess.

        For xdist, where a worker tears down what its next test does not share. Wrong guesses cost a set-up.
        """
        it = self._plan.workers[worker]
        if it.unit is not None:
            helps = it.unit.workers[0] != worker
            rest = (test for test in (reversed(it.unit.tests) if helps else it.unit.tests))
            test = next((test for test in rest if it.kind.can_run is None or test in it.kind.can_run), None)
            if test is not None:
                return test
        elsewhere = {each.guess for each in self._plan.workers.values() if each is not it and each.guess is not None}
        it.guess = self._pools.likely(it.line[-1].test if it.line else None, it.kind.can_run, elsewhere)
        return it.guess

    # What is known

    @property
    def pending(self) -> tuple[int, ...]:
        """Tests that are not assigned, in the order of the suite."""
        return tuple(self._pools.pending())

    @property
    def left(self) -> int:
        """How many tests are not assigned. Cheaper than `pending`."""
        return self._pools.count

    @property
    def is_done(self) -> bool:
        """Whether no test is pending or assigned."""
        return not self._pools.count and not any(worker.line for worker in self._plan.workers.values())

    def assigned(self, worker: str) -> tuple[Assignment, ...]:
        """Return what a worker has, in order: the first is the one that runs or waits for its devices."""
        return tuple(placed.assignment for placed in self._plan.workers[worker].line if placed.assignment is not None)

    def began_s(self, worker: str) -> float | None:
        """Return since when a worker's first test has its devices; None: it has none, or waits for them."""
        line = self._plan.workers[worker].line
        return line[0].start_s if line else None

    def stranded(self) -> tuple[int, ...]:
        """Return the pending tests that no worker that is up collected: nobody can run, or even skip, them."""
        sets = [worker.kind.can_run for worker in self._plan.workers.values()]
        if any(each is None for each in sets):
            return ()
        return tuple(
            test for test in self._pools.pending() if not any(test in each for each in sets if each is not None)
        )

    def statistics(self, now_s: float) -> Statistics:
        """Tell what was done with the devices until now."""
        return self._account.statistics(now_s, self._machines.ledgers, list(self._pools.units.values()))

    def _first(self, worker: str, test: int) -> Placed:
        line = self._plan.workers[worker].line
        if not line or line[0].test != test:
            has = ", ".join(str(placed.test) for placed in line) or "none"
            raise ValueError(f"worker {worker}: test {test} is not the one that it runs; assigned: {has}")
        return line[0]
