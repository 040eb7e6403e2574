"""Run a suite in a process of its own on the built-in demo machine, beside whatever plugins a test names.

Every run is a real `python -m pytest`, serially or with workers. Plugins of others are taken from the environment that
`GPUCOEXIST_BESIDE_PYTHON` names, so that none of them disturbs this suite.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "AMD1",
    "AUDIT",
    "NO_XDIST",
    "NVIDIA0",
    "NVIDIA1",
    "ON_DEMO",
    "Case",
    "Suite",
    "beside_python",
    "noted",
    "workers",
    "workers_slow",
]

# The demo machine's: a need for NVIDIA's 48 GiB card or for AMD's discrete card has one candidate each.
NVIDIA0, NVIDIA1, AMD1 = "0000:03:00.0", "0000:04:00.0", "0000:83:00.0"

ON_DEMO = ("--gpu-machine=demo", "--gpu-simulate")

NO_XDIST = "needs pytest-xdist: it is not installed"

AUDIT = Path(__file__).parents[1] / "compat" / "audit"
"""On PYTHONPATH: every process notes in `GPUCOEXIST_AUDIT_LOG` what the plugin does to the system."""

workers = pytest.mark.parametrize("workers", [0, 2], ids=["serial", "n2"])

# The same, where the way with workers differs in nothing but time.
workers_slow = pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)], ids=["serial", "n2"])

# Where pytest's temporary folders are, and where leases are kept: a folder of each test.
_KEPT = {"PYTEST_DEBUG_TEMPROOT", "PYTEST_GPU_LEASE_DIR"}

# What a process still holds when all is over: of a serial run and of each worker.
_CONFTEST = """
import json, os, time
import pytest
from pytest_gpucoexist.session.state import GPU_SESSION

HERE = os.path.dirname(os.path.abspath(__file__))

def note(kind, value):
    with open(os.path.join(HERE, kind + ".log"), "a") as file:
        file.write(json.dumps(value) + "\\n")

@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config):
    if GPU_SESSION in config.stash:
        leaser = config.stash[GPU_SESSION]._leaser  # None where nobody asked for a device
        note("held", {} if leaser is None else leaser.held())

def wait_for(path):
    while not os.path.exists(os.path.join(HERE, path)):
        time.sleep(0.01)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One `<testcase>` of a JUnit file."""

    outcome: str
    message: str
    properties: tuple[tuple[str, str], ...]

    def values(self, name: str) -> list[str]:
        """Return every value of a property."""
        return [value for key, value in self.properties if key == name]


class Suite:
    """A suite in pytester's folder."""

    def __init__(self, pytester: pytest.Pytester, python: str = sys.executable, *, conftest: str = "") -> None:
        """`python` is an interpreter that has the plugins which `run` will name."""
        self.pytester = pytester
        self.path = pytester.path
        self._python = python
        pytester.makeconftest(_CONFTEST + conftest)

    def run(
        self,
        *args: str,
        plugins: tuple[str, ...] = (),
        on: tuple[str, ...] = ON_DEMO,
        workers: int = 0,
        autoload: bool = False,
        us: bool = True,
        stdin: bytes = b"",
        environ: Mapping[str, str] | None = None,
    ) -> pytest.RunResult:
        """Run pytest. With autoload off, what is loaded is `us`, the named plugins, and pytest-xdist for workers."""
        if workers and self._python == sys.executable and importlib.util.find_spec("xdist") is None:
            pytest.skip(NO_XDIST)
        named = [*(["gpucoexist"] if us else []), *plugins, *(["xdist"] if workers else [])] if not autoload else []
        argv = [self._python, "-m", "pytest", "-ra", *(word for name in named for word in ("-p", name)), *on]
        argv += [*(["-n", str(workers)] if workers else []), *args]
        with pytest.MonkeyPatch.context() as patch:
            for name in tuple(os.environ):
                if name.startswith("PYTEST_") and name not in _KEPT:
                    patch.delenv(name)
                if name.startswith("COV") and self._python != sys.executable:
                    # Our own measurement must not start in an environment where pytest-cov measures.
                    patch.delenv(name)
            if not autoload:
                patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
            for name, value in (environ or {}).items():
                patch.setenv(name, value)
            return self.pytester.run(*argv, stdin=stdin)

    def noted(self, kind: str) -> list[Any]:
        """Return what the processes of all runs wrote with the conftest's `note(kind, value)`."""
        path = self.path / f"{kind}.log"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def held(self) -> dict[str, str]:
        """Return what some process still held when a run was over: device → owner."""
        held: dict[str, str] = {}
        for each in self.noted("held"):
            held |= each
        return held

    def records(self, report: str = "report.json") -> dict[str, dict[str, Any]]:
        """Return the tests of a JSON report by the last part of their id; no id may be there twice."""
        tests = json.loads((self.path / report).read_text())["tests"]
        found = {test["nodeid"].rpartition("::")[2]: test for test in tests}
        assert len(found) == len(tests), [test["nodeid"] for test in tests]
        return found

    def cases(self, junit: str = "junit.xml") -> dict[str, Case]:
        """Return the tests of a JUnit file by name; of several runs of one test (as pytest writes them), the last."""
        found = {}
        for node in ET.parse(self.path / junit).getroot().iter("testcase"):
            kinds = [child for child in node if child.tag in {"failure", "error", "skipped"}]
            found[node.get("name", "")] = Case(
                outcome="+".join(child.tag for child in kinds) or "passed",
                message=" ".join(child.get("message") or "" for child in kinds),
                properties=tuple((each.get("name", ""), each.get("value", "")) for each in node.iter("property")),
            )
        return found


def beside_python() -> str:
    """Return the interpreter that has the plugins of others; skips the test where there is none."""
    python = os.environ.get("GPUCOEXIST_BESIDE_PYTHON")
    if not python:
        pytest.skip(
            "needs GPUCOEXIST_BESIDE_PYTHON: an interpreter with pytest-timeout, pytest-rerunfailures, "
            "pytest-randomly, pytest-cov, pytest-html and this package (.ci/run makes it)"
        )
    return python


def noted(log: Path) -> tuple[set[str], list[str]]:
    """Return the processes that an audit log knows, and what the plugin did in them."""
    lines = log.read_text(encoding="utf-8").splitlines()
    return {line.split()[0] for line in lines}, [line for line in lines if line.split()[1] not in {"start", "loaded"}]
