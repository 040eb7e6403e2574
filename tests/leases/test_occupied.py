"""Occupancy as a leaser asks for it: who is ours and who died is told by records as processes write them."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist.leases.claims import Claim
from pytest_gpucoexist.leases.occupied import MachineOccupancy
from pytest_gpucoexist.leases.records import Identity, Record, lease_text
from pytest_gpucoexist.probes import discover
from tests.conftest import ROOT
from tests.leases.machines import GIB, NVIDIA, User, board, told, with_process, workstation

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pytest_gpucoexist.leases.lease import Holder
    from pytest_gpucoexist.testing.builder import MachineBuilder

DIES = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from pytest_gpucoexist.leases.claims import Claim
from pytest_gpucoexist.leases.records import Identity, Record, lease_text
record = Record(sys.argv[2], Identity("s1", "gw0"))
record.write([lease_text(1, "test_a.py::test_x", 1.0, [Claim(sys.argv[3], sys.argv[3])])], [])
print(os.getpid(), record.nonce, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Record]:
    """A record of this process, which lives."""
    record = Record(str(tmp_path), Identity("s1", "gw1"))
    yield record
    record.remove()


def dies(folder: Path) -> tuple[int, str]:
    """Let a process die that holds the device; return its PID and what its children have in their environment."""
    argv = [sys.executable, "-c", DIES, str(ROOT), str(folder), NVIDIA]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    pid, nonce = done.stdout.split()
    return int(pid), nonce


def ask(folder: Path, machine: MachineBuilder, *boards: dict[str, object], fresh: bool = False) -> tuple[Holder, ...]:
    host = told(machine, *boards)
    found = discover(host)
    return MachineOccupancy(host, lambda: found, str(folder)).busy([NVIDIA], fresh).get(NVIDIA, ())


def test_a_process_with_a_record_is_not_foreign(tmp_path: Path, record: Record) -> None:
    machine = with_process(workstation(), os.getpid(), "pytest", parent=1)
    boards = board(NVIDIA, User(os.getpid(), 8 * GIB))
    assert [holder.pid for holder in ask(tmp_path, machine, boards)] == [os.getpid()]
    record.write([], [])  # it holds nothing now, and may keep a cache
    assert ask(tmp_path, machine, boards) == ()


def test_a_lease_covers_what_cannot_be_matched(tmp_path: Path, record: Record) -> None:
    machine = workstation(namespace="pid:[4026532843]")
    boards = board(NVIDIA, used=20 * GIB)
    assert [holder.memory_bytes for holder in ask(tmp_path, machine, boards)] == [20 * GIB]
    record.write([lease_text(1, "test_a", 1.0, [Claim(NVIDIA, NVIDIA)])], [])
    assert ask(tmp_path, machine, boards) == ()
    record.write([lease_text(1, "test_a", 1.0, [Claim(NVIDIA, NVIDIA, None, 4096, 24576)])], [])
    assert [holder.memory_bytes for holder in ask(tmp_path, machine, boards)] == [16 * GIB]


def test_what_a_worker_held_before_may_be_its_cache(tmp_path: Path, record: Record) -> None:
    machine = workstation(namespace="pid:[4026532843]")
    boards = board(NVIDIA, used=20 * GIB)
    record.note([Claim(NVIDIA, NVIDIA)])
    record.write([], [])
    assert ask(tmp_path, machine, boards) == ()
    record.remove()
    assert [holder.memory_bytes for holder in ask(tmp_path, machine, boards)] == [20 * GIB]


def test_who_died_is_named_by_the_record_that_is_left(tmp_path: Path) -> None:
    pid, nonce = dies(tmp_path)
    (holder,) = ask(tmp_path, workstation(), board(NVIDIA, used=4 * GIB), fresh=True)
    assert (holder.kind, holder.pid, holder.memory_bytes) == ("leftover", pid, 4 * GIB)
    assert (holder.session, holder.test) == ("s1", "test_a.py::test_x")
    orphan = with_process(workstation(), 4242, "server").with_file(
        "/proc/4242/environ", f"PYTEST_GPU_LEASE_TOKEN=1:1:{nonce}:{tmp_path}/0/{pid}.json\0"
    )
    (holder,) = ask(tmp_path, orphan, board(NVIDIA, User(4242, 4 * GIB)))
    assert (holder.kind, holder.pid, holder.program) == ("leftover", 4242, "server")
    assert holder.test == "test_a.py::test_x"


def test_after_a_death_without_a_record_memory_still_counts(tmp_path: Path) -> None:
    (holder,) = ask(tmp_path, workstation(), board(NVIDIA, used=4 * GIB), fresh=True)
    assert (holder.kind, holder.pid, holder.memory_bytes) == ("leftover", None, 4 * GIB)
    assert ask(tmp_path, workstation(), board(NVIDIA, used=4 * GIB)) == ()


def test_a_stranger_that_is_looked_at_again_is_still_a_stranger(tmp_path: Path) -> None:
    host = told(workstation(namespace="pid:[4026532843]"), board(NVIDIA, used=4 * GIB))
    machine = discover(host)
    occupancy = MachineOccupancy(host, lambda: machine, str(tmp_path))
    for fresh in (False, True, True):
        (holder,) = occupancy.busy([NVIDIA], fresh)[NVIDIA]
        assert (holder.kind, holder.pid, holder.memory_bytes) == ("elsewhere", None, 4 * GIB)


def test_a_replayed_machine_and_one_of_json_have_no_users(tmp_path: Path) -> None:
    machine = discover(workstation().host())
    for host in (workstation().host(), None):
        assert MachineOccupancy(host, lambda: machine, str(tmp_path)).busy([NVIDIA], True) == {}
