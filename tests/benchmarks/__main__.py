"""`python -m tests.benchmarks [--quick] [NAME ...]`: measure, print a table, exit 1 when a target is missed."""

from __future__ import annotations

import argparse
import platform
import sys

from rich.console import Console
from rich.table import Table

from tests.benchmarks import measures

MEASURES = {"startup": measures.startup, "collection": measures.collection, "discovery": measures.discovery}


def main() -> int:
    """Run the measures named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer runs and tests; targets of collection not judged")
    parser.add_argument("names", nargs="*", choices=[[], *MEASURES], help="default: all")
    options = parser.parse_args()
    table = Table("measure", "median", "spread", "target", "met")
    missed = False
    for name in options.names or MEASURES:
        for row in MEASURES[name](options.quick):
            met = {True: "yes", False: "NO", None: "-"}[row.met]
            missed |= row.met is False
            table.add_row(row.measure, row.median, row.spread, row.target, met)
    Console(width=150).print(table)
    print(f"Python {platform.python_version()}, {platform.machine()}, {platform.system()}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
