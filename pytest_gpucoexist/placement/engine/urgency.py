"""In which order tests should begin: a number for each, the largest first.

Longest first; what needs several devices counts as longer, because they are seldom free together; a test without a
device can fill any gap, and counts as shorter.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_gpucoexist.placement.engine.machines import Machines

__all__ = ["Urgency", "in_order", "usual"]

Urgency = Callable[[float, "int | None", int], float]
"""Of seconds, demand and place in the suite."""

WIDTH_POWER = 2.0
FILLER = 0.25
LARGER = 1e-3
"""Of tests that take as long (as all do whose duration is unknown) those that need more of a device are first."""


def in_order(_seconds: float, _demand: int | None, _place: int) -> float:
    """Make all equal, so that the suite's order decides."""
    return 0.0


def usual(
    machines: Machines,
    *,
    width_power: float = WIDTH_POWER,
    filler: float = FILLER,
    seed: int | None = None,
    by_demand: float = 0.0,
    by_test: float = 0.0,
) -> Urgency:
    """Return the rule for a suite. With a `seed`, each demand and each test is up to so much more or less urgent.

    `by_demand` and `by_test` are the deviations of the logarithm of a random factor: 0.3 is about a third.
    """
    factors: dict[int | None, float] = {None: filler}

    def factor(demand: int | None) -> float:
        found = factors.get(demand)
        if found is None:
            need = None if demand is None else machines.need(demand)
            found = 1.0 if need is None else max(1, need.width) ** width_power * (1 + LARGER * need.weight)
            factors[demand] = found
        return found

    if seed is None:
        return lambda seconds, demand, _place: seconds * factor(demand)

    def varied(seconds: float, demand: int | None, place: int) -> float:
        of_demand = random.Random(f"{seed} {demand}").lognormvariate(0.0, by_demand)
        of_test = random.Random(f"{seed} {demand} {place}").lognormvariate(0.0, by_test)
        return seconds * factor(demand) * of_demand * of_test

    return varied
