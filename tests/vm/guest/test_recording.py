"""A recording of the guest replays to what was seen in it, there and outside."""

from __future__ import annotations

import base64
import json
import sys
from typing import TYPE_CHECKING, Any

from tests.vm.guest.drivers import load
from tests.vm.guest.system import run

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

COMMAND = (sys.executable, "-m", "pytest_gpucoexist")


def show(*arguments: str) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(run(*COMMAND, "show", "--json", "--no-vendor", *arguments).stdout)
    return shown


def test_a_recording_replays(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    load("nvidia", "nvidia-uvm", "amdgpu")
    archive = tmp_path / "workstation.tar.gz"
    run(*COMMAND, "record", "--no-vendor", str(archive))
    live, replayed = show(), show("--machine", str(archive))
    print(archive.stat().st_size)
    assert set(live) == set(replayed)
    for one, other in zip(live["gpus"], replayed["gpus"], strict=True):
        for field in (
            "id",
            "pci_address",
            "vendor",
            "driver",
            "numa_node",
            "link",
            "drm",
            "upstream",
            "bars",
            "usable",
        ):
            assert one[field] == other[field], field
    content = base64.b64encode(archive.read_bytes()).decode()
    request.node.user_properties.append(("recording", {"archive": content, "machine": replayed}))
