"""Run pytest sessions for measuring: in an empty folder, with and without the plugin."""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BASE = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir=.")
WITHOUT = ("-p", "no:gpucoexist")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table: a measure, its median and spread, and the target that it is held against."""

    measure: str
    median: str
    spread: str
    target: str
    met: bool | None


def environment() -> dict[str, str]:
    """Return an environment in which two runs of the same command execute the same instructions."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COV"))}
    return {**kept, "PYTHONHASHSEED": "0", "PYTHONPATH": str(ROOT), "PYTEST_PLUGINS": "", "COLUMNS": "80"}


def instructions(folder: Path, *arguments: str) -> int:
    """Count the instructions of one session under cachegrind; it repeats to about 1e-8 with a fixed hash seed."""
    command = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null", *BASE, *arguments]
    done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, check=False)
    found = re.search(r"I\s+refs:\s+([\d,]+)", done.stderr)
    if found is None or done.returncode not in {0, 5}:
        raise RuntimeError(f"no count from cachegrind: {done.stdout[-500:]}{done.stderr[-1500:]}")
    return int(found[1].replace(",", ""))


def accounted_ms(folder: Path, runs: int, *arguments: str) -> list[float]:
    """Return the plugin's own time in each of `runs` sessions, in milliseconds."""
    command = [*BASE, "-p", "tests.benchmarks.accounting", *arguments]
    found = []
    for _ in range(runs):
        done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, check=False)
        line = re.search(r"^ACCOUNT ([\d.]+)", done.stdout, re.MULTILINE)
        if line is None:
            raise RuntimeError(f"no account: {done.stdout[-1500:]}{done.stderr[-1500:]}")
        found.append(float(line[1]))
    return found


def spread(values: list[float], digits: int = 1) -> tuple[str, str]:
    """Return the median, and minimum to maximum, as text."""
    return f"{statistics.median(values):.{digits}f}", f"{min(values):.{digits}f} to {max(values):.{digits}f}"
