"""`python -m tests.benchmarks [--quick] [NAME ...]`: measure, print a table, exit 1 when a target is missed."""

from __future__ import annotations

import argparse
import platform
import sys

from rich.console import Console
from rich.table import Table

from tests.benchmarks import decisions, gates, leases, measures, staging, transfers, words

MEASURES = {
    "startup": measures.startup,
    "imports": measures.imports,
    "collection": measures.collection,
    "discovery": measures.discovery,
    "partitions": measures.partitions,
    "hanging": measures.hanging,
    "gates": gates.gates,
    "gates-hanging": gates.gates_hanging,
    "leases": leases.uncontended,
    "handover": leases.handover,
    "decisions": decisions.decisions,
    "words": words.words,
    "staging": staging.staging,
    "handing": staging.handing,
    "sizes": staging.sizes,
    "transfers": transfers.transfers,
}


def main() -> int:
    """Run the measures named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="fewer runs and tests, CPU time judged in place of the clock"
    )
    parser.add_argument("names", nargs="*", help=f"of {', '.join(MEASURES)} (default: all)")
    options = parser.parse_args()
    if unknown := set(options.names) - MEASURES.keys():
        parser.error(f"no measure: {', '.join(sorted(unknown))}")
    table = Table("measure", "median", "spread", "target", "met")
    missed = False
    for name in options.names or MEASURES:
        for row in MEASURES[name](quick=options.quick):
            met = {True: "yes", False: "NO", None: "-"}[row.met]
            missed |= row.met is False
            table.add_row(row.measure, row.median, row.spread, row.target, met)
    Console(width=150).print(table)
    print(f"Python {platform.python_version()}, {platform.machine()}, {platform.system()}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
