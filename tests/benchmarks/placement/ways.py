"""The ways to run a suite that are compared, and the environment in which all of them run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.placement.records import Run, read_holds
from tests.benchmarks.placement.suite import MACHINE
from tests.benchmarks.running import ROOT

__all__ = ["SERIAL", "WAYS", "Way", "environment", "run"]

_DEPENDENCIES = ("packaging", "pyelftools", "rich")
ENVIRONMENT = ROOT / "build" / "placement"
LIMIT_S = 900


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """`holding` is how tests get devices (`holding.py`); `arguments` are pytest's; `says` is for the table."""

    name: str
    says: str
    holding: str
    arguments: tuple[str, ...]


_OURS = ("-p", "gpucoexist", f"--gpu-machine={MACHINE}", "--gpu-simulate")

SERIAL = Way(name="serial", says="pytest-gpucoexist without workers", holding="ours", arguments=_OURS)

WAYS = (
    Way(
        name="ours",
        says="pytest-gpucoexist, `--gpu-dist=auto`",
        holding="ours",
        arguments=(*_OURS, "-p", "xdist", "--gpu-dist=auto", "-n", "{workers}"),
    ),
    *(
        Way(
            name=dist,
            says=f"xdist `--dist={dist}`, a lock per device",
            holding="lock",
            arguments=("-p", "xdist", f"--dist={dist}", "-n", "{workers}"),
        )
        for dist in ("load", "worksteal", "loadscope")
    ),
    Way(
        name="isolate",
        says="pytest-isolate's `resources`",
        holding="isolate",
        arguments=("-p", "pytest_isolate.plugin", "-p", "xdist", "-n", "{workers}"),
    ),
    Way(name="processes", says="a process per test, longest first", holding="given", arguments=()),
)


def environment() -> Path:
    """Make the environment of all ways, once, and return its Python: the newest of the peers, what this package needs.

    Not the newest pytest: every test under pytest-isolate 0.0.17 fails on pytest 9.2, which lacks a private function.
    """
    python = ENVIRONMENT / "bin" / "python"
    done = ENVIRONMENT / "complete"
    if not done.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT)], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "pytest==9.1.*", "pytest-xdist", "pytest-isolate", *_DEPENDENCIES], check=True)
        done.touch()
    return python


def run(way: Way, suite: Path, results: Path, site: Path, *, workers: int, durations: dict[str, float]) -> Run:
    """Run the suite once. `results` is an empty folder of this run, `site` has the package.

    Raises RuntimeError with what it printed.
    """
    python = str(environment())
    # No `PYTHONDONTWRITEBYTECODE` either: this package would be compiled in every process, and its peers in none.
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PY", "COV", "GPU"))}
    environ = {
        **kept,
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONPATH": str(site),
        "PLACEMENT_WAY": way.holding,
        "PLACEMENT_RUN": str(results),
        "PYTEST_GPU_LEASE_DIR": str(results / "leases"),
        "PYTEST_ISOLATE_STATE_FILE": str(results / "isolate.json"),
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(_count(suite, "nvidia")))),
    }
    (results / "leases").mkdir()
    if way.holding == "given":
        (results / "durations.json").write_text(json.dumps(durations), encoding="utf-8")
        runner = Path(__file__).with_name("runner.py")
        command = [python, str(runner), str(workers), str(results / "durations.json")]
    else:
        command = [python, "-m", "pytest", "-q", *(word.format(workers=workers) for word in way.arguments)]
    if way.holding != "isolate":
        del environ["CUDA_VISIBLE_DEVICES"]
    started = time.monotonic()
    done = subprocess.run(command, cwd=suite, env=environ, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    ended = time.monotonic()
    if done.returncode != 0:
        raise RuntimeError(f"{way.name}: exit status {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    holds = read_holds(results)
    begin, end = min(hold.begin for hold in holds), max(hold.end for hold in holds)
    return Run(
        start_up_s=begin - started,
        span_s=end - begin,
        shut_down_s=ended - end,
        setups=sum(hold.kind == "setup" for hold in holds),
        holds=holds,
    )


def _count(suite: Path, vendor: str) -> int:
    return sum(device["vendor"] == vendor for device in json.loads((suite / "suite.json").read_text())["devices"])
