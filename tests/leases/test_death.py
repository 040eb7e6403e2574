"""A device is free again when its memory is: real processes that die, and NVIDIA's own client on a fake driver.

The fake driver keeps the memory of a dead process for a while, in a process of its own; nothing here judges how long.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist.leases.kin import Dead, Kin
from pytest_gpucoexist.leases.occupancy import Occupancy
from pytest_gpucoexist.testing.builder import a_machine
from tests.conftest import ROOT
from tests.fakes.driver import fake_driver, give_back, take
from tests.leases.machines import GIB, used_here
from tests.vendor.machines import RTX_4090

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pytest_gpucoexist.leases.lease import Holder
    from tests.fakes.machine import FakeMachine

KEY = "0000:41:00.0"

HOLDER = """
import os, subprocess, sys, time
sys.path.insert(0, {root!r})
from tests.fakes.driver import take
what, folder = sys.argv[1:]
if what == "itself":
    take(folder, 4 << 30)
elif what == "fork" and os.fork() == 0:
    take(folder, 2 << 30)
elif what == "server":
    code = "import sys, time; sys.path.insert(0, sys.argv[1]); from tests.fakes.driver import take;"
    code += "take(sys.argv[2], 3 << 30); time.sleep(120)"
    subprocess.Popen([sys.executable, "-c", code, {root!r}, folder], start_new_session=True)
print("holds", flush=True)
time.sleep(120)
"""


@pytest.fixture
def device(fake_machine: FakeMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder with the users of an RTX 4090, whose NVML this process's children load."""
    from dataclasses import replace

    for name, value in fake_machine.environ.items():
        monkeypatch.setenv(name, value)
    fake_machine.nvidia(replace(RTX_4090, processes=(), memory_used_bytes=0))
    folder = tmp_path / "users"
    folder.mkdir()
    fake_machine.put({"nvidia.0.users": folder})
    return folder


@pytest.fixture
def occupancy(device: Path) -> Iterator[Occupancy]:
    assert device.is_dir()
    host, machine = used_here(a_machine().with_gpu("rtx4090", address=KEY))
    known = Occupancy(host, lambda: machine, lambda: (), deadline_s=60)
    known.prepare([KEY])
    yield known
    known.close()


@contextmanager
def a_holder(folder: Path, what: str) -> Iterator[tuple[subprocess.Popen[bytes], Dead]]:
    """Run a process that has the device in one way or another, and end all that it left."""
    host, _machine = used_here(a_machine())
    token = f"token-{os.getpid()}-{what}"
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER.format(root=str(ROOT)), what, str(folder)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTEST_GPU_LEASE_TOKEN": token},
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        stat = Kin(host).stat(process.pid)
        assert stat is not None
        yield (
            process,
            Dead(
                pid=process.pid,
                group=stat.group,
                session_id=stat.session_id,
                started=stat.started,
                token=token,
                test="test_a.py::test_x",
            ),
        )
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()  # a child may have it too: its end would not come
        for path in folder.iterdir():
            if path.name.isdecimal() and int(path.name) != os.getpid():
                try:
                    os.kill(int(path.name), signal.SIGKILL)
                except ProcessLookupError:
                    continue


def users(folder: Path) -> set[int]:
    return {int(path.name) for path in folder.iterdir() if path.name.isdecimal()}


def wait_for_users(folder: Path, count: int) -> set[int]:
    """Wait until so many processes have memory; a child may need a moment to start."""
    while len(users(folder)) != count:
        time.sleep(0.01)
    return users(folder)


def watched(occupancy: Occupancy, dead: Dead, folder: Path) -> list[tuple[Holder, ...]]:
    """Ask until the device is free; what was said before that. Memory is never there when it is called free."""
    said: list[tuple[Holder, ...]] = []
    while True:
        holders = occupancy.busy([KEY], fresh=True, dead={KEY: [dead]}).get(KEY, ())
        if not holders:
            assert users(folder) == set()
            assert occupancy.problems() == {}
            return said
        said.append(holders)


def test_the_holder_of_an_idle_device_leaves_nothing(occupancy: Occupancy, device: Path) -> None:
    with a_holder(device, "nothing") as (process, dead):
        process.kill()
        process.wait()
        assert watched(occupancy, dead, device) == []


@pytest.mark.parametrize("keep_s", [0.0, 2.0])
def test_memory_that_the_driver_still_keeps(occupancy: Occupancy, device: Path, keep_s: float) -> None:
    with fake_driver(device, keep_s), a_holder(device, "itself") as (process, dead):
        process.kill()
        process.wait()
        said = watched(occupancy, dead, device)
    if keep_s:
        assert said
    for (holder,) in said:
        assert (holder.kind, holder.pid, holder.test) == ("leftover", dead.pid, "test_a.py::test_x")
        assert holder.memory_bytes == 4 * GIB


@pytest.mark.parametrize(("what", "size"), [("fork", 2 * GIB), ("server", 3 * GIB)])
def test_what_outlives_the_holder_is_named(occupancy: Occupancy, device: Path, what: str, size: int) -> None:
    with fake_driver(device, 0.5), a_holder(device, what) as (process, dead):
        (child,) = wait_for_users(device, 1)
        process.kill()
        process.wait()
        (holder,) = occupancy.busy([KEY], fresh=True, dead={KEY: [dead]})[KEY]
        assert (holder.kind, holder.pid, holder.memory_bytes) == ("leftover", child, size)
        assert holder.program is not None
        assert holder.program.startswith("python")
        assert holder.uid == os.getuid()
        os.kill(child, signal.SIGKILL)
        watched(occupancy, dead, device)


