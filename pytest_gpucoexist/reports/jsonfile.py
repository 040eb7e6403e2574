"""Reports as JSON: written for other programs, read back to be merged."""

from __future__ import annotations

import json
from importlib import resources
from typing import TYPE_CHECKING, Any, Literal

from pytest_gpucoexist.errors import DataError, ReportError

if TYPE_CHECKING:
    from pytest_gpucoexist.reports.model import SessionReport

__all__ = ["LIMIT_BYTES", "json_text", "load_schema", "read_report"]

LIMIT_BYTES = 512 << 20
"""A larger file is no report: 20,000 tests take about 10 MB."""


def json_text(value: Any, *, ascii_only: bool = False) -> str:
    """Write a document as text that people can compare line by line. NaN is not JSON and raises ValueError."""
    return json.dumps(value, indent=2, ensure_ascii=ascii_only, allow_nan=False) + "\n"


def read_report(path: str) -> SessionReport:
    """Read a `.json` report. Raises ReportError, saying what is wrong with the file."""
    from pytest_gpucoexist.reports.model import SessionReport

    try:
        with open(path, "rb") as file:
            data = file.read(LIMIT_BYTES + 1)
    except OSError as error:
        raise ReportError(f"cannot read report {path}: {error.strerror or error}") from error
    if len(data) > LIMIT_BYTES:
        raise ReportError(f"cannot read report {path}: larger than {LIMIT_BYTES >> 20} MiB")
    try:
        document = json.loads(data)
    except RecursionError as error:
        raise ReportError(f"{path} is not a report: nested too deeply") from error
    except ValueError as error:
        raise ReportError(
            f"{path} is not JSON ({error}); give a report that --gpu-report=FILE.json has written"
        ) from error
    if not isinstance(document, dict) or "report" not in document:
        raise ReportError(f"{path} is JSON, but no report; give one that --gpu-report=FILE.json has written")
    try:
        return SessionReport.from_json(document)
    except DataError as error:
        raise ReportError(f"{path} is not a report that this release can read: {error}") from error


def load_schema(name: Literal["machine", "judgement", "report", "merged", "leases"]) -> dict[str, Any]:
    """Return a JSON Schema (draft 2020-12) of this package: what `show --json`, `--gpu-report`, `merge`, … write."""
    text = resources.files("pytest_gpucoexist").joinpath("schemas").joinpath(f"{name}.json").read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema
