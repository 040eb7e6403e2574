"""`gpucoexist merge`: the reports of several runners as one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.cli.common import DONE, NOT_SO, screen, write
from pytest_gpucoexist.errors import ReportError

if TYPE_CHECKING:
    import argparse

__all__ = ["add_to"]


def add_to(commands: Any) -> None:
    """Add the command."""
    merge = commands.add_parser("merge", help="reports of several runners as one", description=_merge.__doc__)
    merge.add_argument(
        "reports", metavar="FILE.json", nargs="+", help="reports that --gpu-report=FILE.json has written"
    )
    merge.add_argument("-o", "--output", metavar="FILE", help="write .json, .md or .html in place of a table")
    merge.add_argument("--fail-on-gaps", action="store_true", help="exit 1 if a test ran nowhere")
    merge.set_defaults(run=_merge)


def _merge(arguments: argparse.Namespace) -> int:
    """Merge reports of several runners: every test id, where it really ran, or why nowhere."""
    from pytest_gpucoexist.reports.files import check_suffix, write_merged
    from pytest_gpucoexist.reports.jsonfile import read_report
    from pytest_gpucoexist.reports.merge import merge_reports
    from pytest_gpucoexist.reports.words import plural

    if arguments.output is not None:
        check_suffix(arguments.output)
        if any(os.path.realpath(arguments.output) == os.path.realpath(path) for path in arguments.reports):
            raise ReportError(f"{arguments.output} is one of the reports to merge; give -o another name")
    merged = merge_reports([(path, read_report(path)) for path in arguments.reports])
    if arguments.output is None:
        from pytest_gpucoexist.reports.merged_text import merged_text

        write(merged_text(merged, screen()) + "\n")
    else:
        write_merged(merged, arguments.output)
        counts = f"{plural(len(merged.tests), 'test')}, {len(merged.gaps):,} ran nowhere"
        write(f"{arguments.output}: {counts}\n")
    return NOT_SO if arguments.fail_on_gaps and merged.gaps else DONE
