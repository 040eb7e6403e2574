"""When all is over nothing is held: the command sees every device free, each user gets all, no record is left."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.stress.sessions import Session, command_environment
from tests.stress.suite import MACHINE, memory_mib

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.stress.sessions import Ground

__all__ = ["still_there"]

_EVERYTHING = """import pytest


@pytest.mark.cuda(count=2)
@pytest.mark.rocm
def test_everything(held, gpus):
    assert {gpu.pci_address for gpu in gpus} == set(%r)
"""


def still_there(here: Ground, uids: Iterable[int]) -> list[str]:
    """Return what is held or left in the folder of leases, with the referees still at work."""
    found = _held(here)
    suite = here.suite / "all"
    suite.mkdir()
    for name in (MACHINE, "conftest.py", "pytest.ini"):
        (suite / name).symlink_to(here.suite / name)
    (suite / "test_all.py").write_text(_EVERYTHING % list(memory_mib()), encoding="utf-8")
    for uid in uids:
        session = Session(name=f"all-{uid}", uid=uid, namespace=False, arguments=("--gpu-wait=5",))
        session.start(replace(here, suite=suite))
        assert session.process is not None
        session.process.wait(60)
        found += session.wrong(["test_all.py::test_everything"])
        if session.status:
            found.append(session.output())
    # The table stays: it is a place, not a lease. Records of the dead are gone once their user has been there again.
    found += [f"{path} is left" for path in here.leases.rglob("*") if path.is_file() and path.name != "table"]
    return found


def _held(here: Ground) -> list[str]:
    command = [sys.executable, "-m", "pytest_gpucoexist", "leases", "--json", f"--machine={here.suite / MACHINE}"]
    done = subprocess.run(
        [*command, f"--lease-dir={here.leases}"], env=command_environment(), capture_output=True, text=True, check=False
    )
    if done.returncode:
        return [f"gpucoexist leases: {done.stderr}"]
    board = json.loads(done.stdout)
    keys = {device["key"] for device in board["devices"]}
    found = [] if keys == set(memory_mib()) else [f"gpucoexist leases shows {sorted(keys)}"]
    found += [f"{device['key']} is held: {device['holders']}" for device in board["devices"] if device["holders"]]
    return found + [f"still waits: {waiting}" for waiting in board["waiting"]]
