"""lspci and lstopo read a built tree as they read a machine: what they say is what was built."""

from __future__ import annotations

import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist.probes import discover
from pytest_gpucoexist.testing import MachineBuilder, a_machine, demo_machine

if TYPE_CHECKING:
    from pathlib import Path

MACHINES: dict[str, MachineBuilder] = {
    "demo": demo_machine(),
    "broken": demo_machine().train_link_down("nvidia0", 2.5, 4).with_wrong_driver("nvidia1", "nouveau"),
    "large": a_machine()
    .with_numa_nodes(2, cpus=40)
    .with_switch("a", numa_node=1)
    .with_gpu("h100", under="a")
    .with_gpu("mi210", under="a")
    .with_gpu("mi300x", address="0000:41:00.0")
    .with_gpu("arc-b580")
    .with_gpu("uhd770"),
}


@pytest.fixture(params=sorted(MACHINES))
def built(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[MachineBuilder, str]:
    machine = MACHINES[request.param]
    return machine, machine.write_tree(str(tmp_path / "tree"))


def output(*argv: str) -> str:
    if shutil.which(argv[0]) is None:
        pytest.skip(f"needs {argv[0]} (Debian: pciutils, hwloc)")
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def test_lspci(built: tuple[MachineBuilder, str]) -> None:
    machine, tree = built
    text = output("lspci", "-A", "linux-sysfs", "-O", f"sysfs.path={tree}/sys/bus/pci", "-D", "-n", "-vvv")
    blocks = {block.split()[0]: block for block in text.strip().split("\n\n")}
    host = machine.host()
    assert sorted(blocks) == host.list_dir("/sys/bus/pci/devices")
    for gpu in discover(host).gpus:
        block = blocks[gpu.pci_address or ""]
        assert f"{gpu.class_id[2:6]}: {gpu.vendor_id[2:]}:{gpu.device_id[2:]}" in block  # type: ignore[index]
        assert f"NUMA node: {gpu.numa_node}" in block
        vendor, device = (gpu.subsystem_id or ":").split(":")
        assert f"Subsystem: {vendor[2:]}:{device[2:]}" in block
        assert ("Kernel driver in use: " + gpu.driver in block) if gpu.driver else True
        if gpu.link.current_width is not None:
            status = re.search(r"LnkSta:\s+Speed ([\d.]+)GT/s[^,]*, Width x(\d+)", block)
            assert status is not None
            assert (float(status[1]), int(status[2])) == (gpu.link.current_speed_gtps, gpu.link.current_width)
        regions = len(re.findall(r"Region \d: Memory", block))
        assert regions == len(gpu.bars or ())


def test_lspci_walks_the_same_path(built: tuple[MachineBuilder, str]) -> None:
    machine, tree = built
    text = output("lspci", "-A", "linux-sysfs", "-O", f"sysfs.path={tree}/sys/bus/pci", "-D", "-n", "-PP")
    paths = [line.split()[0].split("/") for line in text.splitlines()]
    chains = {path[-1]: [path[0], *(f"0000:{step}" for step in path[1:-1])] if path[1:] else [] for path in paths}
    for gpu in discover(machine.host()).gpus:
        address = gpu.pci_address or ""
        assert chains.get(address.removeprefix("0000:"), chains.get(address)) == list(gpu.upstream or ())


def test_lstopo(built: tuple[MachineBuilder, str]) -> None:
    machine, tree = built
    root = ET.fromstring(output("lstopo", "--input", tree, "--whole-io", "--of", "xml", "-"))
    found = {item.get("pci_busid"): item for item in root.iter("object") if item.get("type") == "PCIDev"}
    for gpu in discover(machine.host()).gpus:
        item = found[gpu.pci_address]
        names = {each.get("name") for each in item.iter("object") if each.get("type") == "OSDev"}
        assert {gpu.drm.card, gpu.drm.render} - {None} <= names if gpu.drm else True
    nodes = [item.get("os_index") for item in root.iter("object") if item.get("type") == "NUMANode"]
    assert nodes == [str(node.id) for node in discover(machine.host()).numa_nodes]
