"""Sessions as other users and in other mount namespaces, their workers, and what they reported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tests.conftest import ROOT
from tests.stress.suite import MACHINE

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Ground", "Session", "command_environment", "processes_with"]

# A process of its own mount namespace sees the folder of leases only where it is bound to, as in a container.
_ELSEWHERE = 'mount --bind "$1" "$2" && mount -t tmpfs none "$1" && shift 2 && exec "$@"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """Folders that all sessions share. `token` is in the environment of every process that is started here."""

    suite: Path
    leases: Path
    elsewhere: Path
    referees: Path
    results: Path
    token: str


@dataclass(slots=True, kw_only=True)
class Session:
    """One session. `uid`: whose it is; `namespace`: it has mounts of its own; `dies`: its controller is killed."""

    name: str
    uid: int
    namespace: bool
    arguments: tuple[str, ...]
    dies: bool = False
    kills: int = 0
    process: subprocess.Popen[bytes] | None = None
    folder: Path = field(default=Path())

    def start(self, ground: Ground) -> None:
        """Start it."""
        self.folder = ground.results / self.name
        self.folder.mkdir(parents=True)
        for path in (self.folder, self.folder / "workers", self.folder / "holding"):
            path.mkdir(exist_ok=True)
            os.chown(path, self.uid, self.uid)
        leases = ground.elsewhere if self.namespace else ground.leases
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "gpucoexist", "-p", "xdist"]
        command += [f"--gpu-machine={MACHINE}", "--gpu-simulate", *self.arguments]
        if self.uid:
            # The interpreter may lie below /root: reading is allowed there, and nothing else is.
            user = ["setpriv", f"--reuid={self.uid}", f"--regid={self.uid}", "--clear-groups"]
            command = [*user, "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search", *command]
        if self.namespace:
            mounts = ["sh", "-c", _ELSEWHERE, "sh", str(ground.leases), str(ground.elsewhere)]
            command = ["unshare", "--mount", "--propagation", "private", *mounts, *command]
        environ = {
            **command_environment(),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTEST_GPU_LEASE_DIR": str(leases),
            "HOME": str(self.folder),
            "TMPDIR": str(self.folder),
            "STRESS_TOKEN": ground.token,
            "STRESS_RESULTS": str(self.folder),
            "STRESS_REFEREES": str(ground.referees),
            "STRESS_WHERE": "inside" if self.namespace else "outside",
        }
        with (self.folder / "output.txt").open("wb") as output:
            self.process = subprocess.Popen(command, cwd=ground.suite, env=environ, stdout=output, stderr=output)

    @property
    def running(self) -> bool:
        """Whether the controller has not ended."""
        return self.process is not None and self.process.poll() is None

    @property
    def status(self) -> int | None:
        """Exit status of the controller."""
        return None if self.process is None else self.process.returncode

    def workers(self, token: str, *, holding: bool = False) -> list[int]:
        """Processes of its workers that live; `holding`: those that said a moment ago that they hold something."""
        named = [int(path.name) for path in (self.folder / ("holding" if holding else "workers")).iterdir()]
        return [pid for pid in named if _has(pid, token)]

    def reports(self) -> dict[str, list[tuple[str, str, str]]]:
        """Return what the controller was told of each test: phase, outcome, text."""
        found = defaultdict(list)
        path = self.folder / "reports.jsonl"
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            nodeid, *rest = json.loads(line)
            found[nodeid].append(tuple(rest))
        return found

    def output(self) -> str:
        """Return the end of what it printed."""
        return (self.folder / "output.txt").read_text(encoding="utf-8", errors="replace")[-6000:]

    def wrong(self, nodeids: Sequence[str]) -> list[str]:
        """Say which tests were lost, ran twice or failed: each is reported once, as passed, or as what crashed."""
        reports = self.reports()
        found = [f"{self.name}: {nodeid} is none of its tests" for nodeid in reports.keys() - set(nodeids)]
        crashes = 0
        for nodeid in nodeids:
            told = reports.get(nodeid, [])
            passed = sum((when, outcome) == ("call", "passed") for when, outcome, _ in told)
            crashed = sum(outcome == "failed" and "crashed while running" in text for _, outcome, text in told)
            failed = [text for _, outcome, text in told if outcome != "passed" and "crashed while running" not in text]
            crashes += crashed
            # A worker that is killed after the call of a test, and before its end, has told of both.
            if failed or crashed > 1 or passed > 1 or passed + crashed == 0:
                found.append(f"{self.name}: {nodeid} passed {passed} and crashed {crashed} times; {failed}")
        if crashes > self.kills:
            found.append(f"{self.name}: {crashes} tests crashed, and {self.kills} workers were killed")
        if self.status != (1 if crashes else 0):
            found.append(f"{self.name}: exit status {self.status} with {crashes} crashes")
        return found


def command_environment() -> dict[str, str]:
    """Return the environment of this process with nothing of our own suite's, for what is started from the checkout."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COV"))}
    return {**kept, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}


def _has(pid: int, token: str) -> bool:
    try:
        return f"STRESS_TOKEN={token}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def processes_with(token: str) -> list[int]:
    """Return the processes that were started here, or by one that was, and live."""
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit() and _has(int(path.name), token)]
