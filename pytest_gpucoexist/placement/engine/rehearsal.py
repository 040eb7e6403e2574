"""Try several orders on the expected durations before the run, with the policy itself, and take the best.

Longest first is seldom far from the best, but small suites with wide tests, shares or units can lose a tenth. What is
tried is bounded by what it costs beside what the run will take; the same suite always gives the same order.
"""

from __future__ import annotations

import random
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from pytest_gpucoexist.placement.engine.account import Account
from pytest_gpucoexist.placement.engine.policy import decide
from pytest_gpucoexist.placement.engine.urgency import usual

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.placement.engine.plan import Plan
    from pytest_gpucoexist.placement.engine.urgency import Urgency

__all__ = ["best_urgency", "bound_s", "rehearse"]

COST_S = 80e-6
"""About what one test of a rehearsal costs."""

SPENT = 0.02
SPENT_MOST_S = 0.5
"""A rehearsal may cost this part of the time that the run takes at least, and never more than this."""

GOOD = 1.03
"""This close to the bound, with durations that are off by as much, nothing more is tried."""

WORTH = 0.99
"""An order must be better by this to replace the usual one."""

SLIGHTLY_OFF = 2
ERROR = 0.03
"""How often each order is tried with durations that are off by up to this part."""

KNOWN = 0.8
"""The part of the tests whose duration must be known: orders of guesses are not worth comparing."""


def best_urgency(plan: Plan) -> Urgency | None:
    """Return the best order found, or None when the usual one is, or when trying does not pay."""
    pools = plan.pools
    known = sum(test.duration_s is not None for test in pools.tests.values())
    least_s = bound_s(plan)
    tries = int(min(SPENT * least_s, SPENT_MOST_S) / (COST_S * max(1, len(pools.tests))))
    if tries < 2 or known < KNOWN * len(pools.tests):
        return None
    best: Urgency | None = None
    best_s, tries = _worst(plan, usual(plan.machines), float("inf"), tries)
    for urgency in _orders(plan):
        if best_s <= GOOD * least_s or tries <= 0:
            break
        span_s, tries = _worst(plan, urgency, WORTH * best_s, tries)
        if span_s < WORTH * best_s:
            best, best_s = urgency, span_s
    return best


def _worst(plan: Plan, urgency: Urgency, give_up_s: float, tries: int) -> tuple[float, int]:
    """Rehearse an order with durations that are slightly off, as they will be: one that depends on them is no good."""
    worst_s = 0.0
    for off in range(SLIGHTLY_OFF + 1):
        worst_s = max(worst_s, rehearse(plan, urgency, give_up_s, off))
        tries -= 1
        if worst_s >= give_up_s:
            break
    return worst_s, tries


def _orders(plan: Plan) -> Iterator[Urgency]:
    yield usual(plan.machines, width_power=0.0, filler=1.0)
    yield usual(plan.machines, width_power=1.0, filler=1.0)
    for seed in range(10_000):
        power = (0.0, 1.0, 2.0)[seed % 3]
        wide, single = ((0.3, 0.0), (0.0, 0.3), (1.0, 0.5))[seed // 3 % 3]
        yield usual(plan.machines, width_power=power, filler=1.0, seed=seed, by_demand=wide, by_test=single)


def rehearse(plan: Plan, urgency: Urgency, give_up_s: float = float("inf"), off: int = 0) -> float:
    """Return how long the suite takes when every test takes what is expected, or `give_up_s` once it is as long.

    With `off`, each takes a little more or less, always the same for the same number.
    """
    error = random.Random(off)
    trial = plan.copy(Account())
    pools = trial.pools
    pools.fill(urgency)
    running: list[tuple[float, int, str]] = []
    begun: dict[str, int] = {}
    now_s, number = 0.0, 0
    while True:
        decide(trial, now_s)
        for name, worker in trial.workers.items():
            if worker.line and worker.line[0].start_s is not None and begun.get(name) != worker.line[0].test:
                placed = worker.line[0]
                begun[name] = placed.test
                number += 1
                seconds = placed.expected_s * (1 + (error.uniform(-ERROR, ERROR) if off else 0.0))
                heappush(running, (now_s + seconds, number, name))
        if not running:
            return now_s if not pools.count else give_up_s
        now_s, _, name = heappop(running)
        if now_s >= give_up_s:
            return give_up_s
        trial.end(trial.workers[name].line[0], now_s)


def bound_s(plan: Plan) -> float:
    """Return a time below which no schedule can end: of demand over capacity, of work over workers, the longest test.

    Demand is counted for each set of devices that some demand is limited to, together with all that is limited to it.
    """
    pools = plan.pools
    total_s = longest_s = 0.0
    loads: dict[frozenset[tuple[str, int]], float] = {}
    for demand, load_s in pools.load_s.items():
        total_s += load_s
        if demand is None:
            continue
        devices = set()
        least = float("inf")
        for ledger in plan.machines.ledgers.values():
            need = plan.machines.need_at(ledger, demand)
            if need is not None:
                devices |= {(ledger.site.name, device) for device in need.order}
                least = min(least, need.weight)
        if devices:
            key = frozenset(devices)
            loads[key] = loads.get(key, 0.0) + load_s * least
    for test, seconds in pools.expected_s.items():
        if test in pools.tests:
            longest_s = max(longest_s, seconds)
    for unit in pools.units.values():
        if unit.tests:
            setup_s = pools.setup_s(unit)
            total_s += setup_s
            longest_s = max(longest_s, setup_s)
    sets = [sum(load_s for inner, load_s in loads.items() if inner <= outer) / len(outer) for outer in loads]
    return max([longest_s, total_s / max(1, len(plan.workers)), *sets])
