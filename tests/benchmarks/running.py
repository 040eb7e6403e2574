"""Run pytest sessions for measuring: with this plugin and no other, and with none."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["ROOT", "Row", "Sessions", "Times", "installed", "timed", "unjudged"]

ROOT = Path(__file__).resolve().parents[2]
NAME = "gpucoexist"
PACKAGE = f"pytest_{NAME}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table: a measure, its median and spread, and the target that it is held against."""

    measure: str
    median: str
    spread: str = ""
    target: str = ""
    met: bool | None = None


def unjudged(rows: Iterable[Row]) -> list[Row]:
    """Return rows without a verdict: processes that work together by the clock tell little on a shared machine."""
    return [replace(row, target="", met=None) for row in rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """What was timed, in milliseconds, each run by the clock and by this thread's CPU time."""

    wall: tuple[float, ...]
    cpu: tuple[float, ...]

    def row(self, measure: str, target_ms: float, *, quick: bool) -> Row:
        """Make a line. A quick run judges CPU time: it shares its machine, where the clock measures the neighbours."""
        median = f"{statistics.median(self.wall):.1f} ms"
        cpu = statistics.median(self.cpu)
        return Row(
            measure=measure,
            median=f"{median} (CPU {cpu:.1f})",
            spread=f"{min(self.wall):.1f} to {max(self.wall):.1f} ms",
            target=f"{target_ms:g} ms{' CPU' if quick else ''}",
            met=(cpu if quick else statistics.median(self.wall)) <= target_ms,
        )


def timed(call: Callable[[], object], runs: int) -> Times:
    """Time a call, after one that is not counted."""
    call()
    wall, cpu = [], []
    for _ in range(runs):
        started, busy = time.perf_counter(), time.thread_time()
        call()
        cpu.append(1000 * (time.thread_time() - busy))
        wall.append(1000 * (time.perf_counter() - started))
    return Times(wall=tuple(wall), cpu=tuple(cpu))


def installed(folder: Path) -> Path:
    """Copy the package, with metadata, as a wheel would install it. Returns what belongs on PYTHONPATH."""
    site = folder / "site"
    shutil.copytree(ROOT / PACKAGE, site / PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))
    info = site / f"{PACKAGE}-0.0.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {PACKAGE.replace('_', '-')}\nVersion: 0.0.0\n")
    (info / "entry_points.txt").write_text(f"[pytest11]\n{NAME} = {PACKAGE}.plugin\n")
    files = sorted(path.relative_to(site) for path in site.rglob("*") if path.is_file())
    (info / "RECORD").write_text("".join(f"{path},,\n" for path in files))
    return site


class Sessions:
    """Starts pytest in a folder, with a copy of this package installed there as a wheel would be, or without it.

    A checkout is measured as users get it: pytest sends the modules of an installed plugin through its assertion
    rewriting, those of an editable install it does not find. Every other plugin of this environment is blocked, so that
    percentages are of pytest alone.
    """

    def __init__(self, folder: Path) -> None:
        """Copy the package, with metadata, below `folder`."""
        self._site = installed(folder)
        others = {point.name for point in importlib.metadata.entry_points(group="pytest11")} - {NAME}
        self._command = (
            *(sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir=.", "-p", "no:cacheprovider"),
            *(argument for other in sorted(others) for argument in ("-p", f"no:{other}")),
        )

    def _environment(self, *, installed: bool) -> dict[str, str]:
        """Two runs of the same command in this environment execute the same instructions."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PY", "COV", "GPU"))}
        path = (str(self._site), str(ROOT)) if installed else (str(ROOT),)
        return {**kept, "PYTHONHASHSEED": "0", "PYTHONPATH": os.pathsep.join(path), "COLUMNS": "80"}

    def _run(
        self, folder: Path, *arguments: str, loaded: bool, installed: bool = True, under: tuple[str, ...] = ()
    ) -> subprocess.CompletedProcess[str]:
        command = [*under, *self._command, *arguments, *(() if loaded else ("-p", f"no:{NAME}"))]
        environment = self._environment(installed=installed)
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        if done.returncode not in {0, 5}:
            raise RuntimeError(f"{' '.join(command)}: {done.stdout[-1500:]}{done.stderr[-1500:]}")
        return done

    def instructions(self, folder: Path, *arguments: str, loaded: bool, installed: bool = True) -> int:
        """Count the instructions of a session under cachegrind. Not loaded is `-p no:gpucoexist`.

        It has run once before, so that no module or test file is compiled while it is counted.
        """
        self._run(folder, *arguments, loaded=loaded, installed=installed)
        under = ("valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null")
        done = self._run(folder, *arguments, loaded=loaded, installed=installed, under=under)
        found = re.search(r"I\s+refs:\s+([\d,]+)", done.stderr)
        if found is None:
            raise RuntimeError(f"no count from cachegrind: {done.stderr[-1500:]}")
        return int(found[1].replace(",", ""))

    def pair(self, folder: Path, *arguments: str) -> tuple[int, int]:
        """Count a session without the plugin and with it, both at once: a count does not depend on the load."""
        with ThreadPoolExecutor(2) as pool:
            without = pool.submit(self.instructions, folder, *arguments, loaded=False)
            loaded = pool.submit(self.instructions, folder, *arguments, loaded=True)
            return without.result(), loaded.result()

    def accounted(self, folder: Path, runs: int) -> tuple[Times, dict[str, float]]:
        """Return the plugin's own time in each of `runs` sessions, and the CPU time of each part in the median one."""
        self._run(folder, loaded=True)
        accounts = []
        for _ in range(runs):
            done = self._run(folder, "-p", "tests.benchmarks.accounting", loaded=True)
            line = re.search(r"^ACCOUNT wall=([\d.]+) cpu=([\d.]+) (.*)", done.stdout, re.MULTILINE)
            if line is None:
                raise RuntimeError(f"no account: {done.stdout[-1500:]}{done.stderr[-1500:]}")
            accounts.append((float(line[1]), float(line[2]), line[3]))
        middle = sorted(accounts, key=lambda account: account[1])[runs // 2]
        parts = {name: float(value) for name, value in (part.split("=") for part in middle[2].split())}
        wall, cpu, _ = zip(*accounts, strict=True)
        return Times(wall=wall, cpu=cpu), parts

    def imports(self, folder: Path) -> dict[str, float | None]:
        """Return the modules that a session loads only because of the plugin, with their own time in milliseconds.

        None for those that importlib was asked for: `-X importtime` counts import statements alone.
        """
        found = []
        for loaded in (False, True):
            for _ in range(2):  # the first compiles
                done = self._run(folder, "-p", "tests.benchmarks.imported", loaded=loaded)
            lines = re.findall(r"^IMPORTED (\S+)$", done.stdout, re.MULTILINE)
            found.append(set(lines))
        extra = found[1] - found[0]
        command = [*self._command]
        command[1:1] = ["-X", "importtime"]
        runs: dict[str, list[float]] = {}
        for _ in range(5):
            done = subprocess.run(
                command, cwd=folder, env=self._environment(installed=True), capture_output=True, text=True, check=False
            )
            for line in done.stderr.splitlines():
                match = re.match(r"import time:\s*(\d+) \|\s*\d+ \|\s*(\S+)$", line)
                if match is not None and match[2] in extra:
                    runs.setdefault(match[2], []).append(int(match[1]) / 1000)
        return {name: statistics.median(runs[name]) if name in runs else None for name in sorted(extra)}
