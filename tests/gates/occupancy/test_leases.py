"""The leases of other sessions, held by real processes in a folder of the test."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist.leases.claims import Claim
from pytest_gpucoexist.leases.records import Identity, Record, lease_text
from tests.conftest import ROOT
from tests.gates.judging import verdict, verdicts
from tests.leases.machines import AMD, NVIDIA, told, with_process, workstation

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pytest_gpucoexist.host import Host

HOLDER = """
import sys
from dataclasses import replace
from pytest_gpucoexist.leases.machine import MachineLeaser
from pytest_gpucoexist.leases.places import Place
from pytest_gpucoexist.leases.records import Identity
from pytest_gpucoexist.model.groups import Group
from pytest_gpucoexist.model.requirement import Requirement
from pytest_gpucoexist.probes import discover
from tests.leases.machines import workstation

folder, *keys = sys.argv[1:]
machine = replace(discover(workstation().host()), simulated=False)
leaser = MachineLeaser(lambda: machine, Place(kind="folder", folder=folder), Identity("s1", "gw0"))
for key in keys:
    leaser.acquire([Group(requirement=Requirement(), candidates=(key,))], "test_a.py::test_x")
    print("holds", flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def no_other_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions of this computer's users, which run beside these tests, are none of the machine that was built."""
    monkeypatch.setattr("pytest_gpucoexist.leases.view.user_folders", lambda: iter(()))


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[int]:
    """A process that holds the NVIDIA card of the workstation."""
    argv = [sys.executable, "-c", HOLDER, str(tmp_path), NVIDIA]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "holds\n"
        yield process.pid
        process.stdin.close()


def machine(folder: Path) -> Host:
    return told(workstation().with_environ(PYTEST_GPU_LEASE_DIR=str(folder)))


@pytest.mark.proves("proc.lock", "PASS", on="host")
def test_nobody_holds_anything(tmp_path: Path) -> None:
    said = verdict(machine(tmp_path), "proc.lock")
    assert (said.status, said.reason) == ("PASS", "no other session holds it")
    assert set(said.devices) == {NVIDIA, AMD}
    assert list(tmp_path.iterdir()) == []  # nothing was made to look


@pytest.mark.proves("proc.lock", "WARN", on="host")
def test_another_session_is_named(tmp_path: Path, holder: int) -> None:
    said = verdicts(machine(tmp_path), "proc.lock")
    assert [(each.status, each.devices) for each in said] == [("WARN", (NVIDIA,)), ("PASS", (AMD,))]
    assert said[0].reason == f"held by pytest {holder} of user {os.getuid()} for test_a.py::test_x"


def test_a_share_is_told(tmp_path: Path) -> None:
    record = Record(str(tmp_path), Identity("s1"))
    try:
        record.write([lease_text(1, "test_b.py::test_y", 1.0, [Claim(AMD, AMD, None, 4096, 24576)])], [])
        said = verdicts(machine(tmp_path), "proc.lock")
    finally:
        record.remove()
    assert said[0].reason.endswith("for test_b.py::test_y, 4096 MiB of it")


def test_a_lock_without_a_record_counts(tmp_path: Path, holder: int) -> None:
    import shutil

    shutil.rmtree(tmp_path / str(os.getuid()))
    said = verdicts(machine(tmp_path), "proc.lock")
    assert holder
    assert (said[0].status, said[0].reason) == ("WARN", "held by somebody without a record")


def test_a_worker_of_this_run_is_no_other_session(tmp_path: Path, holder: int) -> None:
    files = with_process(workstation(), holder, "pytest", parent=300)
    said = verdict(told(files.with_environ(PYTEST_GPU_LEASE_DIR=str(tmp_path))), "proc.lock")
    assert said.status == "PASS"


def test_a_replayed_machine_has_no_leases_to_judge() -> None:
    assert verdict(workstation(), "proc.lock").status == "SKIP"
