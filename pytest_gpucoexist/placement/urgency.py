"""In which order tests should begin: a number for each, the largest first.

Longest first; a test with many devices is as urgent as one that is longer by their number, because it finds room
seldom. A test without a device comes after those with one, unless it is so long that it would end last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpucoexist.placement.plan import Plan

__all__ = ["in_order", "usual"]


def in_order(_seconds: float, _demand: int | None) -> float:
    """Make all equal, so that the suite's order decides."""
    return 0.0


def usual(plan: Plan) -> Callable[[float, int | None], float]:
    """Return the rule above for a suite."""
    width: dict[int, float] = {}

    def urgency(seconds: float, demand: int | None) -> float:
        if demand is None:
            return seconds / 4
        found = width.get(demand)
        if found is None:
            found = width[demand] = plan.width(demand)
        return seconds * found

    return urgency
