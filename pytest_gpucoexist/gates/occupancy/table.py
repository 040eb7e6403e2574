"""The processes of this system, each by one read of `/proc/<pid>/stat`, and which of them are ours."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpucoexist.probes.reader import read_text

if TYPE_CHECKING:
    from pytest_gpucoexist.gates.subject import Subject

__all__ = ["QUICK_LIMIT", "Process", "Table", "in_first_namespace", "ours", "parse_stat", "process_table"]

QUICK_LIMIT = 600
"""A read costs some 50 µs: what is older than the newest 600 processes is the business of level standard."""

_LIMIT = 20000
# The inode of the namespace that the kernel starts with (PROC_PID_INIT_INO, include/linux/proc_ns.h).
_FIRST_NAMESPACE = "pid:[4026531836]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process: `name` is the kernel's, at most 15 bytes; `state` one letter (R, S, D, Z, …, proc_pid_stat(5))."""

    pid: int
    name: str
    state: str
    parent: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """What `/proc` shows. `problem` says why it shows nothing; `unread` counts processes that were not looked at.

    `hidden`: PID 1 is not there, so `/proc` was mounted with hidepid and others' processes are missing.
    """

    processes: Mapping[int, Process]
    me: int | None = None
    unread: int = 0
    hidden: bool = False
    problem: str | None = None

    @property
    def gap(self) -> str | None:
        """Say what is missing; None when every process was seen."""
        if self.unread:
            return f"{self.unread} processes were not looked at (level standard looks at all)"
        return "/proc hides the processes of other users (hidepid)" if self.hidden else None


def process_table(subject: Subject) -> Table:
    """Read the table once for all gates."""
    return subject.shared(("occupancy.table",), lambda: _table(subject))


def parse_stat(text: str) -> Process | None:
    """Understand `/proc/<pid>/stat`; the name stands in parentheses and may hold any of its own."""
    match = re.match(r"(\d{1,10}) \((.*)\) ([A-Za-z]) (-?\d{1,10}) ", text, re.DOTALL)
    if match is None:
        return None
    return Process(pid=int(match[1]), name=match[2], state=match[3], parent=int(match[4]))


def ours(subject: Subject) -> frozenset[int]:
    """Return this process, those above it, and all below: workers of a session are started by its controller."""
    table = process_table(subject)
    if table.me is None:
        return frozenset()
    above = [table.me]
    while (
        (process := table.processes.get(above[-1])) is not None and process.parent > 1 and process.parent not in above
    ):
        above.append(process.parent)
    # A worker of pytest-xdist is a child of the controller, and its siblings are ours too.
    root = above[1] if "PYTEST_XDIST_WORKER" in subject.host.environ and len(above) > 1 else table.me
    children: dict[int, list[int]] = {}
    for process in table.processes.values():
        children.setdefault(process.parent, []).append(process.pid)
    below: list[int] = [root]
    for pid in below:
        below += [child for child in children.get(pid, ()) if child not in below]
    return frozenset((*above, *below))


def in_first_namespace(subject: Subject) -> bool | None:
    """Whether PIDs here are those that the kernel and the drivers use; None where it cannot be told.

    In a container they are not: KFD and NVML then name PIDs that mean another process here, or none.
    """
    try:
        return subject.host.read_link("/proc/self/ns/pid") == _FIRST_NAMESPACE
    except OSError:
        return None


def _table(subject: Subject) -> Table:
    host = subject.host
    try:
        pids = [int(name) for name in host.list_dir("/proc") if name.isdecimal()]
    except OSError as error:
        return Table(processes={}, problem=f"/proc cannot be read: {error.strerror}")
    if not pids:
        return Table(processes={}, problem="/proc shows no process")
    limit = QUICK_LIMIT if subject.level == "quick" else _LIMIT
    found: dict[int, Process] = {}
    unread = 0
    for pid in sorted(pids, reverse=True)[:limit]:
        # Not through the subject's cache: nobody else reads it.
        text = read_text(host, f"/proc/{pid}/stat", 1024).text
        process = parse_stat(text) if text is not None else None
        if process is not None and process.pid == pid:
            found[pid] = process
        elif text is not None:
            unread += 1
    if not found:
        return Table(processes={}, problem="no /proc/<pid>/stat makes sense")
    return Table(
        processes=dict(sorted(found.items())),
        me=_me(subject),
        unread=unread + max(0, len(pids) - limit),
        hidden=1 not in pids,
    )


def _me(subject: Subject) -> int | None:
    try:
        name = subject.host.read_link("/proc/self").rpartition("/")[2]
    except OSError:
        return None
    return int(name) if name.isdecimal() else None
