"""A recording of the guest replays to what was seen in it, there and outside."""

from __future__ import annotations

import base64
import json
import sys
from typing import TYPE_CHECKING

from pytest_gpucoexist.host import open_recording
from pytest_gpucoexist.probes import discover
from tests.vm.guest.drivers import load
from tests.vm.guest.judging import machine
from tests.vm.guest.system import run

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

PERSONAL = ("uuid", "facts", "kfd")
"""Where a recording has other identifiers."""


def test_a_recording_replays(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    load()
    archive = tmp_path / "workstation.tar.gz"
    run(sys.executable, "-m", "pytest_gpucoexist", "record", "--no-vendor", str(archive))
    live, replayed = machine().to_json(), discover(open_recording(str(archive))).to_json()
    assert len(live["gpus"]) == len(replayed["gpus"])
    for one, other in zip(live["gpus"], replayed["gpus"], strict=True):
        for field in set(one) - set(PERSONAL):
            assert one[field] == other[field], f"{one['id']}: {field}"
        if one["kfd"] is not None:
            assert {**one["kfd"], "unique_id": 0} == {**other["kfd"], "unique_id": 0}
    for field in ("numa_nodes", "drivers", "pci_functions", "kfd_cpu_nodes"):
        assert live[field] == replayed[field], field
    # Outside the archive is replayed again, and must give the same (tests/vm/collecting.py).
    content = base64.b64encode(archive.read_bytes()).decode()
    request.node.user_properties.append(("recording", {"archive": content, "machine": json.dumps(replayed)}))
