"""The table of what was measured, on a screen or for the docs, and which targets it misses."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TextIO

    from tests.benchmarks.placement.lowest import Shortest
    from tests.benchmarks.placement.measure import Measured
    from tests.benchmarks.placement.records import Run

__all__ = ["judge", "write"]

OF_SHORTEST = 1.10
OF_PEER_SHORT = 1.03
SETUPS_OF_LOAD = 1.5
QUICK_OF_SHORTEST = 4.0


def _median(runs: Sequence[Run]) -> float:
    return statistics.median(run.span_s for run in runs)


def _shortest(shortest: Shortest) -> str:
    if shortest.seconds == shortest.bound_s:
        return f"Shortest: {shortest.bound_s:.2f} s, below which no schedule can end."
    return (
        f"Shortest: {shortest.tried_s:.2f} s, the best of many schedules that know everything before "
        f"(none can end below {shortest.bound_s:.2f} s)."
    )


def write(measured: Sequence[Measured], file: TextIO, *, markdown: bool = False) -> None:
    """Print a table for each workload."""
    for found in measured:
        file.write(f"\n{'## ' if markdown else ''}{found.workload.name}: {found.workload.says}\n\n")
        file.write(f"{_shortest(found.shortest)}\n\n")
        file.write(
            "| way | ÷ shortest | spread | seconds | start-up | shut-down | set-ups |\n|---|---|---|---|---|---|---|\n"
        )
        for way, runs in found.runs.items():
            spans = sorted(run.span_s / found.shortest.seconds for run in runs)
            setups = statistics.median(run.setups for run in runs)
            cells = [
                way.says,
                f"{statistics.median(spans):.3f}",
                f"{spans[0]:.3f} to {spans[-1]:.3f}",
                f"{_median(runs):.2f}",
                f"{statistics.median(run.start_up_s for run in runs):.1f}",
                f"{statistics.median(run.shut_down_s for run in runs):.1f}",
                f"{setups:g}" if setups else "",
            ]
            file.write(f"| {' | '.join(cells)} |\n")
        file.writelines(f"WRONG: {line}\n" for line in found.wrong)


def judge(found: Measured, *, quick: bool) -> list[str]:
    """Return the targets that ours misses; of a quick run, only what no noise excuses."""
    name = found.workload.name
    missed = [f"{name}: {line}" for line in found.wrong]
    runs = {way.name: each for way, each in found.runs.items()}
    if "ours" not in runs:
        return missed
    ours = _median(runs["ours"])
    limit = QUICK_OF_SHORTEST if quick else OF_SHORTEST
    if ours > limit * found.shortest.seconds:
        missed.append(f"{name}: {ours / found.shortest.seconds:.3f} of the shortest time, target {limit}")
    if "load" in runs:
        setups, of_load = (statistics.median(run.setups for run in runs[way]) for way in ("ours", "load"))
        if setups > SETUPS_OF_LOAD * of_load:
            missed.append(f"{name}: {setups:g} set-ups of modules, `load` has {of_load:g}")
    if quick:
        return missed
    allowed = OF_PEER_SHORT if name == "short" else 1.0
    for peer, each in runs.items():
        if peer != "ours" and ours > allowed * _median(each):
            missed.append(f"{name}: {ours:.2f} s, {peer} {_median(each):.2f} s")
    return missed
