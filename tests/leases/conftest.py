"""Processes and a machine for tests of leases."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from pytest_gpucoexist.leases import places
from tests.leases.processes import Process, folder_place
from tests.machines import amd, machine, nvidia

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.leases.places import Place
    from pytest_gpucoexist.model.machine import Machine


class Start(Protocol):
    def __call__(self, machine: Machine | None = None, place: Place | None = None, **settings: Any) -> Process: ...


@pytest.fixture
def box() -> Machine:
    """Two cards of 24 GiB, two of 64; a replayed machine, so that no PCI function of this one is locked."""
    return machine(nvidia(0), nvidia(1), amd(0), amd(1), simulated=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder as an administrator makes it."""
    path = tmp_path / "leases"
    path.mkdir()
    path.chmod(0o1777)
    return path


@pytest.fixture
def start(box: Machine, folder: Path) -> Iterator[Start]:
    """Start processes that lease; all have ended after the test."""
    started: list[Process] = []

    def begin(machine: Machine | None = None, place: Place | None = None, **settings: Any) -> Process:
        started.append(Process(machine or box, place or folder_place(folder), **settings))
        return started[-1]

    yield begin
    for each in started:
        each.end()


@pytest.fixture
def functions() -> Iterator[list[str]]:
    """The PCI functions of this machine. Tests that lock them run one at a time, whatever process they run in."""
    fcntl = pytest.importorskip("fcntl")
    try:
        addresses = sorted(os.listdir(places.FUNCTIONS))
    except OSError:
        addresses = []
    if not addresses:
        pytest.skip(f"needs a PCI function in {places.FUNCTIONS}")
    with open(__file__) as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        yield addresses


@pytest.fixture
def root() -> None:
    """Need the rights to become another user."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        pytest.skip("needs root: to run as two users, or in a mount namespace of its own")


@pytest.fixture
def everybodys(root: None) -> Iterator[Path]:
    """A folder that other users can reach: pytest's own temporary folders are closed to them."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        os.chmod(name, 0o1777)
        yield Path(name)
