"""What there is of a test run outside its own memory, so that before and after can be compared.

Processes are found by their parent and, since those whose parent died have another, by a mark in their environment.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from dataclasses import dataclass, fields
from pathlib import Path

from tests.processes.conftest import children, descriptors

__all__ = ["MARK", "Inventory", "differences", "inventory", "marked"]

MARK = "GPUCOEXIST_PROOF"
"""The variable whose value tells the processes of one proof from those of others."""

_CHANGES = {"PYTEST_CURRENT_TEST"}  # with each phase of a test


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """What must be as it was: nothing here is a count, so that a difference says what is left."""

    children: frozenset[int]
    marked: frozenset[int]
    descriptors: dict[str, str]
    mapped: tuple[str, ...]
    shared: frozenset[str]
    leases: frozenset[str]
    threads: frozenset[str]
    environment: dict[str, str]
    folder: str
    path: tuple[str, ...]


def inventory(mark: str, leases: Path) -> Inventory:
    """Take it: of this process, of those with this mark, and of the folder in which leases are kept."""
    gc.collect()
    return Inventory(
        children=frozenset(children()),
        marked=frozenset(marked(mark)),
        descriptors=descriptors(),
        mapped=tuple(_memfds()),
        shared=frozenset(name for name in os.listdir("/dev/shm") if not name.startswith("sem.")),
        leases=frozenset(str(path.relative_to(leases)) for path in leases.rglob("*")),
        threads=frozenset(each.name for each in threading.enumerate()),
        environment={name: value for name, value in os.environ.items() if name not in _CHANGES},
        folder=os.getcwd(),
        path=tuple(sys.path),
    )


def differences(before: Inventory, after: Inventory) -> list[str]:
    """Say what is not as it was."""
    found = []
    for each in fields(Inventory):
        old, new = getattr(before, each.name), getattr(after, each.name)
        if old != new:
            found.append(f"{each.name}: {_more(old, new)}")
    return found


def marked(mark: str) -> set[int]:
    """Return the living processes that were started with this mark; a zombie has no environment, but a parent."""
    wanted = f"{MARK}={mark}".encode()
    found = set()
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            variables = Path("/proc", name, "environ").read_bytes().split(b"\0")
        except OSError:  # it has just ended, or is another user's and so not ours
            continue
        if wanted in variables:
            found.add(int(name))
    return found


def _memfds() -> list[str]:
    lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    return [line for line in lines if "/memfd:gpucoexist" in line]


def _more(old: object, new: object) -> str:
    if isinstance(old, dict) and isinstance(new, dict):
        old, new = old.items(), new.items()
    if isinstance(old, str) or isinstance(new, str):
        return f"{old} became {new}"
    before, after = set(old), set(new)  # type: ignore[call-overload]
    return f"new {sorted(after - before)}, gone {sorted(before - after)}"
