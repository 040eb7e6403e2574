"""A GPU that is listed and does not answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings, strategies as st

from pytest_gpucoexist.gates.pcie.folders import ASLEEP
from pytest_gpucoexist.host import open_recording
from pytest_gpucoexist.testing.builder import a_machine
from tests.gates.judging import judged, subject_of, verdict, verdicts
from tests.gates.pcie.trees import address_of, folder_of, put, space

if TYPE_CHECKING:
    from pathlib import Path

GATE = "pcie.config_space"
BOTH = a_machine().with_gpu("rtx4090").with_gpu("rx7900xtx")


@pytest.mark.proves(GATE, "PASS", on="tree")
def test_gpus_that_answer() -> None:
    found = verdict(BOTH, GATE)
    assert (found.status, len(found.devices)) == ("PASS", 2)
    assert "vendor 0x10de" in found.evidence[0].found
    assert not found.blocks


@pytest.mark.proves(GATE, "PASS", on="recording")
@pytest.mark.parametrize(
    "name", ["vm-2node-switch.tar.gz", "lact/lact-intel-b580.tar.xz", "lact/lact-nvidia-rtx4080.tar.xz"]
)
def test_recorded_gpus_answer(shared: Path, name: str) -> None:
    host = open_recording(str(shared / "machines" / name))
    assert {each.status for each in verdicts(host, GATE)} == {"PASS"}


@pytest.mark.proves(GATE, "FAIL", on="tree")
def test_a_gpu_that_left_while_its_driver_holds_it_takes_itself_out() -> None:
    # NVIDIA/open-gpu-kernel-modules#1283: gone from the bus in D0, its driver still bound, nothing in the log.
    found = judged(BOTH.lose("nvidia0"), GATE)
    failed = next(each for each in found.verdicts if each.status == "FAIL")
    assert failed.reason == "nvidia0 (0000:01:00.0) does not answer on the bus any more although nvidia still holds it"
    assert "Power the machine off completely" in failed.action
    assert list(found.unfit) == [failed.devices[0]] == ["0000:01:00.0"]
    assert found.fit is False
    shown = {each.source.rpartition("/")[2]: each.found for each in failed.evidence}
    assert shown == {
        "config": "ff ff ff ff …: all ones",
        "current_link_speed": "Unknown",
        "current_link_width": "63",
        "max_link_speed": "64.0 GT/s PCIe",
    }


@pytest.mark.proves(GATE, "FAIL", on="tree")
def test_without_its_configuration_space_the_link_tells() -> None:
    machine = BOTH.lose("amd0")
    machine = machine.without(f"{folder_of(machine, 'amd0')}/config")
    found = next(each for each in verdicts(machine, GATE) if each.status == "FAIL")
    assert found.devices == (address_of(machine, "amd0"),)
    assert "amdgpu still holds it" in found.reason


def test_a_width_of_63_alone_is_no_proof() -> None:
    machine = BOTH.without(f"{folder_of(BOTH, 'nvidia0')}/config")
    machine = put(machine, "nvidia0", "current_link_width", "63\n")
    found = {each.status: each for each in verdicts(machine, GATE)}
    assert found["UNKNOWN"].devices == ("0000:01:00.0",)


@pytest.mark.proves(GATE, "FAIL", on="tree")
def test_a_gpu_whose_folder_went_away_since_discovery() -> None:
    import dataclasses

    from pytest_gpucoexist.gates.catalogue import all_gates
    from pytest_gpucoexist.gates.runner import judge
    from tests.gates.judging import SAID

    before = subject_of(BOTH)
    machine = BOTH.without(f"/sys/bus/pci/devices/{address_of(BOTH, 'nvidia0')}")
    after = dataclasses.replace(before, host=machine.host())
    judgement = judge(after, gates=[gate for gate in all_gates() if gate.id == GATE])
    SAID.extend(judgement.verdicts)
    assert list(judgement.unfit.values()) == [f"{GATE}: nvidia0 (0000:01:00.0) is gone from the bus"]


def test_a_tree_that_shows_gpus_in_drm_alone_has_lost_none(shared: Path) -> None:
    found = verdicts(open_recording(str(shared / "machines/procfs/procfs-amdgpu-i915.tar.xz")), GATE)
    assert {each.status for each in found} == {"PASS", "UNKNOWN"}


def test_a_sleeping_gpu_is_not_woken() -> None:
    machine = a_machine().with_gpu("rtx4090").sleep("nvidia0").lose("nvidia0")
    found = verdict(machine, GATE)
    assert (found.status, found.reason) == ("SKIP", ASLEEP)


def test_a_virtual_function_reads_ones_as_its_ids_and_answers() -> None:
    machine = put(BOTH, "nvidia0", "config", b"\xff" * 4 + space()[4:64])
    assert {each.status for each in verdicts(machine, GATE)} == {"PASS"}


@settings(max_examples=50)
@given(st.binary(max_size=70), st.text(max_size=8), st.text(max_size=12))
def test_garbage_never_takes_a_gpu_out(data: bytes, width: str, speed: str) -> None:
    machine = a_machine().with_gpu("rtx4090")
    machine = put(machine, "nvidia0", "config", data)
    machine = put(machine, "nvidia0", "current_link_width", width)
    machine = put(machine, "nvidia0", "current_link_speed", speed)
    found = verdict(machine, GATE)
    assert found.status in {"PASS", "UNKNOWN"} or not data.strip(b"\xff") or width.strip() == "63"
