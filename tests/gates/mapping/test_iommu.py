"""The IOMMU: its mode, its groups, and what they mean for peers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucoexist.host import open_recording
from pytest_gpucoexist.host.base import HelperReply
from pytest_gpucoexist.probes import discover
from pytest_gpucoexist.testing.builder import MachineBuilder, a_machine
from tests.gates.judging import verdict, verdicts
from tests.gates.pcie.trees import address_of, put

if TYPE_CHECKING:
    from pathlib import Path

MODE, GROUP = "mem.iommu.mode", "mem.iommu.group"


def grouped(machine: MachineBuilder, kind: str, cmdline: str = "ro quiet") -> MachineBuilder:
    """Give every IOMMU group a type, as iommu_group_show_type prints it."""
    for number in range(24):
        machine = machine.with_file(f"/sys/kernel/iommu_groups/{number}/type", f"{kind}\n")
    return machine.with_file("/proc/cmdline", f"BOOT_IMAGE=/boot/vmlinuz {cmdline}\n")


ONE = a_machine().with_gpu("rtx4090")


@pytest.mark.proves(MODE, "PASS", on="tree")
@pytest.mark.parametrize(
    ("kind", "cmdline", "words"),
    [
        ("DMA-FQ", "quiet", "the IOMMU translates (DMA-FQ)"),
        ("identity", "iommu=pt", "the IOMMU lets addresses pass (identity)"),
        ("identity", "quiet", "the IOMMU lets addresses pass (identity)"),
    ],
)
def test_the_mode_is_told(kind: str, cmdline: str, words: str) -> None:
    found = verdict(grouped(ONE, kind, cmdline), MODE)
    assert (found.status, found.reason) == ("PASS", words)


@pytest.mark.proves(MODE, "PASS", on="recording")
def test_a_machine_without_an_iommu(shared: Path) -> None:
    found = verdict(open_recording(str(shared / "machines/vm-2node-switch.tar.gz")), MODE)
    assert found.reason == "the IOMMU is off or not there"


@pytest.mark.proves(MODE, "WARN", on="tree")
@pytest.mark.parametrize(
    ("kind", "cmdline", "words"),
    [
        ("DMA", "iommu=pt", "iommu=pt was asked for, and the IOMMU translates (DMA)"),
        ("DMA", "intel_iommu=off", "intel_iommu=off was asked for, and the IOMMU translates (DMA)"),
    ],
)
def test_a_mode_that_nobody_asked_for(kind: str, cmdline: str, words: str) -> None:
    found = verdict(grouped(ONE, kind, cmdline), MODE)
    assert (found.status, found.reason) == ("WARN", words)


def test_devices_outside_are_translated_whatever_was_asked() -> None:
    assert verdict(put(grouped(ONE, "DMA", "iommu=pt"), "nvidia0", "removable", "removable\n"), MODE).status == "PASS"


def test_a_mode_that_makes_no_sense() -> None:
    assert verdict(grouped(ONE, "turbo"), MODE).status == "UNKNOWN"
    assert verdict(ONE, MODE).status == "UNKNOWN", "no type was recorded"


@pytest.mark.proves(GROUP, "PASS", on="tree")
def test_a_group_of_the_host() -> None:
    assert verdict(ONE, GROUP).reason == "its IOMMU group belongs to the host"


@pytest.mark.proves(GROUP, "WARN", on="tree")
def test_a_virtual_machine_holds_the_sound_of_the_card() -> None:
    # wezterm/wezterm#3561: the card's sound function was left to vfio-pci, its graphics to the host.
    sound = "0000:01:00.1"
    folder = ONE.host().resolve(f"/sys/bus/pci/devices/{sound}")
    machine = ONE.with_link(f"{folder}/driver", "../../../../bus/pci/drivers/vfio-pci")
    found = verdict(machine, GROUP)
    assert found.status == "WARN"
    assert "0000:01:00.1 (vfio-pci)" in found.reason


def test_a_card_that_was_given_away_is_not_the_hosts() -> None:
    machine = ONE.with_wrong_driver("nvidia0", "vfio-pci")
    assert verdict(machine, GROUP).reason == "itself bound to vfio-pci: not the host's"


def test_groups_that_cannot_be_read() -> None:
    folder = ONE.host().resolve(f"/sys/bus/pci/devices/{address_of(ONE, 'nvidia0')}")
    alone = ONE.without(f"{folder}/iommu_group")
    assert verdict(alone, GROUP).reason == "in no IOMMU group"
    assert verdict(alone, MODE).reason == "the IOMMU is off or not there"
    blind = alone.without("/sys/kernel/iommu_groups")
    assert verdict(blind, GROUP).status == "UNKNOWN"
    assert verdict(blind, MODE).status == "UNKNOWN"


# --- peers ---------------------------------------------------------------------------------------------------------

NV, RADEON, CONFLICT = "mem.iommu.p2p_nv", "mem.iommu.p2p_radeon", "mem.iommu.vendor_conflict"


def nvml_of(machine: MachineBuilder) -> dict[str, Any]:
    """The reply that a built machine gives."""
    data = machine.host().ask("nvml", {"health": True}).data
    assert isinstance(data, dict)
    return data


def with_peers(machine: MachineBuilder, *, nvlink: bool = False, read: str = "ok") -> MachineBuilder:
    """Let every pair of NVIDIA GPUs be peers, as NVML tells it."""
    data = nvml_of(machine)
    for device in data["devices"]:
        for row in device["p2p"]["value"]:
            row.update(read=read, write=read)
        links = {"value": [{"link": 0, "crc": {"value": 0}}]} if nvlink else {"value": []}
        device["health"] = {"nvlinks": links}
    return machine.with_reply("nvml", HelperReply(status="ok", data=data))


TWO = a_machine().with_gpu("rtx4090").with_gpu("rtx4090")


@pytest.mark.proves(NV, "WARN", on="tree")
def test_nvidia_peers_behind_a_translating_iommu() -> None:
    found = verdict(with_peers(grouped(TWO, "DMA-FQ")), NV)
    assert found.status == "WARN"
    assert found.reason == (
        "peers over PCIe, and the IOMMU translates (DMA-FQ): copies between them can arrive as zeros"
    )
    assert len(found.devices) == 2
    assert found.fix[0].lines == ("iommu=pt",)


@pytest.mark.proves(NV, "PASS", on="tree")
def test_nvidia_peers_that_nothing_disturbs() -> None:
    assert verdict(with_peers(grouped(TWO, "identity", "iommu=pt")), NV).status == "PASS"
    assert "over PCIe" in verdict(with_peers(grouped(TWO, "DMA"), nvlink=True), NV).reason
    assert verdict(with_peers(grouped(TWO, "DMA"), read="chipset not supported"), NV).status == "PASS"


def test_nvidia_peers_that_are_not_known() -> None:
    machine = grouped(TWO, "DMA").with_reply("nvml", HelperReply(status="broken", detail="exit 1"))
    assert verdict(machine, NV).reason == "NVML does not tell which GPUs are peers: exit 1"
    assert verdict(a_machine().with_gpu("rtx4090"), NV).status == "SKIP"
    guest = with_peers(grouped(TWO, "DMA")).with_file("/proc/cpuinfo", "flags\t: hypervisor\n")
    assert verdict(guest, NV).status == "SKIP"


def radeons(*, both_ways: bool = True) -> MachineBuilder:
    """Two Radeons that KFD joins over PCIe (type 2)."""
    machine = a_machine().with_gpu("rx7900xtx").with_gpu("rx7900xtx")
    nodes = [gpu.kfd.node for gpu in discover(machine.host()).gpus if gpu.kfd is not None]
    for first, second in (nodes, nodes[::-1]) if both_ways else (nodes,):
        base = f"/sys/class/kfd/kfd/topology/nodes/{first}"
        real = machine.host().resolve(base)
        text = f"type 2\nversion_major 0\nnode_from {first}\nnode_to {second}\nweight 40\n"
        machine = machine.with_file(f"{real}/p2p_links/0/properties", text)
    return machine


def placed(machine: MachineBuilder, start: int) -> MachineBuilder:
    for number, gpu in enumerate(("amd0", "amd1")):
        at = start + (number << 36)
        text = f"{at:#018x} {at + (1 << 34) - 1:#018x} 0x000000000014220c\n"
        machine = put(put(machine, gpu, "resource", text), gpu, "dma_mask_bits", "44\n")
    return machine


@pytest.mark.proves(RADEON, "PASS", on="tree")
def test_radeon_peers_as_amd_advises() -> None:
    machine = placed(radeons(), 0x380000000000)
    assert verdict(grouped(machine, "DMA-FQ"), RADEON).reason == (
        "the IOMMU translates (DMA-FQ), as AMD advises for Radeon"
    )
    low = placed(radeons(), 0x10000000000)
    assert "each card can address the others" in verdict(grouped(low, "identity"), RADEON).reason


@pytest.mark.proves(RADEON, "WARN", on="tree")
def test_radeon_peers_out_of_reach_without_a_translation() -> None:
    found = verdict(grouped(placed(radeons(), 0x380000000000), "identity"), RADEON)
    assert found.status == "WARN"
    assert found.reason == ("the IOMMU lets addresses pass (identity), and not each card can address the others")


def test_radeons_that_are_no_peers_or_instincts() -> None:
    assert verdict(a_machine().with_gpu("rx7900xtx").with_gpu("rx7900xtx"), RADEON).status == "SKIP"
    assert {each.status for each in verdicts(grouped(radeons(), "?"), RADEON)} == {"UNKNOWN"}


@pytest.mark.proves(CONFLICT, "WARN", on="tree")
def test_two_vendors_with_opposite_wishes() -> None:
    machine = grouped(radeons().with_gpu("rtx4090").with_gpu("rtx4090"), "DMA-FQ")
    found = verdict(with_peers(machine), CONFLICT)
    assert found.status == "WARN"
    assert len(found.devices) == 4
    assert "NVIDIA wants iommu=pt" in found.reason
    assert "/sys/kernel/iommu_groups/$g/type" in found.fix[0].lines[0]


@pytest.mark.proves(CONFLICT, "PASS", on="tree")
def test_one_vendor_with_peers_is_no_conflict() -> None:
    machine = grouped(radeons().with_gpu("rtx4090").with_gpu("rtx4090"), "DMA-FQ")
    assert verdict(with_peers(machine, read="chipset not supported"), CONFLICT).status == "PASS"
    assert verdict(a_machine().with_gpu("rtx4090").with_gpu("rx7900xtx"), CONFLICT).status == "SKIP"


BOTH_WAYS = "mem.p2p_status.amd"


@pytest.mark.proves(BOTH_WAYS, "PASS", on="tree")
def test_amd_peers_both_ways() -> None:
    assert verdict(radeons(), BOTH_WAYS).reason == "peers reach each other both ways"


@pytest.mark.proves(BOTH_WAYS, "WARN", on="tree")
def test_amd_peers_one_way() -> None:
    found = verdict(radeons(both_ways=False), BOTH_WAYS)
    assert (found.status, found.reason) == ("WARN", "peers that reach each other one way only: amd0 to amd1")


@pytest.mark.proves(BOTH_WAYS, "PASS", on="recording")
@pytest.mark.parametrize("name", ["kfd/topo-mi210-xgmi-pcie.tar.xz", "kfd/topo-mi300-cpx.tar.xz"])
def test_recorded_amd_peers(shared: Path, name: str) -> None:
    assert verdict(open_recording(str(shared / "machines" / name)), BOTH_WAYS).status == "PASS"


def test_addresses_of_the_peers() -> None:
    assert address_of(radeons(), "amd0") != address_of(radeons(), "amd1")
