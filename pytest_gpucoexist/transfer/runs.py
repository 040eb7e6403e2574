"""The runs of a piece of memory, read block by block; blocks that are right cost a comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pytest_gpucoexist.transfer.edges import Reading
from pytest_gpucoexist.transfer.labels import Window

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pytest_gpucoexist.transfer.content import Run
    from pytest_gpucoexist.transfer.frame import Area, Plan
    from pytest_gpucoexist.transfer.words import Words

__all__ = ["read"]

_MANY = 64  # runs of a block
_FINE = 1024  # runs of an area
_FEW = 4  # runs of a block when there are _FINE


def read(words: Words, plan: Plan, area: Area, found: NDArray[np.uint8], at: int, runs: list[Run]) -> None:
    """Append the runs of a piece of an area that begins at the area's byte `at`; each ends where a block does.

    A block with very many is told coarsely: one run of all that are alike, with the number of their places. So is one
    with more than a few, once there are very many. What one block holds last is first looked for in the next.
    """
    start = area.start + at
    for low, high in words.differing(found, area.epoch, start):
        first = (start + low) // 8
        end = -(-(start + high) // 8)
        expected = words.read(area.epoch, 8 * first, 8 * (end - first))
        real = start + low - 8 * first
        here = expected.copy()
        here[real : real + high - low] = found[low:high]
        window = Window(
            expected=expected.view(np.uint64),
            found=here.view(np.uint64),
            first=first,
            real_first=real,
            real_end=real + high - low,
            raw=found,
            origin=low - real,
        )
        reading = Reading(words, plan, area, window)
        before = runs[-1].content if runs else None
        on = reading.all_of(before) if before is not None else None
        runs += [on] if on is not None else reading.runs(_MANY if len(runs) < _FINE else _FEW)
