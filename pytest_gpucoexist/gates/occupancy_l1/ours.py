"""Which processes are this run's own, by `/proc`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytest_gpucoexist.probes.reader import read_text

if TYPE_CHECKING:
    from pytest_gpucoexist.gates.subject import Subject

__all__ = ["is_ours", "name_of", "shown"]

_STAT = re.compile(r"(\d+) \(.*\) \S (\d+) ", re.DOTALL)
_MAX_DEPTH = 64


def is_ours(subject: Subject, pid: int) -> bool:
    """Whether a process is this one, a parent of it, or a child of it."""
    mine = _own(subject)
    return mine is not None and (pid in _parents(subject, mine) or mine in _parents(subject, pid))


def shown(subject: Subject, pid: int) -> bool:
    """Whether `/proc` has this PID. In a container NVML may give PIDs of the host's namespace."""
    return subject.host.exists(f"/proc/{pid}")


def name_of(subject: Subject, pid: int) -> str:
    """Return the name of a process; its PID where `/proc` does not tell."""
    return (read_text(subject.host, f"/proc/{pid}/comm").text or "").strip() or f"PID {pid}"


def _own(subject: Subject) -> int | None:
    try:
        name = subject.host.read_link("/proc/self")
    except OSError:
        return None
    return int(name) if name.isascii() and name.isdigit() else None


def _parents(subject: Subject, pid: int) -> list[int]:
    """Return a process and its parents, up to init."""
    found: list[int] = []
    while pid > 0 and pid not in found and len(found) < _MAX_DEPTH:
        found.append(pid)
        match = _STAT.match(read_text(subject.host, f"/proc/{pid}/stat").text or "")
        pid = int(match[2]) if match else 0
    return found
