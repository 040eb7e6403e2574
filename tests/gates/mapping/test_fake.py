"""Mapped memory and peers, as nvidia-ml-py reads them from a fake driver."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist.testing.builder import MachineBuilder, a_machine
from tests.gates.boards import DEADLINE_S, asked_here
from tests.gates.judging import judged
from tests.gates.mapping.test_iommu import grouped
from tests.gates.pcie.trees import put
from tests.vendor.machines import RTX_4090

if TYPE_CHECKING:
    from tests.fakes.machine import FakeMachine

MIB = 1 << 20
BOARDS = [
    replace(RTX_4090, pci_address=f"0000:{bus}:00.0", uuid=f"GPU-{bus * 4}-2222-3333-4444-555555555555", minor=number)
    for number, bus in enumerate(("41", "61", "81"))
]


def files(count: int = 3) -> MachineBuilder:
    machine = a_machine()
    for board in BOARDS[:count]:
        machine = machine.with_gpu("rtx4090", address=board.pci_address)
    return machine


@pytest.mark.proves("mem.rebar.nv", "PASS", on="fake")
@pytest.mark.proves("mem.bar1_free", "PASS", on="fake")
@pytest.mark.proves("mem.p2p_status.nv", "PASS", on="fake")
@pytest.mark.proves("mem.iommu.p2p_nv", "WARN", on="fake")
def test_boards_that_are_peers(machine: FakeMachine) -> None:
    machine.nvidia(*BOARDS, p2p=[(0, 1), (0, 2), (1, 2)])
    host = asked_here(grouped(files(), "DMA-FQ"))
    found = judged(
        host, "mem.rebar.nv", "mem.bar1_free", "mem.p2p_status.nv", "mem.iommu.p2p_nv", deadline_s=DEADLINE_S
    )
    assert {each.id: (each.status, len(each.devices)) for each in found.verdicts} == {
        "mem.rebar.nv": ("PASS", 3),
        "mem.bar1_free": ("PASS", 3),
        "mem.p2p_status.nv": ("PASS", 3),
        "mem.iommu.p2p_nv": ("WARN", 3),
    }


@pytest.mark.proves("mem.rebar.nv", "WARN", on="fake")
@pytest.mark.proves("mem.bar1_free", "WARN", on="fake")
@pytest.mark.proves("mem.p2p_status.nv", "WARN", on="fake")
@pytest.mark.proves("mem.iommu.p2p_nv", "PASS", on="fake")
def test_boards_that_are_not(machine: FakeMachine) -> None:
    small = [replace(board, bar1_total_bytes=256 * MIB, bar1_used_bytes=250 * MIB) for board in BOARDS]
    machine.nvidia(*small, p2p=[(0, 1)])
    tree = put(grouped(files(), "identity", "iommu=pt"), "nvidia0", "resource1_resize", "0000000000007fc0\n")
    host = asked_here(tree)
    found = judged(
        host, "mem.rebar.nv", "mem.bar1_free", "mem.p2p_status.nv", "mem.iommu.p2p_nv", deadline_s=DEADLINE_S
    )
    said = {each.id: each for each in found.verdicts if each.status != "PASS"}
    assert said["mem.rebar.nv"].devices == ("0000:41:00.0",)
    assert len([each for each in found.verdicts if each.id == "mem.bar1_free" and each.status == "WARN"]) == 3
    assert "nvidia0 to nvidia2" in said["mem.p2p_status.nv"].reason
    assert "chipset not supported" in said["mem.p2p_status.nv"].reason


def test_a_library_that_hangs_is_unknown_to_all(machine: FakeMachine) -> None:
    machine.nvidia(*BOARDS)
    machine.fault("nvidia.nvmlInitWithFlags", "hang 30")
    found = judged(
        asked_here(files(2)), "mem.rebar.nv", "mem.bar1_free", "mem.cc_mode", "mem.p2p_status.nv", deadline_s=1.0
    )
    assert {each.status for each in found.verdicts} == {"UNKNOWN"}
    assert machine.calls().count("nvmlInitWithFlags") == 1, "asked once, not once for each gate"
