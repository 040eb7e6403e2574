"""Run a workload in several ways, interleaved, and hold what came out against the shortest time that is possible."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.benchmarks.placement.lowest import Shortest, shortest
from tests.benchmarks.placement.records import Run, seconds_held, wrong
from tests.benchmarks.placement.suite import GIB, devices_of, write_suite
from tests.benchmarks.placement.ways import SERIAL, Way, run
from tests.benchmarks.placement.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


__all__ = ["Measured", "measure"]

_OVERHEAD_S = 0.004
"""What pytest adds to a test while it holds its devices, where no serial run was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """All runs of a workload. `wrong` is what went wrong in any of them."""

    workload: Workload
    shortest: Shortest
    runs: dict[Way, list[Run]]
    wrong: tuple[str, ...]


def measure(
    workload: Workload, ways: Sequence[Way], folder: Path, site: Path, *, runs: int, workers: int, quick: bool
) -> Measured:
    """Run everything in a folder that is empty. Not `quick`: how long tests hold is measured in a serial run first."""
    suites = {}
    for way in (SERIAL, *ways):
        suites[way] = folder / way.name
        suites[way].mkdir()
        write_suite(workload, suites[way])
    devices = devices_of(workload)
    capacity = {gpu.pci_address or gpu.id: (gpu.memory_total_bytes or 0) / GIB for gpu in devices}
    nodeids = [case.nodeid for case in workload.cases]
    done: dict[Way, list[Run]] = {way: [] for way in ways}
    found: list[str] = []
    if quick:
        held = {case.nodeid: case.seconds + _OVERHEAD_S for case in workload.cases}
        for module in workload.modules:
            held[module.cases[0].nodeid] += module.setup_seconds
    else:
        serial = _run(SERIAL, suites[SERIAL], folder / "serial-run", site, workers, {})
        found += [f"serial: {line}" for line in wrong(serial.holds, nodeids, capacity)]
        held = seconds_held(serial.holds)
        for way in ways:  # ours finds there what each test took before
            if way.holding == "ours" and (suites[SERIAL] / ".pytest_cache").is_dir():
                _copy_cache(suites[SERIAL], suites[way])
    for number in range(runs):
        for way in ways:
            results = folder / f"{way.name}-{number}"
            done[way].append(_run(way, suites[way], results, site, workers, held))
            found += [f"{way.name}: {line}" for line in wrong(done[way][-1].holds, nodeids, capacity)]
    return Measured(
        workload=workload, shortest=shortest(workload, devices, held, workers), runs=done, wrong=tuple(found)
    )


def _copy_cache(source: Path, target: Path) -> None:
    import shutil

    shutil.copytree(source / ".pytest_cache", target / ".pytest_cache", dirs_exist_ok=True)


def _run(way: Way, suite: Path, results: Path, site: Path, workers: int, held: dict[str, float]) -> Run:
    results.mkdir()
    started = time.monotonic()
    done = run(way, suite, results, site, workers=workers, durations=held)
    print(f"  {way.name}: {done.span_s:.2f} s of {time.monotonic() - started:.1f} s", file=sys.stderr, flush=True)
    return done
