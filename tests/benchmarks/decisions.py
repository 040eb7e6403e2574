"""How long the scheduler thinks: 20,000 pending tests of 50 kinds, 16 devices of two vendors, some in units."""

from __future__ import annotations

import random
import statistics
import time
from typing import TYPE_CHECKING

from pytest_gpucoexist.placement.engine import Engine
from pytest_gpucoexist.placement.engine.values import Demand, Test, Unit
from tests.benchmarks.running import Row
from tests.placement.simulated import group, machine, site

if TYPE_CHECKING:
    from pytest_gpucoexist.placement.engine.values import Site

__all__ = ["decisions"]

TESTS, DEVICES, DEMANDS, WORKERS, UNITS = 20_000, 16, 50, 32, 40
ALLOWED_S = 0.001
SET_UP_S = 0.05


def _suite(seed: int) -> tuple[Site, list[Test], list[Unit]]:
    chance = random.Random(seed)
    there = machine(["nvidia"] * (DEVICES * 3 // 4) + ["amd"] * (DEVICES // 4), nodes=2)
    demands = []
    for number in range(DEMANDS - 2):
        vendor = chance.choice(["nvidia", "nvidia", "amd", None])
        count = 1 if number % 6 else chance.randint(2, 4)
        demands.append(Demand(groups=(group(there, vendor, count, chance.choice([None, 2, 4, 6, 8, 12])),)))
    pair = group(there, "nvidia"), group(there, "amd")
    demands += [Demand(groups=pair), Demand(groups=pair, closest_pair=True)]
    units = [Unit(name=f"unit{number}", demand=chance.randrange(DEMANDS), setup_s=1.0) for number in range(UNITS)]
    tests = []
    for number in range(TESTS):
        unit = units[number * UNITS // TESTS] if number % 4 == 0 else None
        demand = unit.demand if unit is not None else chance.choice([None, *range(DEMANDS)])
        name = None if unit is None else unit.name
        tests.append(Test(id=number, demand=demand, unit=name, duration_s=chance.lognormvariate(-2.5, 1.2)))
    return site(there, demands), tests, units


def decisions(*, quick: bool) -> list[Row]:
    """Measure setting up, and decisions at the begin of a run: each after the end of a test that ran."""
    there, tests, units = _suite(0)
    ready_s, took_s = [], []
    for _ in range(3 if quick else 7):
        began_s = time.thread_time()
        engine = Engine(tests, units=units, sites=[there])
        for number in range(WORKERS):
            engine.worker_up(f"gw{number}", there.name)
        ready_s.append(time.thread_time() - began_s)
    length_s = {test.id: test.duration_s or 0.0 for test in tests}
    engine.decide(0.0)
    names = [f"gw{number}" for number in range(WORKERS)]
    for _ in range(1000 if quick else 5000):
        ending = []
        for name in names:
            begun_s = engine.began_s(name)
            if begun_s is not None:
                test = engine.assigned(name)[0].test
                ending.append((begun_s + length_s[test], name, test))
        now_s, name, test = min(ending)
        began_s = time.thread_time()
        engine.finished(name, test, now_s)
        engine.decide(now_s)
        took_s.append(time.thread_time() - began_s)
    return [
        _row(
            f"decision, {TESTS:,} pending, {DEVICES} devices, {DEMANDS} demands, {WORKERS} workers", took_s, ALLOWED_S
        ),
        _row("  its set-up, once a run", ready_s, SET_UP_S),
    ]


def _row(measure: str, seconds: list[float], allowed_s: float) -> Row:
    """Make a line. Time is this thread's CPU time: a decision waits for nothing, and the clock measures neighbours."""
    median_s = statistics.median(seconds)
    late_s = sorted(seconds)[int(0.99 * len(seconds))]
    return Row(
        measure=measure,
        median=f"CPU {1e6 * median_s:.0f} µs",
        spread=f"99 %: {1e6 * late_s:.0f} µs",
        target=f"{1e3 * allowed_s:g} ms CPU",
        met=median_s <= allowed_s,
    )
