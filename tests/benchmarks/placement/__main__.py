"""`python -m tests.benchmarks.placement`: run the workloads in every way, interleaved; print a table.

Exits with 1 when a target is missed, with `--quick` only when something is wrong or far off: a machine that does other
things at the same time says little about percents.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.benchmarks.placement.measure import measure
from tests.benchmarks.placement.table import judge, write
from tests.benchmarks.placement.ways import WAYS, environment
from tests.benchmarks.placement.workload import NAMES, load, smaller
from tests.benchmarks.running import installed

QUICK = ("ours", "load")


def main() -> int:
    """Measure and judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workload", action="append", choices=NAMES, help="only this one (may be repeated)")
    parser.add_argument("--only", metavar="WAY,WAY", help=f"of {', '.join(way.name for way in WAYS)}")
    parser.add_argument("--runs", type=int, metavar="N", help="how often each way runs (default: 5; quick: 1)")
    parser.add_argument("--workers", type=int, default=8, metavar="N")
    parser.add_argument("--quick", action="store_true", help="smaller workloads, two ways, no serial run first")
    parser.add_argument("--markdown", metavar="FILE", type=Path, help="write the table for the docs")
    options = parser.parse_args()
    names = options.only.split(",") if options.only else QUICK if options.quick else [way.name for way in WAYS]
    if unknown := set(names) - {way.name for way in WAYS}:
        parser.error(f"no way: {', '.join(sorted(unknown))}")
    ways = [way for way in WAYS if way.name in names]
    environment()
    runs = options.runs or (1 if options.quick else 5)
    measured = []
    with tempfile.TemporaryDirectory(prefix="placement-") as name:
        site = installed(Path(name))  # what is measured does not change under way
        for workload in map(load, options.workload or NAMES):
            folder = Path(name) / workload.name
            folder.mkdir()
            tests = smaller(workload) if options.quick else workload
            found = measure(tests, ways, folder, site, runs=runs, workers=options.workers, quick=options.quick)
            write([found], sys.stdout)
            measured.append(found)
    if options.markdown:
        with options.markdown.open("w", encoding="utf-8") as file:
            write(measured, file, markdown=True)
    missed = [line for found in measured for line in judge(found, quick=options.quick)]
    print("\n".join(missed) if missed else "every target is met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
