"""lspci reads the same tree and says the same."""

from __future__ import annotations

import re

import pytest

from pytest_gpucoexist.model.machine import Accelerator, Gpu
from tests.oracles.trees import Tree, command, program


@pytest.fixture(scope="module")
def lspci() -> str:
    return program("lspci", "pciutils")


def run(lspci: str, tree: Tree, *options: str) -> str:
    return command(lspci, "-A", "linux-sysfs", "-O", f"sysfs.path={tree.bus}", "-D", *options)


def devices(tree: Tree) -> list[Gpu | Accelerator]:
    return [*(gpu for gpu in tree.machine.gpus if gpu.partition is None), *tree.machine.accelerators]


def records(text: str) -> dict[str, dict[str, str]]:
    """Read the blocks of `-vmm` by slot."""
    blocks: dict[str, dict[str, str]] = {}
    for block in text.strip().split("\n\n"):
        fields = dict(line.split(":\t", 1) for line in block.splitlines())
        blocks[fields["Slot"]] = fields
    return blocks


def test_the_same_gpus_and_accelerators(lspci: str, tree: Tree) -> None:
    listed = {
        match[1]: (match[2], match[3], match[4])
        for match in re.finditer(r"^(\S+) (\w{4}): (\w{4}):(\w{4})", run(lspci, tree, "-n"), re.MULTILINE)
    }
    wanted = {slot: ids for slot, ids in listed.items() if ids[0] in {"0300", "0302", "0380", "1200", "0b40"}}
    ours = {
        device.pci_address: ((device.class_id or "")[2:6], (device.vendor_id or "")[2:], (device.device_id or "")[2:])
        for device in devices(tree)
    }
    assert ours == wanted
    assert tree.machine.pci_functions == len(listed)


def test_the_same_class_subsystem_node_group_and_driver(lspci: str, tree: Tree) -> None:
    blocks = records(run(lspci, tree, "-vmmkn"))
    for device in devices(tree):
        fields = blocks[device.pci_address or ""]
        assert (device.class_id or "")[2:] == fields["Class"] + fields.get("ProgIf", (device.class_id or "")[-2:])
        if "SVendor" in fields:
            assert device.subsystem_id == f"0x{fields['SVendor']}:0x{fields['SDevice']}"
        assert device.numa_node == (int(fields["NUMANode"]) if "NUMANode" in fields else None)
        # lspci follows these links to their ends; we read their text, also where the tree ends before.
        if tree.leads_somewhere(device.pci_address, "driver"):
            assert device.driver == fields["Driver"]
        elif device.driver is None:
            assert "Driver" not in fields
        if isinstance(device, Gpu) and tree.leads_somewhere(device.pci_address, "iommu_group"):
            assert device.iommu_group == int(fields["IOMMUGroup"])


def test_the_same_bridges_above(lspci: str, tree: Tree) -> None:
    paths = {}
    for line in run(lspci, tree, "-n", "-PP").splitlines():
        first, *rest = line.split()[0].split("/")
        domain = first.split(":")[0]
        chain = [first, *(f"{domain}:{part}" for part in rest)]
        paths[chain[-1]] = tuple(chain[:-1])
    for device in devices(tree):
        # Without their configuration space lspci does not know which bus is behind a bridge.
        if device.upstream is not None and tree.has_config(*device.upstream):
            assert paths[device.pci_address or ""] == device.upstream


def test_the_same_links(lspci: str, tree: Tree) -> None:
    for device in devices(tree):
        address = device.pci_address or ""
        if not tree.has_config(address):
            continue
        text = run(lspci, tree, "-n", "-vvv", "-s", address)
        told = {
            name: (float(speed), int(width))
            for name, speed, width in re.findall(r"(LnkCap|LnkSta):.*?Speed ([\d.]+)GT/s.*?Width x(\d+)", text)
        }
        # A link that is down has width 0 there and none here.
        if told.get("LnkCap", (0, 0))[1] and device.link.max_width is not None:
            assert told["LnkCap"] == (device.link.max_speed_gtps, device.link.max_width)
        if told.get("LnkSta", (0, 0))[1] and device.link.current_width is not None:
            assert told["LnkSta"] == (device.link.current_speed_gtps, device.link.current_width)
