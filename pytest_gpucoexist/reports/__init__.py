"""What a session tells people and other programs: terminal, JSON, JUnit properties, HTML, Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_gpucoexist.reports.model import SessionReport

__all__ = ["read_report", "write_report"]


def write_report(report: SessionReport, path: str) -> None:
    """Write the report of a session as `.json`, `.html` or `.md`, atomically. Raises ReportError."""
    from pytest_gpucoexist.reports.files import write_report as write

    write(report, path)


def read_report(path: str) -> SessionReport:
    """Read a `.json` report. Raises ReportError, saying what is wrong with the file."""
    from pytest_gpucoexist.reports.jsonfile import read_report as read

    return read(path)
