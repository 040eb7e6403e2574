from __future__ import annotations

from pytest_gpucoexist.host.tree import MemoryTree
from pytest_gpucoexist.model.machine import NumaNode
from pytest_gpucoexist.probes.numa import nodes
from tests.probes.sysfs import host_of

NODE = "/sys/devices/system/node/node"
MEMINFO = "\nNode {n} MemTotal:       65849148 kB\nNode {n} MemFree:        60224520 kB\n"


def a_tree() -> MemoryTree:
    tree = MemoryTree()
    for number, cpulist, distance in ((0, "0-7,16-23", "10 21"), (8, "8-15,24-31", "21 10")):
        tree.add_file(f"{NODE}{number}/cpulist", f"{cpulist}\n".encode())
        tree.add_file(f"{NODE}{number}/meminfo", MEMINFO.format(n=number).encode())
        tree.add_file(f"{NODE}{number}/distance", f"{distance}\n".encode())
    tree.add_file("/sys/devices/system/node/online", b"0,8\n")
    return tree


def test_nodes_with_cpus_memory_and_distances() -> None:
    found, notes = nodes(host_of(a_tree()))
    assert found == (
        NumaNode(id=0, cpulist="0-7,16-23", memory_bytes=65849148 * 1024, distances=(10, 21)),
        NumaNode(id=8, cpulist="8-15,24-31", memory_bytes=65849148 * 1024, distances=(21, 10)),
    )
    assert notes == ()


def test_a_node_of_a_gpus_memory_has_no_cpus() -> None:
    tree = a_tree()
    tree.add_file(f"{NODE}255/cpulist", b"\n")
    assert nodes(host_of(tree))[0][2] == NumaNode(id=255, cpulist="")


def test_a_mask_stands_in_for_a_list() -> None:
    tree = MemoryTree()
    tree.add_file(f"{NODE}0/cpumap", b"00000000,0000000f\n")
    assert nodes(host_of(tree))[0] == (NumaNode(id=0, cpulist="0-3"),)


def test_garbage_is_noted_and_never_a_number() -> None:
    tree = a_tree()
    tree.add_file(f"{NODE}0/cpulist", b"\xff\xfe")
    tree.add_file(f"{NODE}0/meminfo", b"Node 0 MemTotal: lots\n")
    tree.add_file(f"{NODE}0/distance", b"10 -1\n")
    found, notes = nodes(host_of(tree))
    assert found[0] == NumaNode(id=0)
    assert [note.partition(":")[0] for note in notes] == [
        f"{NODE}0/{name}" for name in ("cpulist", "meminfo", "distance")
    ]


def test_a_kernel_without_numa_has_no_nodes_and_says_so() -> None:
    tree = MemoryTree()
    tree.add_dir("/sys/devices/system/node")
    assert nodes(host_of(tree)) == ((), ("no NUMA nodes are told: no /sys/devices/system/node",))
    tree.add_dir("/sys/bus/node/devices/node0")
    assert nodes(host_of(tree))[0] == (NumaNode(id=0),)


def test_an_empty_mask_is_a_node_without_cpus() -> None:
    tree = MemoryTree()
    tree.add_file(f"{NODE}4/cpumap", b"00000000,00000000\n")
    assert nodes(host_of(tree))[0] == (NumaNode(id=4, cpulist=""),)
