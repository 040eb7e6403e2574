"""Whole runs of random suites on random machines, with workers that crash and devices that others hold."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import HealthCheck, given, settings, strategies as st

from pytest_gpucoexist.placement.engine import Engine
from pytest_gpucoexist.placement.engine.values import Demand, Site, Test, Unit
from tests.placement.simulated import Outcome, Simulation, Times, group, machine, site


@dataclass(frozen=True, kw_only=True)
class Case:
    """A suite, a machine, and what happens."""

    there: Site
    tests: tuple[Test, ...]
    units: tuple[Unit, ...]
    actual_s: dict[int, float]
    setups_s: dict[str, float]
    workers: int
    times: Times
    crashes: int
    refusals: float
    keep_order: bool
    seed: int

    def engine(self) -> Engine:
        return Engine(self.tests, units=self.units, sites=[self.there], keep_order=self.keep_order)

    def run(self, engine: Engine) -> Outcome:
        return Simulation(
            engine,
            self.there,
            self.tests,
            self.workers,
            actual_s=self.actual_s,
            setups_s=self.setups_s,
            times=self.times,
            crashes=self.crashes,
            refusals=self.refusals,
            seed=self.seed,
        ).run()


_SECONDS = st.sampled_from([0.0, 0.001, 0.02, 0.1, 0.5, 3.0])


@st.composite
def cases(draw: st.DrawFn) -> Case:
    vendors = draw(st.lists(st.sampled_from(["nvidia", "amd"]), min_size=1, max_size=5))
    there = machine(vendors, nodes=draw(st.integers(1, 2)))
    demands: list[Demand | None] = [
        draw(
            st.builds(
                lambda vendor, count, gib, exclusive, same_node: Demand(
                    groups=(group(there, vendor, count, gib, exclusive=exclusive, same_node=same_node),)
                ),
                st.sampled_from([None, vendors[0]]),
                st.integers(1, max(1, vendors.count(vendors[0]))),
                st.sampled_from([None, 2, 6, 24]),
                st.booleans(),
                st.just(False),
            )
        )
        for _ in range(draw(st.integers(1, 4)))
    ]
    if {"nvidia", "amd"} <= set(vendors):
        pair = (group(there, "nvidia", 1, draw(st.sampled_from([None, 4]))), group(there, "amd"))
        demands.append(Demand(groups=pair, closest_pair=draw(st.booleans())))
    demands.append(None)
    which = st.sampled_from([None, *range(len(demands))])
    names = ["a", "b", "c"][: draw(st.integers(0, 3))]
    units = tuple(
        Unit(
            name=name,
            demand=draw(which),
            setup_s=draw(st.sampled_from([None, 0.2, 1.0])),
            divisible=draw(st.booleans()),
        )
        for name in names
    )
    tests = tuple(
        Test(
            id=number,
            demand=draw(which),
            unit=draw(st.sampled_from([None, *names])),
            duration_s=draw(st.none() | _SECONDS),
        )
        for number in range(draw(st.integers(1, 40)))
    )
    wrong = draw(st.sampled_from([0.3, 1.0, 4.0]))
    return Case(
        there=site(there, demands),
        tests=tests,
        units=units,
        actual_s={
            test.id: wrong * (test.duration_s if test.duration_s is not None else draw(_SECONDS)) for test in tests
        },
        setups_s={unit.name: unit.setup_s or 0.3 for unit in units},
        workers=draw(st.integers(1, 8)),
        times=Times(hand_over_s=draw(st.sampled_from([None, 0.0005]))),
        crashes=draw(st.integers(0, 3)),
        refusals=draw(st.sampled_from([0.0, 0.0, 0.2])),
        keep_order=draw(st.booleans()),
        seed=draw(st.integers(0, 3)),
    )


MANY = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@MANY
@given(cases())
def test_every_test_is_run_once_and_devices_are_never_over_their_capacity(case: Case) -> None:
    engine = case.engine()
    outcome = case.run(engine)
    assert sorted([test for test, *_ in outcome.ran] + outcome.crashed) == [test.id for test in case.tests]
    assert engine.is_done
    assert engine.pending == ()
    nowhere = {number for number, demand in enumerate(case.there.demands) if demand is None}
    cannot = {test.id for test in case.tests if test.demand in nowhere}
    assert set(outcome.skipped) == cannot - set(outcome.crashed)
    for ledger in engine._machines.ledgers.values():
        assert set(ledger.level) == {0}
        assert not any(ledger.bookings)


@MANY
@given(cases())
def test_the_same_events_give_the_same_decisions(case: Case) -> None:
    assert case.run(case.engine()).ran == case.run(case.engine()).ran


@MANY
@given(cases())
def test_what_devices_did_adds_up(case: Case) -> None:
    engine = case.engine()
    outcome = case.run(engine)
    end_s = outcome.ended_s
    told = engine.statistics(end_s)
    capacity = {(case.there.name, device.key): device.capacity_bytes or 1 for device in case.there.devices}
    for (site_name, key), busy_s in told.busy_s.items():
        spans = [
            (interval.start_s, interval.end_s, interval.memory_bytes or capacity[site_name, key])
            for interval in told.intervals
            if interval.key == key
        ]
        assert all(end is not None for _, end, _ in spans)
        assert busy_s <= end_s - told.started_s + 1e-6
        for moment, _, _ in spans:
            used = sum(size for start, end, size in spans if end is not None and start <= moment < end)
            assert used <= capacity[site_name, key]
        idle_s = sum(idle.end_s - idle.start_s for idle in told.idle if idle.key == key)
        assert idle_s <= end_s - told.started_s + 1e-6
