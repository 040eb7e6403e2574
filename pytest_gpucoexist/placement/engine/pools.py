"""Tests that wait to be handed out: loose ones and unopened units, by what they need, the most urgent last."""

from __future__ import annotations

import statistics
from bisect import insort
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from pytest_gpucoexist.placement.engine.urgency import Urgency
    from pytest_gpucoexist.placement.engine.values import Test, Unit

__all__ = ["UNKNOWN_S", "Pool", "Pools", "UnitState", "first_of"]

UNKNOWN_S = 1.0
"""Expected of every test when no duration of any test is known: then only the order counts."""

LEARNT_FROM = 5
"""After so many tests of a demand something is known of the others."""

Entry = tuple[float, int]
"""Urgency, and minus the place in the suite: among equals the earlier is first."""


class UnitState:
    """A unit with its pending tests in the order of the suite, and the workers that have it open."""

    __slots__ = (
        "bare",
        "demand",
        "order",
        "setup_s",
        "setups",
        "tests",
        "total",
        "unit",
        "urgency",
        "work_s",
        "workers",
    )

    def __init__(self, unit: Unit) -> None:
        """Begin with no test."""
        self.unit = unit
        self.demand: int | None = unit.demand
        self.bare = unit.demand is None
        """Whether nothing is held between its tests."""
        self.setup_s = unit.setup_s
        self.tests: deque[int] = deque()
        self.workers: list[str] = []
        self.order = 0
        self.total = 0
        self.urgency = 0.0
        self.work_s = 0.0
        """Expected duration of the pending tests together."""
        self.setups = 0


class Pool:
    """What waits for one demand (None: no device)."""

    __slots__ = ("demand", "loose", "units")

    def __init__(self, demand: int | None) -> None:
        """Begin empty."""
        self.demand = demand
        self.loose: list[Entry] = []
        self.units: list[tuple[float, int, UnitState]] = []

    def head(self) -> Entry | None:
        """Return the most urgent entry."""
        if self.loose and self.units:
            return max(self.loose[-1], self.units[-1][:2])
        if self.loose:
            return self.loose[-1]
        return self.units[-1][:2] if self.units else None


