"""One machine of fakes for the tests of a module, and the comparison after each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fakes.build import CannotBuild, cuda_library, hip_library
from tests.fakes.gpus import AMD_GPUS, NVIDIA_GPUS
from tests.fakes.machine import FakeMachine

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.proofs.rig import Rig


@pytest.fixture(scope="module")
def rig_of_module(fake_drivers_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """The rig, whose processes are kept from one test to the next; nothing of it is left at the end."""
    pytest.importorskip("execnet", reason="needs execnet")
    from tests.proofs.rig import Rig

    folder = tmp_path_factory.mktemp("proof")
    (folder / "leases").mkdir()
    machine = FakeMachine(folder, {})
    machine.nvidia(*NVIDIA_GPUS, p2p=[(0, 1)])
    machine.amd(*AMD_GPUS, p2p=[(0, 1)])
    try:
        libraries = {"nvidia": cuda_library(fake_drivers_cache), "amd": hip_library(fake_drivers_cache)}
    except CannotBuild as reason:
        pytest.skip(f"fake drivers: {reason}")
    environ = {vendor: {**machine.environ, "LD_LIBRARY_PATH": str(path)} for vendor, path in libraries.items()}
    rig = Rig(machine, environ, folder / "leases")
    yield rig
    assert rig.close() == []


@pytest.fixture
def rig(rig_of_module: Rig) -> Iterator[Rig]:
    """The rig for one test, which holds the leases of all devices; nothing but the processes is left after it."""
    rig = rig_of_module
    rig.end("nvidia.0")
    opened = rig.opened
    lease = rig.lease()
    yield rig
    rig.release(lease)
    # Nobody who still runs has inherited a lock: another user gets all four at once.
    other = rig.another_user()
    other.release(rig.lease(other))
    other.close()
    if rig.running and rig.opened == opened:
        assert rig.left() == []
    else:
        assert rig.end_all() == []
