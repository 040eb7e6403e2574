"""The tests for real devices run on the fake drivers too, so that they are known to work before there is a device.

What this shows is that they find, pin, copy and write down. Rates and links are of nothing here.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from typing import TYPE_CHECKING

import pytest

import tests.transfer.needs_numpy  # noqa: F401
from tests.conftest import ROOT
from tests.fakes.gpus import AMD_GPUS, NVIDIA_GPUS
from tests.hardware.links import LinkWatch
from tests.proofs.on_fakes import run_on_fakes, run_pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.machine import FakeMachine

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux"),
    pytest.mark.skipif(importlib.util.find_spec("execnet") is None, reason="needs execnet"),
]

_ALONE = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
"""
_ABSENT = {"hypothesis", "jsonschema", "yaml", "ml_dtypes", "cuda", "rocm", "hip", "pynvml", "amdsmi", "torch"}

HARDWARE = ("-m", "hardware", str(ROOT / "tests" / "hardware"))


@pytest.fixture(autouse=True)
def leases_of_this_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "leases").mkdir()
    monkeypatch.setenv("PYTEST_GPU_LEASE_DIR", str(tmp_path / "leases"))
    monkeypatch.setenv("GPUCOEXIST_HARDWARE_REPORT", str(tmp_path / "measured"))
    monkeypatch.setenv("GPUCOEXIST_HARDWARE_BYTES", str(4 << 20))
    monkeypatch.setenv("GPUCOEXIST_HARDWARE_LEVEL", "transfer")


def test_without_a_device_each_part_says_what_it_needs_and_nothing_of_ours_is_imported(tmp_path: Path) -> None:
    # An empty machine, whatever this one has.
    (tmp_path / "empty.json").write_text('{"name": "empty", "gpus": []}')
    (tmp_path / "alone.py").write_text(_ALONE.format(absent=_ABSENT))
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    machine = f"--gpu-machine={tmp_path / 'empty.json'}"
    done = run_pytest("-p", "alone", "-p", "no:xdist", *HARDWARE, machine, environ={"PYTHONPATH": path})
    assert done.returncode == 0, done.stdout
    assert "passed" not in done.stdout
    assert "needs 1 NVIDIA GPU" in done.stdout


def test_they_pass_on_both_vendors_drivers(
    fake_gpus: FakeMachine, fake_cuda: dict[str, str], fake_hip: dict[str, str], tmp_path: Path
) -> None:
    # Of each vendor one device, and both where a test takes two: the others show nothing new.
    done = run_on_fakes(fake_gpus, tmp_path, *HARDWARE, "-k", "not nvidia1 and not amd1 and not of_one_device")
    assert done.returncode == 0, done.stdout
    assert "skipped" not in done.stdout.splitlines()[-1], done.stdout
    written = json.loads((tmp_path / "measured.json").read_text())
    assert {gpu["name"] for gpu in written["machine"]["gpus"]} == {gpu.name for gpu in (*NVIDIA_GPUS, *AMD_GPUS)}
    ways = [test for test in written["tests"] if test.startswith("test_transfers.py::test_between_vendors")]
    assert len(ways) == 2
    assert all(row["gbps"] > 0 for test in ways for row in written["tests"][test]["copies"])
    rates = [values["rates"] for test, values in written["tests"].items() if test.startswith("test_rates.py")]
    assert len(rates) == 2
    assert all(
        row["pinned"] == "yes" and row["lowest"] <= row["gbps"] <= row["highest"] for rows in rates for row in rows
    )
    tried = [values["integrity"] for test, values in written["tests"].items() if test.startswith("test_trials.py")]
    assert len(tried) == 1
    assert all(row["wrong"] == "" for rows in tried for row in rows)
    table = (tmp_path / "measured.md").read_text()
    assert table.startswith("# Measured on stand-ins")
    assert "| staged |" in table


def test_a_device_that_keeps_nothing_fails_them(
    fake_gpus: FakeMachine, fake_cuda: dict[str, str], fake_hip: dict[str, str], tmp_path: Path
) -> None:
    fake_gpus.order("nvidia.0.copy.h2d", "flip 0", each=True)
    done = run_on_fakes(fake_gpus, tmp_path, *HARDWARE, "-k", "to_a_device_and_back and nvidia")
    assert done.returncode == 1, done.stdout
    assert "1 failed" in done.stdout


def test_the_slowest_hop_outside_the_card_is_the_link(tmp_path: Path) -> None:
    # An AMD card: port and slot, then two bridges of its own, of which the outer one's link is the slot's.
    folder = tmp_path / "pci0000:00"
    for name, vendor, speed, width in [
        ("0000:00:01.0", "0x8086", "16.0 GT/s PCIe", "16"),
        ("0000:01:00.0", "0x1002", "8.0 GT/s PCIe", "16"),
        ("0000:02:00.0", "0x1002", "2.5 GT/s PCIe", "1"),
        ("0000:03:00.0", "0x1002", "2.5 GT/s PCIe", "1"),
    ]:
        folder /= name
        folder.mkdir(parents=True)
        for file, text in (("vendor", vendor), ("current_link_speed", speed), ("current_link_width", width)):
            (folder / file).write_text(f"{text}\n")
    devices = tmp_path / "devices"
    devices.mkdir()
    (devices / folder.name).symlink_to(folder)
    with LinkWatch(folder.name, str(devices)) as link:
        while not link.readings:
            pass
    assert link.best == pytest.approx(15.75e9, rel=1e-3)
