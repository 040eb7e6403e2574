"""One decision: what begins now, and what takes over from tests that are about to end.

List scheduling: whatever is most urgent and fits begins; what is more urgent and does not fit has devices kept for it.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from pytest_gpucoexist.placement.engine.pools import first_of
from pytest_gpucoexist.placement.engine.units import UnitSteps

if TYPE_CHECKING:
    from pytest_gpucoexist.placement.engine.crew import Kind, Worker
    from pytest_gpucoexist.placement.engine.needs import Chosen, Need
    from pytest_gpucoexist.placement.engine.plan import Plan
    from pytest_gpucoexist.placement.engine.pools import Entry, Pool, UnitState
    from pytest_gpucoexist.placement.engine.values import Assignment

__all__ = ["decide"]

LOOKED_AT = 32
"""How many of a pool's least urgent tests are looked at for one that is short enough for a kept device."""

ALIKE = 0.8
"""A test this much shorter begins in another's place, when its worker expects it: a wrong guess costs a few ms."""

_Head = tuple[int, float, "UnitState | None"]
"""The first test (its place in the suite), how long it or its unit takes, and the unit."""


def decide(plan: Plan, now_s: float) -> list[Assignment]:
    """Hand out what can be handed out now.

    Where nothing came of it and nothing runs, units may have given their devices back too late for others to see: no
    event would follow, so it is tried again.
    """
    made: list[Assignment] = []
    for _ in range(3):
        made = Round(plan, now_s).run()
        if made or not plan.pools.count or any(worker.line for worker in plan.workers.values()):
            break
    return made


class Round(UnitSteps):
    """One decision: goes through the pools, the most urgent first."""

    def run(self) -> list[Assignment]:
        """Decide."""
        plan = self.plan
        if plan.keep_order:
            while self._next_in_order() or self._make_way():
                pass
            return self.made
        self._units()
        self._hand_out()
        while self.split():
            pass
        if self.floor.look_ahead():
            self._units()
            self._hand_out()
        self.floor.remember()
        return self.made

    def _units(self) -> None:
        for worker in self.plan.workers.values():
            while worker.unit is not None and self.go_on(worker):
                pass

    def _hand_out(self) -> None:
        self.stripped = True
        while self.stripped:
            self.stripped = False
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
            return self.go_on(unit_first[1]) or unit_first[1].unit is None
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
            if unit not in self.passed and self.next_of(unit, kind, last=False) is not None:
                return -minus, unit.work_s + self.pools.setup_s(unit), unit
        return None if entry is None else (-entry[1], self.pools.expected_s[-entry[1]], None)

    def _give(self, worker: Worker, pool: Pool, head: _Head, need: Need | None = None, chosen: Chosen = ()) -> None:
        order, seconds, unit = head
        if unit is not None:
            self.pools.take_unit(pool, unit)
            self.open(worker, unit, need, chosen)
            return
        entry = self._as_guessed(worker, pool, seconds)
        if entry is None:
            entry = next(entry for entry in reversed(pool.loose) if entry[1] == -order)
        test = self.pools.take_loose(pool, entry)
        self.place(worker, test, None, need, chosen)

    def _as_guessed(self, worker: Worker, pool: Pool, seconds: float) -> Entry | None:
        """Return the entry of the test that a worker was told to expect, if it does as well as one of this length."""
        guess = worker.guess
        if guess is None or self.plan.keep_order or not ALIKE * seconds <= self.pools.expected_s[guess] <= seconds:
            return None
        return next((entry for entry in pool.loose[-LOOKED_AT:] if entry[1] == -guess), None)

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
