"""Memory registers: places, sizes, and who can reach them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings, strategies as st

from pytest_gpucoexist.gates.mapping.addresses import MIB, regions_of, size_words, supported_sizes
from pytest_gpucoexist.host import open_recording
from pytest_gpucoexist.testing.builder import MachineBuilder, a_machine
from tests.gates.judging import verdict, verdicts
from tests.gates.pcie.trees import address_of, folder_of, put

if TYPE_CHECKING:
    from pathlib import Path

ASSIGNED = "mem.bar_assigned"
NONE = "0x0000000000000000 0x0000000000000000 0x0000000000000000"

# `resource` of the recorded Radeon RX 6900 XT, whose BAR is resized, and of the Radeon RX Vega 56, whose BAR is not.
RX_6900 = """\
0x000000f800000000 0x000000fbffffffff 0x000000000014220c
0x0000000000000000 0x0000000000000000 0x0000000000000000
0x000000fc00000000 0x000000fc0fffffff 0x000000000014220c
0x0000000000000000 0x0000000000000000 0x0000000000000000
0x000000000000e000 0x000000000000e0ff 0x0000000000040101
0x00000000fcb00000 0x00000000fcbfffff 0x0000000000040200
"""
# A memory register that got no place keeps its size from 0 on (IORESOURCE_UNSET since Linux 3.15).
UNASSIGNED = RX_6900.replace(
    "0x000000f800000000 0x000000fbffffffff 0x000000000014220c",
    "0x0000000000000000 0x00000003ffffffff 0x000000002014220c",
)


@pytest.mark.proves(ASSIGNED, "PASS", on="tree")
def test_registers_with_a_place() -> None:
    machine = put(a_machine().with_gpu("rx7900xtx"), "amd0", "resource", RX_6900)
    found = verdict(machine, ASSIGNED)
    assert found.status == "PASS"
    assert found.evidence[0].found == "0: 16 GiB, 2: 256 MiB, 5: 1 MiB"


@pytest.mark.proves(ASSIGNED, "PASS", on="recording")
@pytest.mark.parametrize(
    "name", ["vm-2node-switch.tar.gz", "lact/lact-amd-rx6900xt.tar.xz", "procfs/procfs-amdgpu-i915.tar.xz"]
)
def test_recorded_registers(shared: Path, name: str) -> None:
    found = verdicts(open_recording(str(shared / "machines" / name)), ASSIGNED)
    assert {each.status for each in found} - {"UNKNOWN"} == {"PASS"}


@pytest.mark.proves(ASSIGNED, "FAIL", on="tree")
@pytest.mark.proves(ASSIGNED, "WARN", on="tree")
def test_a_register_without_a_place() -> None:
    machine = put(a_machine().with_gpu("rx7900xtx"), "amd0", "resource", UNASSIGNED)
    wanted = verdict(machine, ASSIGNED, promised={"rocm": 1})
    address = address_of(machine, "amd0")
    assert wanted.status == "FAIL"
    assert wanted.reason == f"amd0 ({address}): memory register 0 (16 GiB) has no place"
    assert not wanted.blocks
    assert "Above 4G decoding" in wanted.action
    assert verdict(machine, ASSIGNED).status == "WARN", "nobody asks for this card"


def test_registers_that_cannot_be_read() -> None:
    machine = a_machine().with_gpu("rx7900xtx")
    assert verdict(put(machine, "amd0", "resource", "one two three\n"), ASSIGNED).status == "UNKNOWN"
    assert verdict(put(machine, "amd0", "resource", ""), ASSIGNED).status == "UNKNOWN"
    assert verdict(put(machine, "amd0", "resource", f"{NONE}\n" * 13), ASSIGNED).status == "UNKNOWN"
    assert verdict(machine.without(f"{folder_of(machine, 'amd0')}/resource"), ASSIGNED).status == "UNKNOWN"


def test_io_ports_without_a_place_do_not_matter() -> None:
    text = RX_6900.replace("0x000000000000e000 0x000000000000e0ff", "0x0000000000000000 0x00000000000000ff")
    assert verdict(put(a_machine().with_gpu("rx7900xtx"), "amd0", "resource", text), ASSIGNED).status == "PASS"


MASK = "mem.dma_mask"


def two_radeons(bits: int, *, group_type: str | None = None) -> MachineBuilder:
    """Two Radeons whose memory lies at 0x380000000000, as in ROCm/ROCR-Runtime#355."""
    machine = a_machine().with_gpu("rx7900xtx").with_gpu("rx7900xtx")
    for number, gpu in enumerate(("amd0", "amd1")):
        start = 0x380000000000 + (number << 36)
        text = RX_6900.replace("0x000000f800000000 0x000000fbffffffff", f"{start:#018x} {start + (1 << 34) - 1:#018x}")
        machine = put(put(machine, gpu, "resource", text), gpu, "dma_mask_bits", f"{bits}\n")
    if group_type is None:
        for gpu in ("amd0", "amd1"):
            machine = machine.without(f"{folder_of(machine, gpu)}/iommu_group")
        return machine
    for number in range(24):
        machine = machine.with_file(f"/sys/kernel/iommu_groups/{number}/type", f"{group_type}\n")
    return machine


@pytest.mark.proves(MASK, "WARN", on="tree")
def test_cards_that_cannot_address_each_other() -> None:
    found = verdicts(two_radeons(44), MASK)
    assert [each.status for each in found] == ["WARN", "WARN"]
    assert found[0].reason == "amd0 addresses 44 bits, memory of amd1 ends at 0x3813ffffffff: no peer access that way"
    assert {each.status for each in verdicts(two_radeons(44, group_type="identity"), MASK)} == {"WARN"}


@pytest.mark.proves(MASK, "PASS", on="tree")
def test_enough_bits_or_a_translation() -> None:
    assert verdict(two_radeons(48), MASK).reason == "each can address the other"
    assert "the IOMMU translates" in verdict(two_radeons(44, group_type="DMA-FQ"), MASK).reason
    assert {each.status for each in verdicts(two_radeons(44, group_type="???"), MASK)} == {"UNKNOWN"}
    assert verdict(a_machine().with_gpu("rx7900xtx"), MASK).status == "SKIP"


@pytest.mark.proves(MASK, "PASS", on="recording")
def test_recorded_masks(shared: Path) -> None:
    assert verdict(open_recording(str(shared / "machines/vm-2node-switch.tar.gz")), MASK).status == "PASS"


def test_sizes_in_words() -> None:
    assert [size_words(size) for size in (64, 4096, 256 * MIB, 24564 * MIB)] == [
        "64 bytes",
        "4 KiB",
        "256 MiB",
        "23.99 GiB",
    ]


def test_bitmaps_of_sizes() -> None:
    # Documentation/ABI/testing/sysfs-bus-pci: bit 0 is 1 MiB; printed with %016llx.
    assert supported_sizes("0000000000007f00") == 16384 * MIB
    assert supported_sizes("0000000000000000") is None
    assert supported_sizes("0x1") is None


@settings(max_examples=100)
@given(st.one_of(st.text(max_size=60), st.from_regex(r"(0x[0-9a-f]{1,16} ?){1,3}\n?", fullmatch=True)))
def test_any_text(text: str) -> None:
    regions = regions_of(text)
    assert regions is None or all(region.size_bytes > 0 for region in regions)
    largest = supported_sizes(text)
    assert largest is None or largest >= MIB
