"""A child that was forked past Python keeps its dead parent's lease, and is named."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist.errors import DeviceBusyError
from pytest_gpucoexist.host import local_host
from pytest_gpucoexist.leases.kept import holders_now
from pytest_gpucoexist.leases.opening import open_leaser
from pytest_gpucoexist.leases.reading import records
from pytest_gpucoexist.model.groups import Group
from pytest_gpucoexist.model.requirement import Requirement
from pytest_gpucoexist.probes import discover
from pytest_gpucoexist.testing.demo import demo_host
from tests.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

KEY = "0000:03:00.0"
GROUP = Group(requirement=Requirement(), candidates=(KEY,))

PARENT = """
import ctypes, os, signal, sys, time
from pytest_gpucoexist.leases.opening import open_leaser
from pytest_gpucoexist.probes import discover
from pytest_gpucoexist.testing.demo import demo_host
from tests.leases.test_kept import GROUP

host = demo_host()
machine = discover(host)
leaser = open_leaser(lambda: machine, host, lease_dir=sys.argv[1], session="s1")
leaser.acquire([GROUP], "test_a.py::test_x")
reads, writes = os.pipe()
child = ctypes.CDLL(None).fork() if sys.argv[2] == "c" else os.fork()
if child == 0:
    os.write(writes, b"1")  # what a child of Python closes is closed by now
    time.sleep(120)
    os._exit(0)
os.read(reads, 1)
print(os.getpid(), child, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("how", ["c", "python"])
def test_a_forked_child(tmp_path: Path, how: str) -> None:
    host = demo_host()
    machine = discover(host)
    leaser = open_leaser(lambda: machine, host, lease_dir=str(tmp_path), session="s2")
    argv = [sys.executable, "-c", PARENT, str(tmp_path), how]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        parent, child = map(int, process.stdout.readline().split())
        try:
            process.wait()
            seen = [replace(each, namespace=os.readlink("/proc/self/ns/pid")) for each in records(str(tmp_path))]
            held = list(holders_now(local_host(), [each for each in seen if each.live]))
            if how == "python":
                assert held == []
            else:
                (holder,) = held
                assert (holder.kind, holder.pid, holder.test) == ("leftover", child, "test_a.py::test_x")
                assert holder.pid != parent
                assert holder.program is not None
                with pytest.raises(DeviceBusyError) as refused:
                    leaser.acquire([GROUP], "test_b.py::test_y", timeout_s=0)
                assert KEY in str(refused.value)
        finally:
            os.kill(child, signal.SIGKILL)
    leaser.release(leaser.acquire([GROUP], "test_b.py::test_y", timeout_s=60))
    leaser.close()
