"""Whose a process is: ours, left by a holder that died, or somebody else's; read from `/proc`, few processes at a time.

A PID means the process that `/proc` shows only in the namespace that it was counted in. In a container NVML and KFD
may give PIDs of the host, which there name another process, or none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pytest_gpucoexist.leases.token import VARIABLE
from pytest_gpucoexist.probes.attributes import text_or_none
from pytest_gpucoexist.probes.reader import names_in

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from pytest_gpucoexist.host.base import Host
    from pytest_gpucoexist.probes.occupants import Occupant

__all__ = ["Dead", "Kin", "Stat", "keepers", "user_name"]

# The inode of the namespace that the kernel starts with (PROC_PID_INIT_INO, include/linux/proc_ns.h).
_FIRST_NAMESPACE = "pid:[4026531836]"
_NODE = re.compile(r"/dev/(?:nvidia|dri/|kfd|dxg|nvhost|nvmap)")
_STAT = re.compile(r"\d+ \((.*)\) (\S) (-?\d+) (-?\d+) (-?\d+)(?: \S+){15} (\d+)", re.DOTALL)
_ENVIRON_BYTES = 1 << 18
_MAX_DEPTH = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Dead:
    """A holder that died: what its record said; PID 0 where it left none.

    `started` is field 22 of its `/proc/PID/stat`, in ticks since boot. `token` is a part of the lease's token, in the
    environment of its children, that no other process has.
    """

    pid: int
    group: int | None = None
    session_id: int | None = None
    started: int | None = None
    token: str | None = None
    session: str | None = None
    test: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stat:
    """Fields of `/proc/PID/stat` (proc_pid_stat(5))."""

    name: str
    state: str
    parent: int
    group: int
    session_id: int
    started: int


class Kin:
    """Answers for one moment: each process is read once. `ours` are the PIDs of processes that use the plugin."""

    def __init__(self, host: Host, ours: Collection[int] = ()) -> None:
        self._host = host
        self._stats: dict[int, Stat | None] = {}
        self._me = self._own()
        self._roots = {*ours, self._me} - {0}
        self._above = set(self._line(self._me))
        mine = self.stat(self._me)
        if mine is not None and mine.parent > 1 and self._is_worker():
            self._roots.add(mine.parent)  # the controller, and with it the other workers
        self._first: bool | None = None
        self._hidden: bool | None = None

    def stat(self, pid: int) -> Stat | None:
        """Read a process; None when it is gone or cannot be read."""
        if pid not in self._stats:
            found = _STAT.match(text_or_none(self._host, f"/proc/{pid}/stat") or "") if pid > 0 else None
            self._stats[pid] = found and Stat(
                name=found[1],
                state=found[2],
                parent=int(found[3]),
                group=int(found[4]),
                session_id=int(found[5]),
                started=int(found[6]),
            )
        return self._stats[pid]

    def is_ours(self, pid: int) -> bool:
        """Whether it is a process of the plugin, a child of one, this process, or one that waits for this process."""
        return pid in self._roots or pid in self._above or any(each in self._roots for each in self._line(pid))

    def place(self, occupant: Occupant) -> Literal["here", "hidden", "gone", "unmatched"]:
        """Say whether the PID can be looked up: here, of a user whom `/proc` hides, gone by now, of elsewhere."""
        if occupant.local:
            return "here"
        exists = self.stat(occupant.pid) is not None
        if self.is_first is False:
            return "here" if exists and self._has_gpu_open(occupant.pid) else "unmatched"
        if exists:
            return "here"
        if self.hides:
            return "hidden"
        return "gone" if self.is_first else "unmatched"

    @property
    def is_first(self) -> bool | None:
        """Whether this is the namespace whose PIDs drivers count in; None where that cannot be told."""
        if self._first is None:
            try:
                self._first = self._host.read_link("/proc/self/ns/pid") == _FIRST_NAMESPACE
            except OSError:
                return None
        return self._first

    @property
    def hides(self) -> bool:
        """Whether `/proc` shows only one's own processes (hidepid): PID 1 exists in every namespace."""
        if self._hidden is None:
            self._hidden = not self._host.exists("/proc/1")
        return self._hidden

    def left_by(self, pid: int, dead: Iterable[Dead]) -> Dead | None:
        """Return the dead holder that a process is, or comes from: by its token, its process group, its session.

        A process with a record of its own answers for itself, and a mate in the group may be another worker's child.
        """
        stat = self.stat(pid)
        for each in dead:
            if pid == each.pid:
                return each if each.started is None or stat is None or stat.started == each.started else None
        if stat is None or pid in self._roots:
            return None
        by_token = next((each for each in dead if self._has_token(pid, each)), None)
        if by_token is not None or self.is_ours(pid):
            return by_token
        return next((each for each in dead if self._is_younger_mate(stat, each)), None)

    def user(self, pid: int) -> tuple[int | None, str | None]:
        """Return the user of a process: number, and name where this machine's own file has it."""
        try:
            uid = self._host.stat(f"/proc/{pid}").uid
        except OSError:
            return None, None
        return uid, user_name(self._host, uid)

    def _own(self) -> int:
        try:
            name = self._host.read_link("/proc/self").rpartition("/")[2]
        except OSError:
            return 0
        return int(name) if name.isdecimal() else 0

    def _line(self, pid: int) -> list[int]:
        """Return a process and those above it. Init is nobody's family, unless it is pytest itself, in a container."""
        found: list[int] = []
        while (pid > 1 or pid in self._roots) and pid not in found and len(found) < _MAX_DEPTH:
            found.append(pid)
            stat = self.stat(pid)
            pid = stat.parent if stat is not None else 0
        return found

    def _has_gpu_open(self, pid: int) -> bool:
        for number in names_in(self._host, f"/proc/{pid}/fd"):
            try:
                if _NODE.match(self._host.read_link(f"/proc/{pid}/fd/{number}")):
                    return True
            except OSError:
                continue
        return False

    def _is_worker(self) -> bool:
        """Whether this process is a worker of pytest-xdist, and not just started by the test of one.

        A worker sets its variable itself, so it is not in the environment that the process was started with.
        """
        worker = self._host.environ.get("PYTEST_XDIST_WORKER")
        return worker is not None and f"PYTEST_XDIST_WORKER={worker}".encode() not in self._environ(self._me)

    def _environ(self, pid: int) -> list[bytes]:
        """Read the variables that a process was started with; none where they cannot be read."""
        try:
            return self._host.read_bytes(f"/proc/{pid}/environ", _ENVIRON_BYTES).split(b"\0")
        except OSError:
            return []

    def _has_token(self, pid: int, dead: Dead) -> bool:
        if not dead.token:
            return False
        variables = [each for each in self._environ(pid) if each.startswith(f"{VARIABLE}=".encode())]
        return any(dead.token.encode() in each for each in variables)

    @staticmethod
    def _is_younger_mate(stat: Stat, dead: Dead) -> bool:
        """Whether it shares group or session with the dead one and did not exist before it."""
        mates = (dead.group is not None and stat.group == dead.group) or (
            dead.session_id is not None and stat.session_id == dead.session_id
        )
        return mates and dead.started is not None and stat.started >= dead.started


def user_name(host: Host, uid: int) -> str | None:
    """Return a user's name from this machine's own file: the name service of a company can take seconds."""
    for line in (text_or_none(host, "/etc/passwd") or "").splitlines():
        parts = line.split(":")
        if len(parts) > 2 and parts[2] == str(uid):
            return parts[0]
    return None


def keepers(host: Host, paths: Collection[str]) -> dict[int, str]:
    """Return the processes that have one of these files open, with their names: who may still keep its locks.

    A child that was forked past Python (by a C library) keeps the descriptors of its parent, and so its locks. Other
    users' descriptors cannot be read.
    """
    found: dict[int, str] = {}
    wanted = {*paths, *(f"{path} (deleted)" for path in paths)}
    for name in filter(str.isdecimal, names_in(host, "/proc")):
        for number in names_in(host, f"/proc/{name}/fd"):
            try:
                link = host.read_link(f"/proc/{name}/fd/{number}")
            except OSError:
                continue
            if link in wanted:
                found[int(name)] = text_or_none(host, f"/proc/{name}/comm") or "?"
                break
    return found
