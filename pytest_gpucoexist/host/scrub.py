"""Files about a process in which people show: what of them a record may keep.

`/proc/self` tells the name of the program, folders that a person mounted, names of jobs and users in control groups.
What gates look for stays: limits, CPUs, mounts of the kernel.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["cgroup_folder", "mounts", "process_name_in", "process_status"]

_MOUNTS_KEPT = re.compile(r"/(?:dev|proc|sys)(?:/|\Z)")
_CONTROL_FILE = re.compile(r"(?:cgroup|cpu|cpuacct|cpuset|devices|memory|pids)\.[a-z_.]+")
_CONTROLLERS = re.compile(r"(?:(?:blkio|cpu|cpuacct|cpuset|devices|freezer|memory|pids|systemd|unified)(?:,|\Z))+")


def mounts(text: str) -> str:
    """Keep of `/proc/self/mountinfo` and `/proc/mounts` the mounts in the kernel's own folders."""
    kept = []
    for line in text.splitlines():
        words = line.split(" ")
        point = words[4:5] if " - " in line else words[1:2]
        if point and _MOUNTS_KEPT.match(point[0]):
            kept.append(line)
    return "".join(f"{line}\n" for line in kept)


def process_status(text: str) -> str:
    """Keep of `/proc/self/status` everything but the name of the program."""
    return re.sub(r"^Name:.*$", "Name:\tprocess", text, flags=re.MULTILINE)


def process_name_in(text: str, replaced: Callable[[str], str]) -> str:
    """Replace the program's name in `/proc/<pid>/stat` (in parentheses) and `/proc/<pid>/sched` (first word)."""
    found = re.match(r"\d+ \((?P<stat>.*)\) [A-Za-z] |(?P<sched>[^\n]+) \(\d+, #threads: \d+\)", text, re.DOTALL)
    if found is None:
        return ""
    group = "stat" if found["stat"] is not None else "sched"
    return text[: found.start(group)] + replaced(found[group]) + text[found.end(group) :]


def cgroup_folder(path: str, replaced: Callable[[str], str]) -> str:
    """Replace, in a path below `/sys/fs/cgroup`, the names of groups as in `/proc/self/cgroup`."""
    head, parts = path.split("/")[:4], path.split("/")[4:]
    if parts and _CONTROLLERS.fullmatch(parts[0]):
        head.append(parts.pop(0))
    return "/".join([*head, *(part if _CONTROL_FILE.fullmatch(part) else replaced(part) for part in parts)])
