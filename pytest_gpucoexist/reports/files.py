"""Reports as files, in the format that the file's name asks for."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pytest_gpucoexist.errors import ReportError
from pytest_gpucoexist.reports.atomic import write_text

if TYPE_CHECKING:
    from pytest_gpucoexist.reports.merge import MergedReport
    from pytest_gpucoexist.reports.model import SessionReport

__all__ = ["SUFFIXES", "check_suffix", "write_merged", "write_report"]

SUFFIXES = (".json", ".html", ".md")


def check_suffix(path: str) -> str:
    """Return the suffix that decides the format. Raises ReportError, listing the good ones, for any other."""
    suffix = os.path.splitext(path)[1].lower()
    if suffix not in SUFFIXES:
        raise ReportError(f"cannot write report {path!r}: its name must end in {', '.join(SUFFIXES)}")
    return suffix


def write_report(report: SessionReport, path: str) -> None:
    """Write the report of a session as `.json`, `.html` or `.md`, atomically. Raises ReportError."""
    suffix = check_suffix(path)
    if suffix == ".json":
        from pytest_gpucoexist.reports.jsonfile import json_text

        text = json_text(report.to_json())
    elif suffix == ".html":
        from pytest_gpucoexist.reports.html import report_html

        text = report_html(report)
    else:
        from pytest_gpucoexist.reports.markdown import report_markdown

        text = report_markdown(report)
    write_text(path, text)


def write_merged(merged: MergedReport, path: str) -> None:
    """Write what several runners did as `.json`, `.html` or `.md`, atomically. Raises ReportError."""
    suffix = check_suffix(path)
    if suffix == ".json":
        from pytest_gpucoexist.reports.jsonfile import json_text

        text = json_text(merged.to_json())
    elif suffix == ".html":
        from pytest_gpucoexist.reports.html_merged import merged_html

        text = merged_html(merged)
    else:
        from pytest_gpucoexist.reports.markdown import merged_markdown

        text = merged_markdown(merged)
    write_text(path, text)
