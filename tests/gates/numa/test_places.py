"""Nodes, CPUs and memory near GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist.host import open_recording
from pytest_gpucoexist.probes import discover
from pytest_gpucoexist.testing.builder import MachineBuilder, a_machine
from tests.gates.judging import verdict, verdicts

if TYPE_CHECKING:
    from pathlib import Path

TWO = a_machine().with_numa_nodes(2).with_gpu("rtx4090").with_gpu("mi210", numa_node=1)
STATUS = "Name:\tpython3\nCpus_allowed_list:\t{}\nMems_allowed_list:\t{}\n"
NODES = "/sys/devices/system/node"


def node_file(machine: MachineBuilder, gpu: str) -> str:
    """The real place of a GPU's numa_node: what sysfs links to."""
    host = machine.host()
    found = discover(host).gpu(gpu)
    assert found is not None
    return host.resolve(f"/sys/bus/pci/devices/{found.pci_address}/numa_node")


@pytest.mark.proves("numa.node_known", "PASS", on="tree")
def test_the_node_of_each_gpu_is_known() -> None:
    assert verdict(TWO, "numa.node_known").reason == "its NUMA node is known"
    assert "every GPU is on it" in verdict(a_machine().with_gpu("rtx4090"), "numa.node_known").reason


@pytest.mark.proves("numa.node_known", "WARN", on="tree")
def test_firmware_that_does_not_say() -> None:
    # NVIDIA/cuCascade PR#119: numa_node is -1 on a machine with two sockets.
    known, unknown = verdicts(TWO.with_file(node_file(TWO, "amd0"), "-1\n"), "numa.node_known")
    assert known.status == "PASS"
    assert unknown.reason == "its NUMA node is not known, on a machine of 2 nodes"
    assert "of the bridge above it" in unknown.evidence[1].found
    assert "SRAT" in unknown.action


def test_a_virtual_machine_cannot_say() -> None:
    guest = TWO.with_file("/proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu vme hypervisor lahf_lm\n")
    said = verdicts(guest.with_file(node_file(TWO, "amd0"), "-1\n"), "numa.node_known")
    assert [each.status for each in said] == ["PASS", "SKIP"]


@pytest.mark.proves("numa.node_known", "WARN", on="recording")
def test_power9_as_it_was_recorded(shared: Path) -> None:
    host = open_recording(f"{shared}/machines/hwloc/linux/nvidiagpunumanodes.tar.xz")
    assert verdict(host, "numa.node_known").reason == "its NUMA node is not known, on a machine of 2 nodes"


def test_a_node_that_is_not_online() -> None:
    said = verdicts(TWO.with_file(node_file(TWO, "amd0"), "7\n"), "numa.node_known")
    assert said[-1].reason == "it names node 7, which is not online"


@pytest.mark.parametrize("text", ["", "zero", "-7", "1 2", "\0"])
def test_a_node_that_makes_no_sense_is_unknown(text: str) -> None:
    said = verdicts(TWO.with_file(node_file(TWO, "amd0"), text), "numa.node_known")
    assert said[-1].status == "UNKNOWN"
    assert verdict(TWO.without(NODES).without("/sys/bus/node"), "numa.node_known").status == "UNKNOWN"


@pytest.mark.proves("numa.affinity", "PASS", on="tree")
@pytest.mark.proves("numa.affinity", "WARN", on="tree")
def test_a_process_on_one_socket() -> None:
    near, far = verdicts(TWO.with_file("/proc/self/status", STATUS.format("0-7", "0-1")), "numa.affinity")
    assert near.status == "PASS"
    assert far.reason == "this process may run on CPUs 0-7 alone, none of them near the GPU"
    assert far.devices == ("0000:83:00.0",)
    assert far.fix[0].lines == ("taskset --cpu-list 8-15 pytest …",)


@pytest.mark.parametrize("cpus", ["", "all", "9-3", "0-99999999"])
def test_cpus_that_make_no_sense_are_unknown(cpus: str) -> None:
    assert verdict(TWO.with_file("/proc/self/status", STATUS.format(cpus, "0")), "numa.affinity").status == "UNKNOWN"


@pytest.mark.proves("numa.gpu_nodes", "PASS", on="tree")
def test_nodes_that_are_gpu_memory() -> None:
    assert verdict(TWO, "numa.gpu_nodes").reason == "every node has CPUs: none is a GPU's memory"
    grace = TWO.with_file(f"{NODES}/node1/cpulist", "\n").with_file(f"{NODES}/node1/cpumap", "0\n")
    machine = grace.with_file("/proc/self/status", STATUS.format("0-7", "0-1"))
    assert (
        verdict(machine, "numa.gpu_nodes").reason == "nodes 1 have no CPUs (GPU memory); host buffers can lie elsewhere"
    )
    assert verdict(grace, "numa.gpu_nodes").status == "SKIP"


@pytest.mark.proves("numa.gpu_nodes", "WARN", on="tree")
def test_a_process_that_takes_memory_from_the_gpu() -> None:
    grace = TWO.with_file(f"{NODES}/node1/cpulist", "\n").with_file(f"{NODES}/node1/cpumap", "0\n")
    said = verdict(grace.with_file("/proc/self/status", STATUS.format("0-7", "1")), "numa.gpu_nodes")
    assert said.reason == "this process may take memory only from nodes without CPUs: from the GPUs"


@pytest.mark.proves("numa.gpu_nodes", "PASS", on="recording")
def test_power9_shows_gpu_memory(shared: Path) -> None:
    host = open_recording(f"{shared}/machines/hwloc/linux/nvidiagpunumanodes.tar.xz")
    assert "250-255" in verdict(host, "numa.gpu_nodes").reason
    assert verdict(open_recording(f"{shared}/machines/vm-2node-switch.tar.gz"), "numa.gpu_nodes").status == "PASS"


@pytest.mark.proves("numa.pair_distance", "PASS", on="tree")
def test_distances_make_sense() -> None:
    said = verdict(TWO, "numa.pair_distance")
    assert said.reason.endswith("the farthest GPUs, nvidia0 and amd0, are 21 apart (10 is the same node)")
    assert verdict(a_machine().with_gpu("rtx4090"), "numa.pair_distance").status == "SKIP"


@pytest.mark.proves("numa.pair_distance", "WARN", on="tree")
@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("10 10", "node 1 is said to be as near to node 0 as that is to itself"),
        ("10 32", "from node 0 to node 1 is 32, and back 21"),
    ],
)
def test_a_table_that_makes_no_sense(row: str, reason: str) -> None:
    assert verdict(TWO.with_file(f"{NODES}/node0/distance", f"{row}\n"), "numa.pair_distance").reason == reason


@pytest.mark.parametrize("row", ["", "10", "near far", "10 999", "\0"])
def test_a_table_that_cannot_be_read_is_unknown(row: str) -> None:
    assert verdict(TWO.with_file(f"{NODES}/node0/distance", row), "numa.pair_distance").status == "UNKNOWN"
