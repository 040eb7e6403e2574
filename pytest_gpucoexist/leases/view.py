"""What can be seen of a place from outside, without taking anything: records of all users, locks without a record."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from pytest_gpucoexist.leases.claims import claim_for
from pytest_gpucoexist.leases.forks import close, opened
from pytest_gpucoexist.leases.function import attribute
from pytest_gpucoexist.leases.layout import SLOT_BYTES, slot
from pytest_gpucoexist.leases.lease import Holder
from pytest_gpucoexist.leases.ofd import available, conflict
from pytest_gpucoexist.leases.places import user_folders
from pytest_gpucoexist.leases.reading import records
from pytest_gpucoexist.leases.table import NAME
from pytest_gpucoexist.model.requirement import Requirement

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from pytest_gpucoexist.host import Host
    from pytest_gpucoexist.leases.places import Place
    from pytest_gpucoexist.leases.reading import Seen
    from pytest_gpucoexist.model.machine import Machine

__all__ = ["all_records", "locked_unrecorded"]

# "1: FLOCK  ADVISORY  WRITE 8485 00:16:4786 0 EOF" (proc_locks(5)); the PID is -1 for ranges of an opening.
_FLOCK = re.compile(r"^\d+: FLOCK\s+\S+\s+(?:READ|WRITE) (-?\d+) ([0-9a-f]+):([0-9a-f]+):(\d+) ", re.MULTILINE)


def all_records(place: Place) -> Iterator[Seen]:
    """Yield the records that concern a place: those of its folder, and of every user's own where functions are locked.

    Never raises. Sessions with another folder hold PCI functions too.
    """
    folders = [place.folder] if place.folder is not None else []
    if place.functions is not None:
        folders += [folder for folder, _ in user_folders() if folder not in folders]
    for folder in folders:
        yield from records(folder)


def locked_unrecorded(place: Place, machine: Machine, named: Collection[str], host: Host | None = None) -> list[Holder]:
    """Return a holder of kind `unknown` for each device that is locked, and is not among the keys that are `named`.

    With `host`, `/proc/locks` tells the PID of who locked a PCI function without this package. Never raises.
    """
    prefix = f"{machine.name}:" if machine.simulated else ""
    owners = _flock_owners(host) if host is not None and place.functions is not None else {}
    found: list[Holder] = []
    table = _opened(os.path.join(place.folder, NAME)) if place.folder is not None and available() else None
    try:
        for gpu in machine.gpus:
            if gpu.key in named or not gpu.is_compute:
                continue
            claim = claim_for(gpu, Requirement(), prefix=prefix)
            pids = (
                owners.get(_identity(attribute(place.functions, claim.function)), ())
                if (place.functions is not None and claim.function is not None and claim.parent is None)
                else ()
            )
            found += [Holder(key=gpu.key, kind="unknown", pid=pid) for pid in pids]
            if not pids and table is not None and _is_locked(table, claim.name):
                found.append(Holder(key=gpu.key, kind="unknown"))
    finally:
        if table is not None:
            close(table)
    return found


def _is_locked(fd: int, name: str) -> bool:
    try:
        return conflict(fd, slot(name), SLOT_BYTES) is not None
    except OSError:
        return False


def _opened(path: str) -> int | None:
    try:
        return opened(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None


def _identity(path: str) -> tuple[int, int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return -1, -1, -1
    return os.major(found.st_dev), os.minor(found.st_dev), found.st_ino


def _flock_owners(host: Host) -> dict[tuple[int, int, int], list[int]]:
    """Return the PIDs that `/proc/locks` gives for each file that has a flock: (major, minor, inode)."""
    try:
        text = host.read_bytes("/proc/locks", 1 << 22).decode("ascii", "replace")
    except OSError:
        return {}
    found: dict[tuple[int, int, int], list[int]] = {}
    for pid, major, minor, inode in _FLOCK.findall(text):
        if int(pid) > 0:
            found.setdefault((int(major, 16), int(minor, 16), int(inode)), []).append(int(pid))
    return found