def test_an_orphan_of_an_unknown_parent_is_a_stranger(occupancy: Occupancy, device: Path) -> None:
    with fake_driver(device, 0.0), a_holder(device, "fork") as (process, _dead):
        (child,) = wait_for_users(device, 1)
        assert occupancy.busy([KEY], fresh=True) == {}  # a child of a child of this process
        process.kill()
        process.wait()
        (holder,) = occupancy.busy([KEY], fresh=True)[KEY]
        assert (holder.kind, holder.pid, holder.memory_bytes) == ("elsewhere", child, 2 * GIB)


def test_this_process_and_its_children_are_not_foreign(occupancy: Occupancy, device: Path) -> None:
    take(device, 8 * GIB)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        take(device, GIB, child.pid)
        assert occupancy.busy([KEY], fresh=True) == {}
    finally:
        child.communicate(b"\n")
        give_back(device, child.pid)
        give_back(device)


def test_a_library_that_hangs_costs_its_deadline_once(device: Path, fake_machine: FakeMachine) -> None:
    fake_machine.fault("nvidia.nvmlInitWithFlags", "hang 60")
    host, machine = used_here(a_machine().with_gpu("rtx4090", address=KEY))
    known = Occupancy(host, lambda: machine, lambda: (), deadline_s=1)
    for _ in range(3):
        assert known.busy([KEY], fresh=True) == {}
    assert "no answer within 1 s" in known.problems()[KEY]
    assert len(fake_machine.callers()) == 1
    assert users(device) == set()


class TestTheHelperThatStays:
    def test_one_process_answers_all(self, occupancy: Occupancy, device: Path, fake_machine: FakeMachine) -> None:
        for _ in range(5):
            assert occupancy.busy([KEY], fresh=True) == {}
        assert len(fake_machine.callers()) == 1
        assert fake_machine.calls().count("nvmlInitWithFlags") == 1
        (pid,) = fake_machine.callers()
        occupancy.close()
        assert not os.path.exists(f"/proc/{pid}")
        assert occupancy.busy([KEY], fresh=True) == {}  # by one of its own
        assert len(fake_machine.callers()) == 2
        assert occupancy.problems() == {}

    @pytest.mark.parametrize(
        ("action", "words"),
        [
            ("hang 60", "no answer within 0.5 s"),
            ("segv", "it was killed by SIGSEGV without an answer"),
            ("kill", "it was killed by SIGKILL without an answer"),
            ("status 15", "GPU is lost"),
        ],
    )
    def test_a_library_that_fails_while_it_stays(
        self, device: Path, fake_machine: FakeMachine, action: str, words: str
    ) -> None:
        host, machine = used_here(a_machine().with_gpu("rtx4090", address=KEY))
        known = Occupancy(host, lambda: machine, lambda: (), deadline_s=60)
        known.prepare([KEY])
        assert known.busy([KEY]) == {}
        (pid,) = fake_machine.callers()
        function = "nvmlDeviceGetHandleByIndex_v2" if action.startswith("status") else "nvmlDeviceGetMemoryInfo"
        fake_machine.fault(f"nvidia.0.{function}", action)
        known._deadline_s = 0.5 if action.startswith("hang") else 60
        assert known.busy([KEY], fresh=True) == {}
        assert words in known.problems()[KEY]
        known.close()
        assert not os.path.exists(f"/proc/{pid}")
        assert users(device) == set()

    def test_a_library_that_does_not_open(self, device: Path, fake_machine: FakeMachine) -> None:
        fake_machine.fault("nvidia.nvmlInitWithFlags", "status 18")
        host, machine = used_here(a_machine().with_gpu("rtx4090", address=KEY))
        known = Occupancy(host, lambda: machine, lambda: (), deadline_s=60)
        known.prepare([KEY])
        assert known.busy([KEY], fresh=True) == {}
        assert "driver/library version mismatch" in known.problems()[KEY]
        known.close()
        assert device.is_dir()

    def test_it_ends_with_the_process_that_asked(self, device: Path, fake_machine: FakeMachine) -> None:
        code = (
            "import os, signal, sys; sys.path.insert(0, sys.argv[1]);"
            "from tests.leases.machines import used_here, a_machine;"
            "from pytest_gpucoexist.leases.occupancy import Occupancy;"
            "host, machine = used_here(a_machine().with_gpu('rtx4090', address=sys.argv[2]));"
            "known = Occupancy(host, lambda: machine, lambda: (), deadline_s=60);"
            "known.prepare([sys.argv[2]]); known.busy([sys.argv[2]]); os.kill(os.getpid(), signal.SIGKILL)"
        )
        done = subprocess.run([sys.executable, "-c", code, str(ROOT), KEY], check=False)
        assert done.returncode == -signal.SIGKILL
        (pid,) = fake_machine.callers()
        host, _machine = used_here(a_machine())
        while (stat := Kin(host).stat(pid)) is not None and stat.state != "Z":  # where nobody collects orphans
            time.sleep(0.01)
        assert device.is_dir()
