"""What the verification of transfers costs a core: words written and compared, beside a copy of the same memory."""

from __future__ import annotations

import statistics
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.benchmarks.running import Row

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["words"]

MIB = 1 << 20
TARGET_GBPS = 1.0


def words(*, quick: bool) -> list[Row]:
    """Time writing and comparing words, a copy, and naming what is wrong with memory that is wrong everywhere."""
    import numpy as np

    from pytest_gpucoexist.transfer.diagnosis import check
    from pytest_gpucoexist.transfer.plans import Plans
    from pytest_gpucoexist.transfer.words import Words

    size, rounds = (64 * MIB + 13, 5) if quick else (256 * MIB + 13, 15)
    maker = Words(0x5EED)
    memory, other = np.empty(size, np.uint8), np.empty(size, np.uint8)
    maker.fill(memory, 8)
    other[:] = memory

    def compared() -> None:
        if any(maker.differing(memory, 8)):
            raise RuntimeError("the words written are not those compared with")

    calls: dict[str, tuple[Callable[[], object], float | None]] = {
        "words written": (lambda: maker.fill(memory, 8), TARGET_GBPS),
        "words written, buffer and stream at odd bytes": (lambda: maker.fill(other[3:], 9, 5), TARGET_GBPS),
        "words compared": (compared, TARGET_GBPS),
        "memory copied": (lambda: np.copyto(other, memory), None),
        "memory compared with a copy": (lambda: np.array_equal(other, memory), None),
    }
    rows = _timed(calls, size, rounds, quick=quick)

    plan = Plans(0x5EED, first=3).next(size // 8, zone_bytes=0)
    expected = plan.after("destination")
    wrong: dict[str, Any] = {
        "nothing arrived": maker.read(8 * plan.transfer + 1, 0, plan.size_bytes),
        "shifted by 3 bytes": maker.read(8 * plan.transfer, 3, plan.size_bytes),
        "random bytes": np.random.default_rng(1).integers(0, 256, plan.size_bytes, np.uint8),
        "one bit of 64 bytes stuck": maker.read(8 * plan.transfer, 0, plan.size_bytes),
    }
    wrong["one bit of 64 bytes stuck"][::64] |= 4
    told: dict[str, tuple[Callable[[], object], float | None]] = {
        f"wrong everywhere, named: {name}": (partial(check, expected, found), None) for name, found in wrong.items()
    }
    return rows + _timed(told, plan.size_bytes, 3 if quick else 5, quick=quick)


def _timed(
    calls: dict[str, tuple[Callable[[], object], float | None]], size: int, rounds: int, *, quick: bool
) -> list[Row]:
    """Time calls in turn, so that what else the machine does meets them alike. A quick run judges CPU time."""
    wall: dict[str, list[float]] = {name: [] for name in calls}
    cpu: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name, (call, _) in calls.items():
            started, busy = time.perf_counter(), time.thread_time()
            call()
            if number:  # the first touches the pages
                cpu[name].append(size / 1e9 / (time.thread_time() - busy))
                wall[name].append(size / 1e9 / (time.perf_counter() - started))
    rows = []
    for name, (_, target) in calls.items():
        judged = statistics.median((cpu if quick else wall)[name])
        rows.append(
            Row(
                measure=f"{name}, {size / MIB:.0f} MiB, {rounds} times",
                median=f"{statistics.median(wall[name]):.2f} GB/s (CPU {statistics.median(cpu[name]):.2f})",
                spread=f"{min(wall[name]):.2f} to {max(wall[name]):.2f} GB/s",
                target=f"{target:g} GB/s{' CPU' if quick else ''}" if target is not None else "",
                met=judged >= target if target is not None else None,
            )
        )
    return rows
