"""Plans in a row: one number after the other, and for tiny payloads only numbers whose tags can be told apart."""

from __future__ import annotations

from typing import Any

from pytest_gpucoexist.transfer.epochs import (
    DATA,
    UNDER_DESTINATION,
    UNDER_READING,
    UNDER_RING,
    epoch_of,
)
from pytest_gpucoexist.transfer.frame import Plan
from pytest_gpucoexist.transfer.splitmix import word

__all__ = ["Plans"]

APART_BITS = 3
"""A payload of less than a word differs from all that may lie in its place by this many bits, so that one or two
flipped bits are never taken for it: of one byte, 37 in 256 values would be that close."""


class Plans:
    """Makes the plans of one seed. It belongs to one process, which sends them to the endpoints."""

    def __init__(self, seed: int, first: int = 0) -> None:
        """Begin with transfer number `first`."""
        self.seed = seed
        self._next = first

    def next(self, size_bytes: int, **fields: Any) -> Plan:
        """Return the next plan; `fields` are those of `Plan`. Raises ValueError after 8,192: a seed has no more."""
        plan = Plan(seed=self.seed, transfer=self._next, size_bytes=size_bytes, **fields)
        while size_bytes < 8 and not _apart(plan):
            self._next += 1
            plan = Plan(seed=self.seed, transfer=self._next, size_bytes=size_bytes, **fields)
        self._next += 1
        return plan


def _apart(plan: Plan) -> bool:
    """Whether all that may lie where the data belong differs from it enough, and from each other."""
    mask = (1 << (8 * plan.size_bytes)) - 1
    epochs = [epoch_of(plan.transfer, role) for role in (UNDER_DESTINATION, UNDER_RING, UNDER_READING)]
    if plan.transfer:
        epochs.append(epoch_of(plan.transfer - 1, DATA))
    data = word(plan.seed, epoch_of(plan.transfer, DATA), 0) & mask
    others = [0, mask, *(word(plan.seed, epoch, 0) & mask for epoch in epochs)]
    return len(set(others)) == len(others) and all((data ^ other).bit_count() >= APART_BITS for other in others)
