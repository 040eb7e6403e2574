"""One decision: what begins now, and what takes over from tests that are about to end.

List scheduling: whatever is most urgent and fits begins; what is more urgent and does not fit has devices kept for it.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from pytest_gpucoexist.placement.floor import DEEP_S, DEEPEST, Floor
from pytest_gpucoexist.placement.pools import first_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpucoexist.placement.crew import Kind, Placed, Worker
    from pytest_gpucoexist.placement.needs import Chosen, Need
    from pytest_gpucoexist.placement.plan import Plan
    from pytest_gpucoexist.placement.pools import Entry, Pool, UnitState
    from pytest_gpucoexist.placement.values import Assignment

__all__ = ["Round"]

LOOKED_AT = 32
"""How many of a pool's least urgent tests are looked at for one that is short enough for a kept device."""

ALIKE = 0.8
"""A test this much shorter begins in another's place, when its worker expects it: a wrong guess costs a few ms."""

WORTH = 0.9
"""A unit is split when its rest is then expected to be over in at most this part of the time, set-up counted."""

_Head = tuple[int, float, "UnitState | None"]
"""The first test (its place in the suite), how long it or its unit takes, and the unit."""


class Round:
    """The state of one decision. Results are in `made`."""

    def __init__(self, plan: Plan, now_s: float) -> None:
        """Look at the devices once."""
        self.plan = plan
        self.pools = plan.pools
        self.now_s = now_s
        self.made: list[Assignment] = []
        self.floor = Floor(plan, now_s)
        self._passed: set[UnitState] = set()
        """Units that could not begin after all."""
        self._stripped = False
        """Whether a unit has moved to another pool since the pools were gone through."""

    def run(self) -> list[Assignment]:
        """Decide."""
        plan = self.plan
        if plan.keep_order:
            while self._next_in_order() or self._make_way():
                pass
            return self.made
        self._units()
        self._hand_out()
        while self._split():
            pass
        if self.floor.look_ahead():
            self._units()
            self._hand_out()
        self.floor.remember()
        return self.made

    def _units(self) -> None:
        for worker in self.plan.workers.values():
            while worker.unit is not None and self._go_on(worker):
                pass

    def _hand_out(self) -> None:
        self._stripped = True
        while self._stripped:
            self._stripped = False
            self._go_through()

    def _go_through(self) -> None:
        heads: list[tuple[float, int, Pool]] = []
        for pool in self.pools.by_demand.values():
            head = pool.head()
            if head is not None:
                heads.append((-head[0], -head[1], pool))
        heapify(heads)
        while heads and self.floor.workers():
            _, _, pool = heappop(heads)
            if self._from(pool):
                head = pool.head()
                if head is not None:
                    heappush(heads, (-head[0], -head[1], pool))

    def _next_in_order(self) -> bool:
        """Hand out the first pending test of the suite, if it can begin. Its unit, once open, stays on its worker."""
        heads = [(-head[1], pool) for pool in self.pools.by_demand.values() if (head := pool.head()) is not None]
        pool_first = min(heads, key=lambda head: head[0], default=None)
        opened = [
            (worker.unit.tests[0], worker)
            for worker in self.plan.workers.values()
            if worker.unit is not None and worker.unit.tests
        ]
        unit_first = min(opened, key=lambda head: head[0], default=None)
        if unit_first is not None and (pool_first is None or unit_first[0] < pool_first[0]):
            return self._go_on(unit_first[1]) or unit_first[1].unit is None
        if pool_first is None:
            return False
        if not self.floor.workers():  # one whose unit goes on later has to leave it
            idle = next((worker for _, worker in sorted(opened, key=lambda found: -found[0]) if not worker.line), None)
            if idle is not None:
                self.plan.close(idle, self.now_s)
                self.floor.changed(idle)
        return self._from(pool_first[1])

    def _make_way(self) -> bool:
        """Where nothing runs, let units go whose devices the first test in order waits for."""
        if any(worker.line for worker in self.plan.workers.values()):
            return False
        opened = [worker for worker in self.plan.workers.values() if worker.unit is not None]
        for worker in opened:
            self.plan.close(worker, self.now_s)
            self.floor.changed(worker)
        return bool(opened)

    # From the pools

    def _from(self, pool: Pool) -> bool:
        """Hand out the most urgent of a pool, or keep devices for it and hand out a shorter one. False: nothing."""
        kinds: dict[Kind, list[Worker]] = {}
        for worker in self.floor.workers():
            kinds.setdefault(worker.kind, []).append(worker)
        possible = self.plan.machines.possible(pool.demand)
        for kind, workers in kinds.items():
            head = self._head(pool, kind)
            if head is None:
                continue
            order, seconds, unit = head
            if pool.demand is None or not possible:
                self._give(workers[0], pool, head)
                return True
            need = kind.needs[pool.demand]
            if need is None or not kind.possible[pool.demand]:
                continue
            chosen = self.floor.fit(need, kind, workers, seconds, order)
            if chosen is not None:
                self._give(self.floor.best(workers, chosen), pool, head, need, chosen)
                return True
            self.floor.keep(need, kind, order)
            if unit is None and not self.plan.keep_order and self._pass_by(pool, kind, workers, need):
                return True
        return False

    def _head(self, pool: Pool, kind: Kind) -> _Head | None:
        entry = first_of(pool.loose, kind.can_run)
        for urgency, minus, unit in reversed(pool.units):
            if entry is not None and entry > (urgency, minus):
                break
            if unit not in self._passed and self._next_of(unit, kind, last=False) is not None:
                return -minus, unit.work_s + self.pools.setup_s(unit), unit
        return None if entry is None else (-entry[1], self.pools.expected_s[-entry[1]], None)

    def _give(self, worker: Worker, pool: Pool, head: _Head, need: Need | None = None, chosen: Chosen = ()) -> None:
        order, seconds, unit = head
        if unit is not None:
            self.pools.take_unit(pool, unit)
            self._open(worker, unit, need, chosen)
            return
        entry = self._as_guessed(worker, pool, seconds)
        if entry is None:
            entry = next(entry for entry in reversed(pool.loose) if entry[1] == -order)
        test = self.pools.take_loose(pool, entry)
        self._place(worker, test, None, need, chosen)

    def _as_guessed(self, worker: Worker, pool: Pool, seconds: float) -> Entry | None:
        """Return the entry of the test that a worker was told to expect, if it does as well as one of this length."""
        guess = worker.guess
        if guess is None or self.plan.keep_order or not ALIKE * seconds <= self.pools.expected_s[guess] <= seconds:
            return None
        return next((entry for entry in pool.loose[-LOOKED_AT:] if entry[1] == -guess), None)

    def _place(
        self,
        worker: Worker,
        test: int,
        unit: UnitState | None,
        need: Need | None = None,
        chosen: Chosen = (),
        sources: Sequence[Placed] = (),
    ) -> None:
        demand = self.pools.tests[test].demand
        unmet = None if self.plan.machines.possible(demand) else self.plan.machines.why_not(demand)
        if need is not None:
            sources = list(dict.fromkeys((*sources, *self.floor.sources(worker, need, chosen))))
        self.made.append(self.plan.place(worker, test, unit, self.now_s, need, chosen, sources, unmet))
        self.floor.changed(worker)

    def _pass_by(self, pool: Pool, kind: Kind, workers: list[Worker], need: Need) -> bool:
        """Hand out the longest of the tests that end before a kept device is wanted."""
        window_s = self.floor.window_s(need, kind)
        if window_s <= 0:
            return False
        fitting = [
            (self.pools.expected_s[-entry[1]], entry)
            for entry in pool.loose[:LOOKED_AT]
            if self.pools.expected_s[-entry[1]] <= window_s and (kind.can_run is None or -entry[1] in kind.can_run)
        ]
        if not fitting:
            return False
        seconds, entry = max(fitting)
        chosen = self.floor.fit(need, kind, workers, seconds, -entry[1])
        if chosen is None:
            return False
        self._give(self.floor.best(workers, chosen), pool, (-entry[1], seconds, None), need, chosen)
        return True

    # Units

    def _next_of(self, unit: UnitState, kind: Kind, *, last: bool) -> int | None:
        """Return the next test of a unit that such a worker can run (or skip): a helper begins at the end."""
        for test in reversed(unit.tests) if last else unit.tests:
            demand = self.pools.tests[test].demand
            runs = demand is None or kind.possible[demand] or not self.plan.machines.possible(demand)
            if runs and (kind.can_run is None or test in kind.can_run):
                return test
        return None

    def _open(self, worker: Worker, unit: UnitState, need: Need | None, chosen: Chosen) -> None:
        """Begin a unit: with its devices, or where they are not to be had with those of its first test only."""
        first = self._next_of(unit, worker.kind, last=bool(unit.workers))
        if need is None and unit.demand is not None:
            unit.bare = True  # what it would hold is to be had nowhere
        holds = need is not None and not unit.bare
        sources = self.floor.sources(worker, need, chosen) if need is not None and holds else []
        self.plan.open(worker, unit, self.now_s, need if holds else None, chosen, sources)
        self.floor.changed(worker)
        if first is not None and need is not None and unit.bare and self.pools.tests[first].demand == unit.demand:
            self.pools.take_of(unit, first)
            self._place(worker, first, unit, need, chosen)
        elif not self._go_on(worker, sources) and not worker.line:
            if worker.unit is not None and holds:
                self.plan.close(worker, self.now_s)
            if worker.unit is None and holds and not unit.workers:
                self.pools.strip(unit)
                self._stripped = True
            elif worker.unit is None:
                self._passed.add(unit)
            return
        while self._go_on(worker):
            pass

    def _go_on(self, worker: Worker, sources: Sequence[Placed] = ()) -> bool:
        """Assign the next test of a worker's open unit. One that cannot go on gives the unit's devices back."""
        unit, line = worker.unit, worker.line
        if unit is None:
            return False
        test = self._next_of(unit, worker.kind, last=unit.workers[0] != worker.name)
        if test is None:
            if not line:
                self.plan.close(worker, self.now_s)
                self.floor.changed(worker)
            return False
        if len(line) >= 2 and (len(line) >= DEEPEST or sum(each.expected_s for each in line[1:]) > DEEP_S):
            return False
        demand = self.pools.tests[test].demand
        need: Need | None = None
        chosen: Chosen | None = ()
        if demand is not None and self.plan.machines.possible(demand):
            need = worker.kind.needs[demand]
            if need is None:
                return False
            chosen = self.floor.fit_unit(need, worker, self.pools.expected_s[test], test)
        if chosen is None:
            if not line and (worker.hold or (need is not None and self.floor.is_hopeless(need, worker.kind))):
                self.plan.close(worker, self.now_s)
                self.floor.changed(worker)
            elif not line and need is not None:
                self.floor.keep(need, worker.kind, test)
            return False
        self.pools.take_of(unit, test)
        self._place(worker, test, unit, need, chosen, sources)
        return True

    def _with_help(self, unit: UnitState) -> tuple[float, float]:
        """Expect how long a unit takes from now, and how long with one worker more, which has to set it up first."""
        lines = [self.plan.workers[name].line for name in unit.workers]
        busy_s = sum(line[-1].ends_s(self.now_s) - self.now_s for line in lines if line)
        setup_s = self.pools.setup_s(unit)
        together_s = unit.work_s + busy_s
        helped_s = (together_s + setup_s) / (len(lines) + 1)
        return together_s / len(lines), max(helped_s, setup_s + unit.work_s / max(1, len(unit.tests)))

    def _split(self) -> bool:
        """Let an idle worker that found nothing help with a unit, where that pays."""
        for worker in self.floor.workers():
            kind = worker.kind
            best: tuple[float, UnitState, Need | None, Chosen] | None = None
            for unit in self.plan.opened():
                if not unit.unit.divisible or unit in self._passed or self._next_of(unit, kind, last=True) is None:
                    continue
                alone_s, helped_s = self._with_help(unit)
                gain_s = alone_s - helped_s
                if helped_s > WORTH * alone_s or (best is not None and gain_s <= best[0]):
                    continue
                test = self._next_of(unit, kind, last=True)
                demand = unit.demand if test is None or not unit.bare else self.pools.tests[test].demand
                need = None if demand is None else kind.needs[demand]
                if demand is not None and (need is None or not kind.possible[demand]):
                    continue
                chosen = () if need is None else self.floor.fit(need, kind, [worker], unit.work_s / 2, unit.order)
                if chosen is not None:
                    best = gain_s, unit, need, chosen
            if best is not None:
                self._open(worker, *best[1:])
                return True
        return False
