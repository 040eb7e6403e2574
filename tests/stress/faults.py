"""What goes wrong while the sessions run, drawn from a seed."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from tests.stress.sessions import Ground, Session

__all__ = ["Faults"]

_KILLS_EACH = 6
_UNLINKS = 3
_REPORTS_BEFORE_THE_CONTROLLER_DIES = 150  # three a test


class Faults:
    """Kills, stops and unlinks. `done` counts what happened."""

    def __init__(self, ground: Ground, sessions: Sequence[Session], draw: random.Random) -> None:
        """`draw` decides what happens next."""
        self._ground = ground
        self._sessions = sessions
        self._draw = draw
        self._stopped: dict[int, float] = {}
        self.done = {"killed workers": 0, "killed controllers": 0, "stopped": 0, "unlinked": 0}

    def step(self) -> None:
        """Do what is due, and perhaps something new."""
        for pid, until in list(self._stopped.items()):
            if time.monotonic() >= until:
                self._continue(pid)
        running = [session for session in self._sessions if session.running]
        for session in running:
            if session.dies and _count(session) >= _REPORTS_BEFORE_THE_CONTROLLER_DIES and session.process is not None:
                session.process.kill()
                self.done["killed controllers"] += 1
        begun = [session for session in running if _count(session)]
        if begun:
            session = self._draw.choice(begun)
            self._draw.choices((self._kill, self._stop, self._unlink), (4, 4, 1))[0](session)
        time.sleep(self._draw.uniform(0.05, 0.4))

    def end(self) -> None:
        """Let everything go on that is stopped."""
        for pid in list(self._stopped):
            self._continue(pid)

    def _workers(self, session: Session) -> list[int]:
        """Return its workers, mostly those that hold something now."""
        holding = session.workers(self._ground.token, holding=True) if self._draw.random() < 0.7 else []
        return holding or session.workers(self._ground.token)

    def _kill(self, session: Session) -> None:
        workers = self._workers(session)
        if workers and session.kills < _KILLS_EACH:
            with suppress(ProcessLookupError):
                os.kill(self._draw.choice(workers), signal.SIGKILL)
                session.kills += 1
                self.done["killed workers"] += 1

    def _stop(self, session: Session) -> None:
        pids = self._workers(session)
        if session.process is not None and self._draw.random() < 0.2:
            pids = [session.process.pid]
        if pids:
            pid = self._draw.choice(pids)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                self._stopped[pid] = time.monotonic() + self._draw.choice((0.05, 0.3, 1.0))
                self.done["stopped"] += 1

    def _continue(self, pid: int) -> None:
        del self._stopped[pid]
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    def _unlink(self, _session: Session) -> None:
        if self.done["unlinked"] >= _UNLINKS:
            return
        for path in self._ground.leases.iterdir():
            if path.is_file():
                path.unlink()
                self.done["unlinked"] += 1


def _count(session: Session) -> int:
    path = session.folder / "reports.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0
