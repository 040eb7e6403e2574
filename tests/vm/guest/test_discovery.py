"""What is discovered is what lspci and lstopo see, on the same kernel at the same time."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

from tests.vm.guest.drivers import load
from tests.vm.guest.judging import machine
from tests.vm.guest.system import BUS, RADEON0, RTX0, RTX1, RTX2, VIRTIO, address, read, run

if TYPE_CHECKING:
    from pytest_gpucoexist.model.machine import Gpu


def by_address() -> dict[str, Gpu]:
    return {gpu.pci_address: gpu for gpu in machine().gpus if gpu.pci_address}


def records(text: str) -> dict[str, dict[str, str]]:
    blocks = [dict(line.split(":\t", 1) for line in block.splitlines()) for block in text.strip().split("\n\n")]
    return {block["Slot"]: block for block in blocks}


def test_the_devices_that_lspci_lists() -> None:
    load("virtio-gpu", "nvidia", "amdgpu")
    listed = records(run("lspci", "-D", "-vmmkn").stdout)
    displays = {slot: fields for slot, fields in listed.items() if fields["Class"].startswith("03")}
    found = by_address()
    assert set(found) == set(displays)
    for slot, fields in displays.items():
        gpu = found[slot]
        assert ((gpu.vendor_id or "")[2:], (gpu.device_id or "")[2:]) == (fields["Vendor"], fields["Device"])
        assert gpu.subsystem_id == f"0x{fields['SVendor']}:0x{fields['SDevice']}"
        assert gpu.driver == fields["Driver"]
        assert gpu.numa_node == int(fields["NUMANode"])
    assert machine().pci_functions == len(listed)
    assert {RTX0, RTX1, RADEON0, VIRTIO} <= set(found)


def test_the_bridges_and_links_that_lspci_shows() -> None:
    load()
    for slot, gpu in by_address().items():
        path = run("lspci", "-D", "-PP", "-n", "-s", slot).stdout.split()[0]
        first, *rest = path.split("/")
        chain = [first, *(f"{first[:4]}:{part}" for part in rest)]
        assert tuple(chain[:-1]) == gpu.upstream
        shown = run("lspci", "-D", "-vvv", "-s", slot).stdout
        told = {
            name: values for name, *values in re.findall(r"(LnkCap|LnkSta):.*?Speed ([\d.]+)GT/s.*?Width x(\d+)", shown)
        }
        if gpu.vendor in {"nvidia", "amd"}:
            assert told["LnkCap"] == [f"{gpu.link.max_speed_gtps:g}", str(gpu.link.max_width)]
            assert told["LnkSta"] == [f"{gpu.link.current_speed_gtps:g}", str(gpu.link.current_width)]


def test_the_topology_that_lstopo_draws() -> None:
    load()
    root = ET.fromstring(run("lstopo-no-graphics", "--whole-io", "--of", "xml", "-").stdout)
    near: dict[str, set[int]] = {}
    nodes: dict[str, set[str]] = {}
    for group in root.iter("object"):
        memory = {int(each.get("os_index", "-1")) for each in group.findall("object[@type='NUMANode']")}
        for pci in _below(group, "PCIDev"):
            if memory:
                near.setdefault(pci.get("pci_busid", ""), set()).update(memory)
            nodes[pci.get("pci_busid", "")] = {each.get("name", "") for each in pci.findall("object[@type='OSDev']")}
    for slot, gpu in by_address().items():
        if gpu.vendor not in {"nvidia", "amd"}:
            continue
        assert gpu.numa_node in near[slot], f"{slot}: {gpu.numa_node} and {near[slot]}"
        assert gpu.drm is not None
        assert {gpu.drm.card, gpu.drm.render} <= nodes[slot]


def _below(group: ET.Element, kind: str) -> list[ET.Element]:
    """Find I/O objects under a group's bridges, not under groups inside it."""
    found: list[ET.Element] = []
    waiting = [each for each in group.findall("object") if each.get("type") in {"Bridge", "PCIDev"}]
    while waiting:
        each = waiting.pop()
        if each.get("type") == kind:
            found.append(each)
        waiting += each.findall("object")
    return found


def test_what_the_kernel_says_of_nodes_and_processors() -> None:
    nodes = {node.id: node.cpulist for node in machine().numa_nodes}
    assert nodes == {0: "0-1", 1: "2-3"}
    found = by_address()
    assert {slot: found[slot].numa_node for slot in (RTX0, RTX1, RADEON0)} == {RTX0: 0, RTX1: 0, RADEON0: 1}
    for slot, gpu in found.items():
        assert gpu.local_cpulist == read(f"{BUS}/{slot}/local_cpulist")


def test_two_cards_behind_one_switch() -> None:
    found = by_address()
    first, second = found[RTX0].upstream or (), found[RTX1].upstream or ()
    assert first[:2] == second[:2]
    assert len(first) == len(second) == 3
    assert first[2] != second[2]


def test_names_and_nodes_of_the_drivers() -> None:
    load()
    found = by_address()
    assert found[RTX0].name == "NVIDIA GeForce RTX 4090"
    assert found[RTX0].driver_version == "570.133.07"
    assert found[RADEON0].arch == "gfx1100"
    assert found[RADEON0].memory_total_bytes == 24 * 2**30
    for slot in (RTX0, RADEON0):
        drm = found[slot].drm
        assert drm is not None
        assert drm.card is not None
        assert address(drm.card) == slot
    assert found[RTX0].usable.cuda, found[RTX0].facts["usable.cuda"]
    assert found[RADEON0].usable.rocm, found[RADEON0].facts["usable.rocm"]
    assert RTX2 in found
