"""A lease whose holder was killed: who waits gets the device when nothing of the dead is left on it, and not before.

The holder and the waiter are processes with leasers of their own; NVIDIA's client is asked on a fake driver.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist.leases.opening import open_leaser
from pytest_gpucoexist.model.groups import Group
from pytest_gpucoexist.model.requirement import Requirement
from pytest_gpucoexist.testing.builder import a_machine
from tests.conftest import ROOT
from tests.fakes.driver import fake_driver
from tests.leases.machines import used_here
from tests.leases.test_death import device, users, wait_for_users

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pytest_gpucoexist.leases.lease import Holder, Waiting

__all__ = ["device"]

KEY = "0000:41:00.0"
GROUP = Group(requirement=Requirement(), candidates=(KEY,))

HOLDER = """
import os, subprocess, sys
from pytest_gpucoexist.leases.opening import open_leaser
from tests.fakes.driver import take
from tests.leases.machines import a_machine, used_here
from tests.leases.test_handover import GROUP, KEY

what, leases, folder = sys.argv[1:]
host, machine = used_here(a_machine().with_gpu("rtx4090", address=KEY))
leaser = open_leaser(lambda: machine, host, lease_dir=leases, session="s1", worker="gw0")
lease = leaser.acquire([GROUP], "test_a.py::test_x")
if what == "memory":
    take(folder, 4 << 30)
elif what == "server":
    os.environ["PYTEST_GPU_LEASE_TOKEN"] = leaser.token(lease)
    code = "import sys, time; from tests.fakes.driver import take; take(sys.argv[1], 3 << 30); time.sleep(120)"
    subprocess.Popen([sys.executable, "-c", code, folder])
print("holds", flush=True)
sys.stdin.read()
"""


@contextmanager
def a_holder(what: str, leases: Path, folder: Path) -> Iterator[subprocess.Popen[str]]:
    argv = [sys.executable, "-c", HOLDER, what, str(leases), str(folder)]
    process = subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "holds\n"
        yield process
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
        for pid in users(folder):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


class Waits:
    """What a waiter was told, and the first time that it was told anything: then it is waiting."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.said: list[Waiting] = []

    def __call__(self, waiting: Waiting) -> None:
        if not self.said:
            self.process.kill()
        self.said.append(waiting)

    @property
    def leftovers(self) -> list[Holder]:
        return [holder for each in self.said for holder in each.holders if holder.kind == "leftover"]


@pytest.mark.parametrize(("what", "keep_s"), [("nothing", 0.0), ("memory", 0.0), ("memory", 2.0)])
def test_a_killed_holder(device: Path, tmp_path: Path, what: str, keep_s: float) -> None:
    leases = tmp_path / "leases"
    leases.mkdir()
    host, machine = used_here(a_machine().with_gpu("rtx4090", address=KEY))
    leaser = open_leaser(lambda: machine, host, lease_dir=str(leases), session="s2")
    with fake_driver(device, keep_s), a_holder(what, leases, device) as process:
        assert len(users(device)) == (what == "memory")
        waits = Waits(process)
        lease = leaser.acquire([GROUP], "test_b.py::test_y", on_wait=waits, timeout_s=120)
        assert users(device) == set()
        # Records of other folders are read too, and a session of this user may have a device of the same name.
        told = [(holder.kind, holder.pid, holder.test) for holder in waits.said[0].holders]
        assert ("lease", process.pid, "test_a.py::test_x") in told
        if keep_s:
            assert {holder.pid for holder in waits.leftovers} == {process.pid}
        leaser.release(lease)
        leaser.close()
    assert not (what == "nothing" and waits.leftovers)


def test_a_server_that_outlives_its_test_keeps_the_device(device: Path, tmp_path: Path) -> None:
    leases = tmp_path / "leases"
    leases.mkdir()
    host, machine = used_here(a_machine().with_gpu("rtx4090", address=KEY))
    leaser = open_leaser(lambda: machine, host, lease_dir=str(leases), session="s2")
    with fake_driver(device, 0.2), a_holder("server", leases, device) as process:
        (server,) = wait_for_users(device, 1)
        waits = Waits(process)

        def on_wait(waiting: Waiting) -> None:
            waits(waiting)
            if waits.leftovers:
                os.kill(server, signal.SIGKILL)

        lease = leaser.acquire([GROUP], "test_b.py::test_y", on_wait=on_wait, timeout_s=120)
        assert users(device) == set()
        assert {holder.pid for holder in waits.leftovers} == {server}
        leaser.release(lease)
        leaser.close()
