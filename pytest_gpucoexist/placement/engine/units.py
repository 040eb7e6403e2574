"""The part of a decision that is about units: beginning one, going on with it, helping with it, leaving it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.placement.engine.floor import DEEP_S, DEEPEST, Floor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpucoexist.placement.engine.crew import Kind, Placed, Worker
    from pytest_gpucoexist.placement.engine.needs import Chosen, Need
    from pytest_gpucoexist.placement.engine.plan import Plan
    from pytest_gpucoexist.placement.engine.pools import UnitState
    from pytest_gpucoexist.placement.engine.values import Assignment

__all__ = ["UnitSteps"]

WORTH = 0.9
"""A unit is split when its rest is then expected to be over in at most this part of the time, set-up counted."""


class UnitSteps:
    """The state of one decision, and its steps with units. Results are in `made`."""

    def __init__(self, plan: Plan, now_s: float) -> None:
        """Look at the devices once."""
        self.plan = plan
        self.pools = plan.pools
        self.now_s = now_s
        self.made: list[Assignment] = []
        self.floor = Floor(plan, now_s)
        self.passed: set[UnitState] = set()
        """Units that could not begin after all."""
        self.stripped = False
        """Whether a unit has moved to another pool since the pools were gone through."""

    def place(
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

    def next_of(self, unit: UnitState, kind: Kind, *, last: bool) -> int | None:
        """Return the next test of a unit that such a worker can run (or skip): a helper begins at the end."""
        for test in reversed(unit.tests) if last else unit.tests:
            demand = self.pools.tests[test].demand
            runs = demand is None or kind.possible[demand] or not self.plan.machines.possible(demand)
            if runs and (kind.can_run is None or test in kind.can_run):
                return test
        return None

    def open(self, worker: Worker, unit: UnitState, need: Need | None, chosen: Chosen) -> None:
        """Begin a unit: with its devices, or where they are not to be had with those of its first test only."""
        first = self.next_of(unit, worker.kind, last=bool(unit.workers))
        if need is None and unit.demand is not None:
            unit.bare = True  # what it would hold is to be had nowhere
        holds = need is not None and not unit.bare
        sources = self.floor.sources(worker, need, chosen) if need is not None and holds else []
        self.plan.open(worker, unit, self.now_s, need if holds else None, chosen, sources)
        self.floor.changed(worker)
        if first is not None and need is not None and unit.bare and self.pools.tests[first].demand == unit.demand:
            self.pools.take_of(unit, first)
            self.place(worker, first, unit, need, chosen)
        elif not self.go_on(worker, sources) and not worker.line:
            if worker.unit is not None and holds:
                self.plan.close(worker, self.now_s)
            if worker.unit is None and holds and not unit.workers:
                self.pools.strip(unit)
                self.stripped = True
            elif worker.unit is None:
                self.passed.add(unit)
            return
        while not self.plan.keep_order and self.go_on(worker):
            pass

    def go_on(self, worker: Worker, sources: Sequence[Placed] = ()) -> bool:
        """Assign the next test of a worker's open unit. One that cannot go on gives the unit's devices back."""
        unit, line = worker.unit, worker.line
        if unit is None:
            return False
        test = self.next_of(unit, worker.kind, last=unit.workers[0] != worker.name)
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
        self.place(worker, test, unit, need, chosen, sources)
        return True

    def _with_help(self, unit: UnitState) -> tuple[float, float]:
        """Expect how long a unit takes from now, and how long with one worker more, which has to set it up first."""
        lines = [self.plan.workers[name].line for name in unit.workers]
        busy_s = sum(line[-1].ends_s(self.now_s) - self.now_s for line in lines if line)
        setup_s = self.pools.setup_s(unit)
        together_s = unit.work_s + busy_s
        helped_s = (together_s + setup_s) / (len(lines) + 1)
        return together_s / len(lines), max(helped_s, setup_s + unit.work_s / max(1, len(unit.tests)))

    def split(self) -> bool:
        """Let an idle worker that found nothing help with a unit, where that pays."""
        for worker in self.floor.workers():
            kind = worker.kind
            best: tuple[float, UnitState, Need | None, Chosen] | None = None
            for unit in self.plan.opened():
                if not unit.unit.divisible or unit in self.passed or self.next_of(unit, kind, last=True) is None:
                    continue
                alone_s, helped_s = self._with_help(unit)
                gain_s = alone_s - helped_s
                if helped_s > WORTH * alone_s or (best is not None and gain_s <= best[0]):
                    continue
                test = self.next_of(unit, kind, last=True)
                demand = unit.demand if test is None or not unit.bare else self.pools.tests[test].demand
                need = None if demand is None else kind.needs[demand]
                if demand is not None and (need is None or not kind.possible[demand]):
                    continue
                chosen = () if need is None else self.floor.fit(need, kind, [worker], unit.work_s / 2, unit.order)
                if chosen is not None:
                    best = gain_s, unit, need, chosen
            if best is not None:
                self.open(worker, *best[1:])
                return True
        return False
