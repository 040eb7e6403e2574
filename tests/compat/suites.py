"""Suites of others, from their source distributions: what to run, and how to compare two runs."""

from __future__ import annotations

import os
import subprocess
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["SUITES", "Suite", "audited", "difference", "outcomes", "run_suite"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """One suite: the folder of its unpacked source distribution (without version) and the arguments for pytest."""

    name: str
    folder: str
    serial: tuple[str, ...]
    parallel: tuple[str, ...]


_ZARR = ("tests/test_buffer.py", "tests/test_config.py", "tests/test_api.py", "tests/test_store/test_memory.py")

SUITES = (
    # What loads, orders and calls every plugin.
    Suite(name="pluggy", folder="pluggy", serial=("testing",), parallel=("testing",)),
    # Sessions with workers, crashes, restarts, interrupts, every way to distribute. `acceptance_test.py` starts some
    # 150 sessions, which takes minutes: whole with two workers, serially only where every node runs every test and
    # where nodes fail. `test_looponfail.py` is left out: it watches files and starts pytest again for each that
    # changed, without workers.
    Suite(
        name="pytest-xdist",
        folder="pytest_xdist",
        serial=(
            "testing",
            "--ignore=testing/test_looponfail.py",
            "-k",
            "not acceptance_test or TestDistEach or TestNodeFailure",
        ),
        parallel=("testing", "--ignore=testing/test_looponfail.py"),
    ),
    # Registers a mark named gpu itself, strictly, and skips its tests without CuPy. The files that use the mark, and
    # one with 300 other tests.
    Suite(
        name="zarr",
        folder="zarr",
        serial=_ZARR,
        parallel=_ZARR,
    ),
    # Fifteen marks, some 5,000 parametrised tests, every warning an error. `test_tzpath_data.py` compares all files of
    # the time zone database, a minute of loops in eight tests.
    Suite(
        name="dateutil",
        folder="python_dateutil",
        serial=("tests", "--ignore=tests/test_tzpath_data.py"),
        parallel=("tests", "--ignore=tests/test_tzpath_data.py"),
    ),
)


def audited(log: Path, audit: Path, root: Path) -> dict[str, str]:
    """Return the environment of a suite's process: as little as possible of ours, and the audit hook in it.

    `root` is where its temporary folders go: pytest removes all but the last three below a shared one.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PY", "COV", "GPUCOEXIST"))}
    return {
        **kept,
        "PYTHONPATH": str(audit),
        "PYTHONHASHSEED": "0",
        "PYTEST_DEBUG_TEMPROOT": str(root),
        "GPUCOEXIST_AUDIT_LOG": str(log),
    }


def run_suite(
    python: Path, folder: Path, arguments: tuple[str, ...], report: Path, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a suite unmodified in its own folder; the caller says by `-p no:gpucoexist` when without the plugin."""
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=1500, check=False
    )


def outcomes(report: Path) -> dict[str, tuple[str, ...]]:
    """Map every test of a JUnit file to its outcomes; a name that stands for several tests has several."""
    found: dict[str, list[str]] = {}
    for case in ET.parse(report).getroot().iter("testcase"):
        kinds = sorted(child.get("type") or child.tag for child in case if child.tag in {"failure", "error", "skipped"})
        found.setdefault(f"{case.get('classname')}::{case.get('name')}", []).append("+".join(kinds) or "passed")
    return {name: tuple(sorted(kinds)) for name, kinds in found.items()}


def difference(pairs: Sequence[tuple[Mapping[str, tuple[str, ...]], Mapping[str, tuple[str, ...]]]]) -> dict[str, str]:
    """Return the tests that never came out with the plugin as without, over pairs of runs (without, with).

    Some tests of these suites hang on a race between workers and fail now and then without any plugin; what a plugin
    does to a test, it does in every run.
    """
    names = {name for pair in pairs for run in pair for name in run}
    found: dict[str, str] = {}
    for name in sorted(names):
        without = {before.get(name, ()) for before, _after in pairs}
        loaded = {after.get(name, ()) for _before, after in pairs}
        if not without & loaded:
            found[name] = f"without: {sorted(without)}, with the plugin: {sorted(loaded)}"
    return found
