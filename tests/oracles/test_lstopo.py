"""hwloc reads the same tree and says the same."""

from __future__ import annotations

from dataclasses import dataclass
from xml.etree import ElementTree as ET

import pytest

from tests.oracles.trees import Tree, command, program

# GB/s of one lane as hwloc counts them: the rate in GT/s times the encoding, in bytes.
_ENCODING = {2.5: 8 / 10, 5.0: 8 / 10}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One PCI function as hwloc shows it."""

    ids: str
    upstream: tuple[str, ...]
    nodes: frozenset[int]
    drm: frozenset[str]
    link_gbps: float


@pytest.fixture(scope="module")
def seen(tree: Tree) -> dict[str, Seen]:
    """Every PCI function of the tree as hwloc shows it."""
    text = command(program("lstopo-no-graphics", "hwloc"), "--input", str(tree.root), "--whole-io", "--of", "xml", "-")
    found: dict[str, Seen] = {}

    def walk(item: ET.Element, above: tuple[str, ...], nodes: frozenset[int]) -> None:
        if item.get("nodeset"):
            nodes = bits(item.get("nodeset", ""))
        address = item.get("pci_busid")
        if address is not None and item.get("type") == "PCIDev":
            found[address] = Seen(
                ids=item.get("pci_type", ""),
                upstream=above,
                nodes=nodes,
                drm=frozenset(child.get("name", "") for child in item if child.get("type") == "OSDev"),
                link_gbps=float(item.get("pci_link_speed", "0")),
            )
        if address is not None:
            above = (*above, address)
        for child in item.findall("object"):
            walk(child, above, nodes)

    for item in ET.fromstring(text).findall("object"):
        walk(item, (), frozenset())
    return found


def bits(mask: str) -> frozenset[int]:
    """Read hwloc's `0x00000001,0x00000000`: groups of 32 bits, an empty one means 0."""
    number = 0
    for group in mask.split(","):
        number = number << 32 | int(group or "0", 16)
    return frozenset(index for index in range(number.bit_length()) if number >> index & 1)


def test_the_same_gpus(seen: dict[str, Seen], tree: Tree) -> None:
    ours = {gpu.pci_address: gpu for gpu in tree.machine.gpus if gpu.partition is None}
    display = {address for address, item in seen.items() if item.ids[:4] in {"0300", "0302", "0380"}}
    assert display <= set(ours)
    for address, gpu in ours.items():
        item = seen[address or ""]
        assert gpu.vendor_id is not None
        assert gpu.device_id is not None
        assert item.ids[:4] == (gpu.class_id or "")[2:6]
        assert item.ids[5:].startswith(f"[{gpu.vendor_id[2:]}:{gpu.device_id[2:]}]")


def test_the_same_bridges_above(seen: dict[str, Seen], tree: Tree) -> None:
    for gpu in tree.machine.gpus:
        if gpu.upstream is not None and tree.has_config(*gpu.upstream):
            assert seen[gpu.pci_address or ""].upstream == gpu.upstream


def test_the_same_numa_node(seen: dict[str, Seen], tree: Tree) -> None:
    every = frozenset(node.id for node in tree.machine.numa_nodes)
    for gpu in tree.machine.gpus:
        nodes = seen[gpu.pci_address or ""].nodes
        if gpu.numa_node is not None:
            # hwloc attaches by local_cpus, which can name more than the one node.
            assert gpu.numa_node in nodes
        elif len(every) > 1 and gpu.local_cpulist is None:
            assert nodes == every


def test_the_same_card_and_render_node(seen: dict[str, Seen], tree: Tree) -> None:
    for gpu in tree.machine.gpus:
        ours = set() if gpu.drm is None else {gpu.drm.card or "", gpu.drm.render or ""} - {""}
        # Of a folder without its files hwloc makes nothing; its name is enough for us.
        ours = {name for name in ours if (tree.root / "sys/class/drm" / name / "uevent").exists()}
        theirs = {name for name in seen[gpu.pci_address or ""].drm if name.startswith(("card", "renderD"))}
        assert ours == theirs


def test_the_same_link(seen: dict[str, Seen], tree: Tree) -> None:
    for gpu in tree.machine.gpus:
        speed, width = gpu.link.current_speed_gtps, gpu.link.current_width
        told = seen[gpu.pci_address or ""].link_gbps
        if told and speed is not None and width is not None:
            assert speed * width * _ENCODING.get(speed, 128 / 130) / 8 == pytest.approx(told, rel=0.01)
