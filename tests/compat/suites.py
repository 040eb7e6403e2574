"""Suites of others, from their source distributions: what to run, and how to compare two runs."""

from __future__ import annotations

import subprocess
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["SUITES", "Suite", "outcomes", "run_suite"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """One suite: the folder of its unpacked source distribution and the arguments for pytest.

    `unsteady` names tests that differ between two runs without the plugin; each says why.
    """

    name: str
    folder: str
    python: str
    serial: tuple[str, ...] = ()
    parallel: tuple[str, ...] = ()
    unsteady: dict[str, str] = field(default_factory=dict)


SUITES = (
    Suite(name="pluggy", folder="pluggy", python="plain", serial=("testing",), parallel=("testing",)),
    Suite(
        name="pytest-xdist",
        folder="pytest_xdist",
        python="plain",
        serial=("testing", "--ignore=testing/acceptance_test.py", "--ignore=testing/test_looponfail.py"),
        parallel=("testing", "-k", "not looponfail and not psutil"),
    ),
    # Registers a mark named gpu itself, with --strict-markers.
    Suite(
        name="zarr",
        folder="zarr",
        python="science",
        serial=("tests/test_buffer.py", "tests/test_config.py"),
        parallel=("tests/test_buffer.py", "tests/test_config.py", "tests/test_array.py"),
    ),
    # 222 uses of marks, about 2,000 parametrised tests.
    Suite(name="dateutil", folder="python_dateutil", python="plain", serial=("tests",), parallel=("tests",)),
)


def run_suite(
    python: Path, folder: Path, arguments: tuple[str, ...], report: Path, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a suite unmodified in its own folder; the caller says by `-p no:gpucoexist` when without the plugin."""
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=1500, check=False
    )


def outcomes(report: Path) -> dict[str, str]:
    """Map every test of a JUnit file to its outcome."""
    found: dict[str, str] = {}
    for case in ET.parse(report).getroot().iter("testcase"):
        kinds = [child.tag for child in case if child.tag in {"failure", "error", "skipped"}]
        found[f"{case.get('classname')}::{case.get('name')}"] = "+".join(sorted(kinds)) or "passed"
    return found
