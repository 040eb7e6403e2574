"""Widths of links, and narrow hops."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist.gates.pcie.path import INTERNAL_BRIDGES, walk
from pytest_gpucoexist.host import open_recording
from pytest_gpucoexist.testing.builder import a_machine
from pytest_gpucoexist.testing.catalogue import CATALOGUE
from tests.gates.judging import subject_of, verdict, verdicts
from tests.gates.pcie.trees import address_of, folder_of, port_of, put

if TYPE_CHECKING:
    from pathlib import Path

GUEST = "processor\t: 0\nflags\t\t: fpu vme hypervisor lm\n"


@pytest.mark.proves("pcie.width", "PASS", on="tree")
@pytest.mark.proves("pcie.limited_by", "PASS", on="tree")
def test_a_link_as_wide_as_both_ends() -> None:
    machine = a_machine().with_gpu("rtx4090")
    found = verdict(machine, "pcie.width")
    assert (found.status, found.reason) == ("PASS", "x16, as wide as card and port allow")
    assert found.evidence[0].found == "16 GT/s x16 (252 Gb/s)"
    assert verdict(machine, "pcie.limited_by").status == "PASS"


@pytest.mark.proves("pcie.width", "PASS", on="tree")
def test_an_idle_link_is_slow_and_nothing_is_wrong() -> None:
    # RTX 6000 Ada, `lspci -vvv`: LnkSta: Speed 2.5GT/s (downgraded), Width x16.
    found = verdict(a_machine().with_gpu("rtx4090", link=(2.5, 16)), "pcie.width")
    assert found.status == "PASS"
    assert found.evidence[0].found == "2.5 GT/s x16 (32 Gb/s)"


@pytest.mark.proves("pcie.width", "WARN", on="tree")
def test_fewer_lanes_at_low_speed_may_be_power_saving() -> None:
    found = verdict(a_machine().with_gpu("rtx4090").train_link_down("nvidia0", 2.5, 4), "pcie.width")
    assert found.status == "WARN"
    assert found.reason == (
        "nvidia0 (0000:01:00.0) has 4 of 16 lanes (x4, expected x16); some cards drop lanes at idle"
    )
    assert "Reseat" in found.action


@pytest.mark.proves("pcie.width", "FAIL", on="tree")
def test_a_quarter_of_the_lanes_at_full_speed_is_a_fault_but_takes_nothing_out() -> None:
    machine = a_machine().with_gpu("rtx4090", link=(16.0, 4))
    found = verdict(machine, "pcie.width")
    assert (found.status, found.reason) == ("FAIL", "nvidia0 (0000:01:00.0) has 4 of 16 lanes (x4, expected x16)")
    assert not found.blocks
    declared = verdict(machine, "pcie.width", limits={"pcie.width": {"fail_share": 0.0}})
    assert declared.status == "WARN"


def test_half_of_the_lanes_is_a_warning() -> None:
    assert verdict(a_machine().with_gpu("rtx4090", link=(16.0, 8)), "pcie.width").status == "WARN"


def test_external_gpus_and_guests_are_warned_of_only() -> None:
    narrow = a_machine().with_gpu("rtx4090", link=(16.0, 4))
    outside = put(narrow, port_of(narrow, "nvidia0"), "removable", "removable\n")
    assert "external GPU" in verdict(outside, "pcie.width").reason
    inside = narrow.with_file("/proc/cpuinfo", GUEST)
    assert "virtual machine" in verdict(inside, "pcie.width").reason


def test_what_an_emulated_port_claims_is_not_believed() -> None:
    # QEMU's pcie-root-port (1b36:000c) of older machine types: 2.5 GT/s x1, whatever the slot of the host is.
    machine = a_machine().with_gpu("rtx4090").with_file("/proc/cpuinfo", GUEST)
    port = port_of(machine, "nvidia0")
    files = {"vendor": "0x1b36", "device": "0x000c", "max_link_width": "1", "max_link_speed": "2.5 GT/s PCIe"}
    for name, value in files.items():
        machine = put(machine, port, name, f"{value}\n")
    found = verdict(machine, "pcie.width")
    assert found.reason == "x16, as wide as card and port allow"
    assert "the port does not say" in (found.evidence[0].expected or "")
    assert verdict(machine, "pcie.limited_by").status == "PASS"


def test_a_slot_that_is_wired_narrower_is_no_fault_of_the_card() -> None:
    machine = a_machine().with_gpu("rtx4090", link=(16.0, 4))
    port = port_of(machine, "nvidia0")
    machine = put(put(machine, port, "max_link_width", "4\n"), port, "current_link_width", "4\n")
    assert verdict(machine, "pcie.width").reason == "x4, as wide as card and port allow"


@pytest.mark.proves("pcie.limited_by", "WARN", on="tree")
def test_a_slot_with_a_quarter_of_the_lanes_is_told_as_such() -> None:
    machine = a_machine().with_gpu("rtx4090", link=(16.0, 4))
    machine = put(machine, port_of(machine, "nvidia0"), "max_link_width", "4\n")
    found = verdict(machine, "pcie.limited_by")
    assert found.status == "WARN"
    assert found.reason == (
        "a narrow hop: x4 at 0000:00:01.1 -> 0000:01:00.0, where nvidia0 (0000:01:00.0) has 16 lanes"
    )
    assert verdict(machine, "pcie.limited_by", limits={"pcie.limited_by": {"least_lanes": 0.0}}).status == "PASS"
    outside = put(machine, "nvidia0", "removable", "removable\n")
    assert verdict(outside, "pcie.limited_by").status == "PASS"


@pytest.mark.proves("pcie.limited_by", "WARN", on="tree")
def test_gpus_that_share_a_narrow_uplink_are_named() -> None:
    machine = a_machine().with_switch("board", width=4).with_gpu("rtx4090", under="board")
    machine = machine.with_gpu("rtx4090", under="board")
    first = next(each for each in verdicts(machine, "pcie.limited_by") if "nvidia0 (" in each.reason)
    assert first.status == "WARN"
    assert first.reason.endswith("where nvidia0 (0000:03:00.0) has 16 lanes, shared with nvidia1")
    assert {each.status for each in verdicts(machine, "pcie.width")} == {"PASS"}


@pytest.mark.proves("pcie.width", "WARN", on="tree")
def test_the_switch_on_a_radeon_is_left_out() -> None:
    # ilya-zlobintsev/LACT#334: the GPU shows 16 GT/s x16 inside the card, the slot is another matter.
    machine = a_machine().with_gpu("rx7900xtx")
    bridges = CATALOGUE["rx7900xtx"].bridges
    assert all(tuple(bridge.split(":")) in INTERNAL_BRIDGES for bridge in bridges)
    up = port_of(machine, "amd0", 1)
    narrow = put(machine, up, "current_link_width", "8\n")
    found = verdict(narrow, "pcie.width")
    assert found.status == "WARN"
    assert "8 of 16 lanes" in found.reason
    assert found.evidence[0].source == f"/sys/bus/pci/devices: {port_of(machine, 'amd0')} -> {up}"
    assert "the card's own switch" in found.evidence[0].found


@pytest.mark.proves("pcie.width", "PASS", on="tree")
@pytest.mark.proves("pcie.limited_by", "PASS", on="tree")
def test_the_link_inside_an_arc_card_means_nothing() -> None:
    # Syllo/nvtop#344 and the recorded B580: the GPU and the port above it say 2.5 GT/s x1, for good.
    machine = a_machine().with_gpu("arc-b580")
    up, down = (port_of(machine, "intel0", number) for number in (1, 2))
    for address in (down, address_of(machine, "intel0")):
        for which in ("current", "max"):
            machine = put(machine, address, f"{which}_link_width", "1\n")
            machine = put(machine, address, f"{which}_link_speed", "2.5 GT/s PCIe\n")
    for address in (up, port_of(machine, "intel0")):
        for which in ("current", "max"):
            machine = put(machine, address, f"{which}_link_width", "8\n")
            machine = put(machine, address, f"{which}_link_speed", "16.0 GT/s PCIe\n")
    subject = subject_of(machine)
    found = walk(subject, subject.functions("intel")[0])
    assert found.internal == (up, down)
    assert found.card is not None
    assert (found.card.lower, found.card.width, found.card.speed_gtps) == (up, 8, 16.0)
    assert verdict(machine, "pcie.width").reason == "x8, as wide as card and port allow"
    assert verdict(machine, "pcie.limited_by").reason == "the card's 8 lanes meet at least 8 on every hop"


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"current_link_width": "0\n"}, "the negotiated width cannot be read"),
        ({"current_link_width": "255\n"}, "the negotiated width cannot be read"),
        ({"current_link_width": "garbage\n"}, "the negotiated width cannot be read"),
    ],
)
def test_widths_that_make_no_sense_are_unknown(files: dict[str, str], words: str) -> None:
    machine = a_machine().with_gpu("rtx4090")
    for name, content in files.items():
        machine = put(machine, "nvidia0", name, content)
    found = verdict(machine, "pcie.width")
    assert (found.status, found.reason) == ("UNKNOWN", words)


def test_integrated_and_sleeping_gpus_are_left_alone() -> None:
    assert verdict(a_machine().with_gpu("radeon-780m"), "pcie.width").status == "SKIP"
    asleep = a_machine().with_gpu("rtx4090", link=(16.0, 1)).sleep("nvidia0")
    assert verdict(asleep, "pcie.width").status == "SKIP"
    assert verdict(asleep, "pcie.limited_by").status == "SKIP"


@pytest.mark.proves("pcie.width", "WARN", on="recording")
@pytest.mark.proves("pcie.width", "PASS", on="recording")
@pytest.mark.proves("pcie.limited_by", "WARN", on="recording")
def test_the_recorded_virtual_workstation(shared: Path) -> None:
    host = open_recording(str(shared / "machines/vm-2node-switch.tar.gz"))
    found = {device: each for each in verdicts(host, "pcie.width") for device in each.devices}
    assert found["0000:43:00.0"].status == "PASS"
    assert found["0000:44:00.0"].reason.startswith("nvidia1 (0000:44:00.0) has 4 of 16 lanes")
    assert found["0000:81:00.0"].reason == "no PCI Express device: it has no such link"
    hops = {device: each for each in verdicts(host, "pcie.limited_by") for device in each.devices}
    # QEMU's switch has one lane (it is the TI XIO3130).
    assert "x1 at 0000:40:00.0 -> 0000:41:00.0" in hops["0000:43:00.0"].reason


def test_what_was_not_recorded_is_unknown(shared: Path) -> None:
    host = open_recording(str(shared / "machines/lact/lact-amd-r7-240.tar.xz"))
    found = verdict(host, "pcie.width")
    assert (found.status, found.reason) == ("UNKNOWN", "its link cannot be judged: the bridges above it are not known")


def test_folders_of_functions(shared: Path) -> None:
    from pytest_gpucoexist.gates.pcie.folders import folder

    subject = subject_of(open_recording(str(shared / "machines/lact/lact-amd-r7-240.tar.xz")))
    assert folder(subject, subject.functions()[0]) == "/sys/class/drm/card1/device"
    assert folder_of(a_machine().with_gpu("rtx4090"), "nvidia0").startswith("/sys/devices/")