class Pools:
    """All pending tests. Durations that are unknown are the median of their unit's, else of all that are known."""

    def __init__(
        self, tests: Sequence[Test], units: Iterable[Unit], expected_s: dict[int, float] | None = None
    ) -> None:
        """Take the suite. Raises ValueError when a test names a unit that is not given."""
        self.tests = {test.id: test for test in tests}
        self.units = {unit.name: UnitState(unit) for unit in units}
        if unknown := {test.unit for test in tests if test.unit is not None} - self.units.keys():
            raise ValueError(f"units named by tests, but not given: {', '.join(map(str, sorted(map(str, unknown))))}")
        self.expected_s = _expected(tests) if expected_s is None else expected_s
        self._unknown = {test.id for test in tests if test.duration_s is None}
        self._learnt: dict[str, tuple[int, float]] = {}
        self._longest: dict[int | None, tuple[int, float]] = {}
        self.by_demand: dict[int | None, Pool] = {}
        self.load_s: dict[int | None, float] = {}
        """Expected duration of all pending tests together, by demand."""
        self.count = 0
        self._setup_s = _median([unit.setup_s for unit in self.units.values() if unit.setup_s is not None])

    def copy(self) -> Pools:
        """Return the whole suite once more, not yet sorted in."""
        return Pools(list(self.tests.values()), [unit.unit for unit in self.units.values()], self.expected_s)

    def setup_s(self, unit: UnitState) -> float:
        """Return what another set-up of a unit costs: as measured, else as other units', else two of its tests."""
        if unit.setup_s is not None:
            return unit.setup_s
        if self._setup_s is not None:
            return self._setup_s
        return 2 * unit.work_s / max(1, len(unit.tests))

    def learn(self, test_id: int, seconds: float) -> None:
        """Expect of tests that no earlier run has timed what others of their unit took."""
        if test_id not in self._unknown:
            return
        test = self.tests[test_id]
        if test.unit is None:
            count, longest_s = self._longest.get(test.demand, (0, 0.0))
            self._longest[test.demand] = count + 1, max(longest_s, seconds)
            return
        count, mean_s = self._learnt.get(test.unit, (0, 0.0))
        mean_s += (seconds - mean_s) / (count + 1)
        self._learnt[test.unit] = count + 1, mean_s
        unit = self.units[test.unit]
        untimed = [each for each in unit.tests if each in self._unknown]
        if untimed and not 0.8 <= mean_s / max(self.expected_s[untimed[0]], 1e-9) <= 1.25:
            for each in untimed:
                more_s = mean_s - self.expected_s[each]
                self.expected_s[each] = mean_s
                unit.work_s = max(0.0, unit.work_s + more_s)
                demand = self.tests[each].demand
                self.load_s[demand] = max(0.0, self.load_s[demand] + more_s)

    def likely_s(self, test_id: int) -> float:
        """Expect how long a test takes: as recorded; else, of a loose one, as long as any with its demand took."""
        if test_id in self._unknown and self.tests[test_id].unit is None:
            count, longest_s = self._longest.get(self.tests[test_id].demand, (0, 0.0))
            if count >= LEARNT_FROM:
                return longest_s
        return self.expected_s[test_id]

    def measured(self, unit: UnitState, setup_s: float) -> None:
        """Remember what a set-up took."""
        unit.setup_s = setup_s if unit.setup_s is None else (unit.setup_s + setup_s) / 2
        if self._setup_s is None:
            self._setup_s = setup_s

    def fill(self, urgency: Urgency) -> None:
        """Sort every test in, by `urgency(seconds, demand, place in the suite)` of itself or of its unit."""
        self.by_demand.clear()
        self.load_s.clear()
        self.count = len(self.tests)
        grouped: dict[int | None, list[Entry]] = {}
        for unit in self.units.values():
            unit.tests.clear()
            unit.work_s = 0.0
        for test in self.tests.values():
            self.load_s[test.demand] = self.load_s.get(test.demand, 0.0) + self.expected_s[test.id]
            if test.unit is None:
                entry = (urgency(self.expected_s[test.id], test.demand, test.id), -test.id)
                grouped.setdefault(test.demand, []).append(entry)
            else:
                unit = self.units[test.unit]
                unit.tests.append(test.id)
                unit.work_s += self.expected_s[test.id]
        for demand, entries in grouped.items():
            self._pool(demand).loose = sorted(entries)
        for unit in self.units.values():
            if unit.tests:
                unit.order = unit.tests[0]
                unit.total = len(unit.tests)
                if unit.bare:
                    unit.demand = self.tests[unit.order].demand
                unit.urgency = urgency(unit.work_s + self.setup_s(unit), unit.demand, unit.order)
                self.shelve(unit)

    def _pool(self, demand: int | None) -> Pool:
        pool = self.by_demand.get(demand)
        if pool is None:
            pool = self.by_demand[demand] = Pool(demand)
        return pool

    def shelve(self, unit: UnitState) -> None:
        """Offer a unit that no worker has open. Where nothing is held, it needs first what its first test needs."""
        unit.order = unit.tests[0]
        if unit.bare:
            unit.demand = self.tests[unit.order].demand
        insort(self._pool(unit.demand).units, (unit.urgency, -unit.order, unit), key=lambda entry: entry[:2])

    def take_unit(self, pool: Pool, unit: UnitState) -> None:
        """Stop offering a unit, because a worker opens it."""
        pool.units = [entry for entry in pool.units if entry[2] is not unit]

    def take_loose(self, pool: Pool, entry: Entry) -> int:
        """Hand out one loose test."""
        if pool.loose[-1] == entry:
            pool.loose.pop()
        else:
            pool.loose.remove(entry)
        self._handed_out(-entry[1])
        return -entry[1]

    def _handed_out(self, test: int) -> None:
        self.count -= 1
        demand = self.tests[test].demand
        self.load_s[demand] = max(0.0, self.load_s[demand] - self.expected_s[test])

    def take_of(self, unit: UnitState, test: int) -> None:
        """Hand out one test of a unit."""
        if unit.tests and unit.tests[0] == test:
            unit.tests.popleft()
        else:
            unit.tests.remove(test)
        unit.work_s = max(0.0, unit.work_s - self.expected_s[test]) if unit.tests else 0.0
        self._handed_out(test)

    def strip(self, unit: UnitState) -> None:
        """Hold nothing between the tests of an offered unit any more: its devices and a test's are not free at once."""
        self.take_unit(self.by_demand[unit.demand], unit)
        unit.bare = True
        self.shelve(unit)

    def put_back(self, test_id: int, urgency: Urgency) -> None:
        """Make a test pending again, and offer its unit when nobody has it open."""
        test = self.tests[test_id]
        self.count += 1
        self.load_s[test.demand] += self.expected_s[test_id]
        if test.unit is None:
            entry = (urgency(self.expected_s[test_id], test.demand, test_id), -test_id)
            insort(self._pool(test.demand).loose, entry)
            return
        unit = self.units[test.unit]
        if unit.tests and not unit.workers:
            self.take_unit(self.by_demand[unit.demand], unit)
        unit.tests = deque(sorted((*unit.tests, test_id)))
        unit.work_s += self.expected_s[test_id]
        if not unit.workers:
            self.shelve(unit)

    def without_device(self) -> int:
        """Count the pending tests that need no device."""
        pool = self.by_demand.get(None)
        loose = 0 if pool is None else len(pool.loose)
        return loose + sum(self.tests[test].demand is None for unit in self.units.values() for test in unit.tests)

    def likely(self, after: int | None, can_run: Collection[int] | None, elsewhere: Collection[int] = ()) -> int | None:
        """Guess which pending test comes next on a worker that runs this one: the next of what needs the same.

        Not one that is expected `elsewhere`, while there is another.
        """
        pools = list(self.by_demand.values())
        same = None if after is None else self.by_demand.get(self.tests[after].demand)
        for pool in pools if same is None else [same, *pools]:
            top = pool.loose if len(pool.loose) <= len(elsewhere) else pool.loose[-len(elsewhere) - 1 :]
            entry = first_of([each for each in top if -each[1] not in elsewhere], can_run)
            if entry is None:
                entry = first_of(pool.loose, can_run)
            if entry is not None:
                return -entry[1]
        return next((pool.units[-1][2].tests[0] for pool in pools if pool.units), None)

    def pending(self) -> list[int]:
        """Return every pending test in the order of the suite."""
        found = [-entry[1] for pool in self.by_demand.values() for entry in pool.loose]
        for unit in self.units.values():
            found += unit.tests
        return sorted(found)


def first_of(entries: Sequence[Entry], can_run: Collection[int] | None) -> Entry | None:
    """Return the most urgent entry that a worker collected."""
    if can_run is None:
        return entries[-1] if entries else None
    return next((entry for entry in reversed(entries) if -entry[1] in can_run), None)


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _expected(tests: Sequence[Test]) -> dict[int, float]:
    known = [test.duration_s for test in tests if test.duration_s is not None]
    overall = _median(known)
    of_unit: dict[str, list[float]] = {}
    missing = False
    for test in tests:
        missing |= test.duration_s is None
        if test.unit is not None and test.duration_s is not None:
            of_unit.setdefault(test.unit, []).append(test.duration_s)
    usual = {name: statistics.median(values) for name, values in of_unit.items()} if missing else {}
    fallback = UNKNOWN_S if overall is None else overall
    return {
        test.id: test.duration_s if test.duration_s is not None else usual.get(test.unit or "", fallback)
        for test in tests
    }
