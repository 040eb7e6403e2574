"""One match: referees, sessions, faults, and what is left when all is over."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from tests.stress.aftermath import still_there
from tests.stress.faults import Faults
from tests.stress.sessions import Ground, Session, processes_with
from tests.stress.suite import memory_mib, write_suite

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Outcome", "ground", "play"]

_LAST_GASP_S = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a match came to: the referees' reports by device, what sessions did wrong, what was left, what was done."""

    referees: dict[str, dict[str, Any]]
    wrong: list[str]
    left: list[str]
    faults: dict[str, int]
    seconds: float

    def exceeded(self) -> list[str]:
        """Return the moments at which a device had more holders than it has memory for."""
        return [f"{key}: {line}" for key, report in self.referees.items() for line in report["exceeded"]]


@contextlib.contextmanager
def ground(token: str) -> Iterator[Ground]:
    """Make the folders; they are removed when the match is over."""
    with tempfile.TemporaryDirectory(prefix="stress-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        for part in ("suite", "leases", "elsewhere", "referees", "results"):
            (folder / part).mkdir()
        (folder / "leases").chmod(0o1777)
        yield Ground(
            suite=folder / "suite",
            leases=folder / "leases",
            elsewhere=folder / "elsewhere",
            referees=folder / "referees",
            results=folder / "results",
            token=token,
        )


def play(here: Ground, sessions: Sequence[Session], *, tests: int, seed: int, limit_s: float, faults: bool) -> Outcome:
    """Run the sessions at once until all have ended."""
    nodeids = write_suite(here.suite, tests, seed)
    started = time.monotonic()
    with _referees(here) as reports:
        trouble = Faults(here, sessions, Random(seed))
        try:
            for session in sessions:
                session.start(here)
            while any(session.running for session in sessions) and time.monotonic() < started + limit_s:
                if faults:
                    trouble.step()
                else:
                    time.sleep(0.05)
        finally:
            trouble.end()
            late = [session for session in sessions if session.running]
            seconds = time.monotonic() - started
            left = [*_last(here, sessions), *still_there(here, sorted({session.uid for session in sessions}))]
    wrong = [f"{session.name}: not over after {limit_s:g} s\n{session.output()}" for session in late]
    for session in sessions:
        if not session.dies and session not in late:
            wrong += session.wrong(nodeids)
            if session.status not in {0, 1}:
                wrong.append(session.output())
    return Outcome(referees=reports, wrong=wrong, left=left, faults=trouble.done, seconds=seconds)


def _last(here: Ground, sessions: Sequence[Session]) -> list[str]:
    """Wait for everything to end by itself; end what does not, and say so."""
    for session in sessions:
        if session.running and session.process is not None:
            session.process.kill()
        if session.process is not None:
            session.process.wait()
    until = time.monotonic() + _LAST_GASP_S
    while (pids := processes_with(here.token)) and time.monotonic() < until:
        time.sleep(0.1)
    left = [f"process {pid}: {Path(f'/proc/{pid}/cmdline').read_bytes()!r}" for pid in pids]
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return left


@contextlib.contextmanager
def _referees(here: Ground) -> Iterator[dict[str, dict[str, Any]]]:
    """Start one for each device. What is yielded holds their reports when the block has ended."""
    reports: dict[str, dict[str, Any]] = {}
    memory = memory_mib()
    (here.referees / "memory.json").write_text(json.dumps(memory), encoding="utf-8")
    program = Path(__file__).with_name("referee.py")
    running = {}
    try:
        for key, mib in memory.items():
            path = here.referees / key.replace(":", "-")
            command = [sys.executable, str(program), str(path), str(mib), f"{path}.json"]
            running[key] = subprocess.Popen(command)
            while not path.exists() and running[key].poll() is None:
                time.sleep(0.01)
        yield reports
    finally:
        for key, process in running.items():
            process.terminate()
            process.wait()
            path = here.referees / f"{key.replace(':', '-')}.json"
            reports[key] = json.loads(path.read_text(encoding="utf-8"))


def keep(here: Ground, target: str) -> None:
    """Copy what sessions wrote, to be looked at after a failure."""
    shutil.copytree(here.results, target, dirs_exist_ok=True)
