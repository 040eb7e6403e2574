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

from pytest_gpucoexist.model.choosing import choose
from pytest_gpucoexist.placement.values import Assignment, Downed, Interval, Share, Statistics

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from pytest_gpucoexist.placement.values import Site, Test, Unit

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
        self._tests = {test.id: test for test in tests}
        self._units = {unit.name: unit for unit in units}
        self._sites: dict[str, Site] = {}
        self._pending = [test.id for test in tests]
        self._keep_order = keep_order
        self._per_device = workers_per_device
        self._workers: dict[str, tuple[str, Collection[int] | None]] = {}
        self._running: dict[str, Assignment] = {}
        self._away: set[str] = set()
        self._intervals: list[Interval] = []
        for site in sites:
            self.add_site(site)

    def add_site(self, site: Site) -> None:
        """Add a machine, before its first worker is up. Its demands are indexed like those of every other site."""
        self._sites[site.name] = site

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
        self._workers[worker] = (site, can_run)

    def worker_down(self, worker: str, now_s: float) -> Downed:
        """Forget a worker that crashed or was shut down. What it had not begun goes back to be run elsewhere.

        The test that it ran does not go back: it is for the caller to report, and to `give_back` when it may run again.
        """
        del self._workers[worker]
        running = self._running.pop(worker, None)
        return Downed(running=None if running is None else running.test)

    def give_back(self, tests: Iterable[int]) -> None:
        """Make tests pending again that were assigned once: run them anew, or elsewhere."""
        self._pending = sorted({*self._pending, *tests})

    def useful_workers(self) -> int:
        """Say how many workers the pending tests can keep busy: by devices that they can use, and CPU-only tests.

        Never less than 1. Workers above this number may be shut down (those that have nothing assigned).
        """
        usable = {key for site in self._sites.values() for key in (device.key for device in site.devices)}
        cpu = sum(self._tests[test].demand is None for test in self._pending)
        return max(1, min(len(self._pending), len(usable) * self._per_device + cpu))

    # What happens

    def ending(self, worker: str, test: int, now_s: float) -> None:
        """Note that a test is about to end (its call is over, its teardown begins): its devices may be promised."""

    def finished(self, worker: str, test: int, now_s: float, *, setup_s: float | None = None) -> None:
        """Note that a test ended and its worker goes on: what it held is free, its unit's devices if no more follows.

        `setup_s` is what the set-up of its unit took, when this test had to do it.
        """
        del self._running[worker]

    def refused(self, worker: str, test: int, keys: Collection[str], now_s: float) -> None:
        """Note that a test did not begin because another session holds these devices: it goes back, they are avoided.

        Until `freed` says otherwise. Assignments of the same worker that came later go back as well: assign anew.
        """
        del self._running[worker]
        self.give_back([test])
        self._away |= set(keys)

    def freed(self, site: str, keys: Iterable[str], now_s: float) -> None:
        """Note that devices are no longer held elsewhere: they may be given again."""
        self._away -= set(keys)

    def busy_elsewhere(self, site: str, keys: Iterable[str], now_s: float) -> None:
        """Note that others hold these devices, before any test ran into it."""
        self._away |= set(keys)

    def lost(self, site: str, keys: Iterable[str], reason: str, now_s: float) -> tuple[int, ...]:
        """Take devices out for good (unfit, gone from the bus), with what is a part of them.

        Tests that run there go on. Returns the pending tests that no worker can run any more because of it; they
        will be assigned with `unmet`.
        """
        self._away |= set(keys)
        return ()

    # What to do

    def decide(self, now_s: float) -> tuple[Assignment, ...]:
        """Hand out what can be handed out now. Devices of each assignment are taken from then on.

        Call it after every event (or several). Returns () when nothing can be given at this moment.
        """
        made = []
        for worker, (name, can_run) in self._workers.items():
            if worker in self._running:
                continue
            site = self._sites[name]
            taken = {key for each in self._running.values() for key in each.keys} | self._away
            for test in self._pending:
                if can_run is not None and test not in can_run:
                    continue
                found = self._placed(site, worker, test, {device.key for device in site.devices} - taken)
                if found is not None:
                    self._pending.remove(test)
                    self._running[worker] = found
                    made.append(found)
                    break
                if self._keep_order:
                    break
        return tuple(made)

    def _placed(self, site: Site, worker: str, test: int, free: Collection[str]) -> Assignment | None:
        number = self._tests[test].demand
        if number is None:
            return Assignment(worker=worker, test=test)
        demand = site.demands[number]
        if demand is None:
            return Assignment(worker=worker, test=test, unmet="no machine has what it needs")
        devices = choose(demand.groups, free, site.machine, closest_pair=demand.closest_pair)
        if devices is None:
            return None
        shares = tuple(
            Share(key=key, memory_bytes=group.requirement.memory_bytes)
            for group, keys in zip(demand.groups, devices, strict=True)
            if group.requirement.memory_bytes is not None and not group.requirement.exclusive
            for key in keys
        )
        return Assignment(worker=worker, test=test, devices=devices, shares=shares)

    def predict(self, worker: str) -> int | None:
        """Guess what a worker will run after everything that it was assigned; None: no guess.

        For xdist, where a worker tears down what its next test does not share. Wrong guesses cost a set-up.
        """
        return self._pending[0] if self._pending else None

    # What is known

    @property
    def pending(self) -> tuple[int, ...]:
        """Tests that are not assigned, in the order of the suite."""
        return tuple(sorted(self._pending))

    @property
    def is_done(self) -> bool:
        """Whether no test is pending or assigned."""
        return not self._pending and not self._running

    def assigned(self, worker: str) -> tuple[Assignment, ...]:
        """Return what a worker has, in order: the first is the one that runs or waits for its devices."""
        return (self._running[worker],) if worker in self._running else ()

    def stranded(self) -> tuple[int, ...]:
        """Return the pending tests that no worker that is up collected: nobody can run, or even skip, them."""
        sets = [can_run for _, can_run in self._workers.values()]
        if any(each is None for each in sets):
            return ()
        return tuple(test for test in self._pending if not any(test in each for each in sets if each is not None))

    def statistics(self, now_s: float) -> Statistics:
        """Tell what was done with the devices until now."""
        return Statistics(started_s=now_s, ended_s=now_s, busy_s={}, intervals=tuple(self._intervals))
