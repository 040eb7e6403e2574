"""Systems without Linux's locks: what is left of leases there, in processes that are made to look like them."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere this is what all tests run on")

# What Windows lacks is taken away before anything of the package is imported.
_WINDOWS = """
import os, sys
sys.modules["fcntl"] = None
for name in ("O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "O_NOCTTY", "geteuid", "getuid", "getpgrp",
             "getsid", "register_at_fork", "fork", "fchmod", "pread", "pwrite"):
    delattr(os, name)
"""
_MACOS = """
import fcntl
for name in [name for name in vars(fcntl) if name.startswith("F_OFD")]:
    delattr(fcntl, name)
"""
_LEASE = """
import sys
from types import SimpleNamespace
from pytest_gpucoexist.errors import DeviceBusyError
from pytest_gpucoexist.leases import places
from pytest_gpucoexist.leases.machine import Identity, MachineLeaser
from pytest_gpucoexist.model.groups import Group
from pytest_gpucoexist.model.requirement import Requirement
from tests.machines import GIB, machine, nvidia

places._roots = lambda: (sys.argv[1],)
host = SimpleNamespace(simulated=True, platform=sys.argv[2])
place = places.find_place(host)
print(place.kind, place.locks, *place.notes)
box = machine(nvidia(0), nvidia(1), simulated=True)
one, two = (MachineLeaser(lambda: box, place, Identity("s")) for _ in range(2))
groups = [Group(requirement=Requirement(memory_bytes=GIB), candidates=("0000:41:00.0",))]
lease = one.acquire(groups, "test_a")
try:
    two.acquire(groups, "test_b", timeout_s=0.05)
except DeviceBusyError as error:
    print(error)
one.release(lease)
print(two.acquire(groups, "test_b").keys, two.held())
two.close()
"""


@pytest.mark.parametrize(
    ("system", "before", "kind"),
    [("win32", _WINDOWS, "process process"), ("darwin", _MACOS, "user flock")],
)
def test_devices_are_leased_whole(tmp_path: Path, system: str, before: str, kind: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", before + _LEASE, str(tmp_path), system],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stderr == ""
    place, busy, given = done.stdout.splitlines()
    assert place.startswith(kind)
    assert "this system has no locks on ranges of a file" in place
    assert busy.startswith("test_b: no free device among 0000:41:00.0")
    assert given == "('0000:41:00.0',) {'0000:41:00.0': 'test_b'}"
