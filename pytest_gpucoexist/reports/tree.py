"""The machine as a person would draw it: `gpucoexist show --tree`.

NUMA nodes, below them root ports, switches and GPUs with their links. GPUs of which nobody tells the node, or which
have no PCI function, stand under a heading of their own; partitions stand below their device.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_gpucoexist.model.identity import pci_sort_key
from pytest_gpucoexist.model.machine import Gpu, Link
from pytest_gpucoexist.reports.drawing import Item, draw
from pytest_gpucoexist.reports.screen import PLAIN, Screen
from pytest_gpucoexist.reports.show import VENDOR_STYLES, machine_title, reasons_below
from pytest_gpucoexist.reports.words import (
    KIND_NAMES,
    UNKNOWN,
    describe_arch,
    describe_driver,
    describe_gpu_link,
    describe_link,
    describe_name,
    describe_node,
    describe_size,
    describe_use,
    ranges,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pytest_gpucoexist.model.machine import Machine

__all__ = ["machine_tree"]

ALIKE = 4
"""From so many equal partitions on, one line stands for all of them."""

XGMI = 11
"""Link type of XGMI in the kernel's CRAT (`CRAT_IOLINK_TYPE_XGMI`, drivers/gpu/drm/amd/amdkfd/kfd_crat.h)."""


@dataclass(slots=True)
class _Branch:
    """What hangs on a bridge. A device is a list: itself, its partitions."""

    address: str = ""
    link: Link | None = None
    branches: dict[str, _Branch] = field(default_factory=dict)
    devices: list[list[Gpu]] = field(default_factory=list)


def machine_tree(machine: Machine, screen: Screen = PLAIN) -> str:
    """Draw the topology. Lines that do not fit are continued below themselves."""
    blocks = [machine_title(machine, screen)]
    blocks += [draw(item, screen) for item in _headings(machine)]
    blocks.append("\n".join(draw(item, screen) for item in _empty_nodes(machine)))
    blocks.append("\n".join(screen.say(line) for line in _xgmi(machine.gpus)))
    blocks.append(reasons_below(machine, screen))
    return "\n\n".join(block for block in blocks if block)


def _headings(machine: Machine) -> Iterator[Item]:
    """Give each NUMA node with GPUs, then GPUs without a node, then those without a PCI function."""
    by_node: dict[int | None, list[list[Gpu]]] = {}
    elsewhere: list[list[Gpu]] = []
    for device in _devices(machine.gpus):
        if device[0].pci_address is None:
            elsewhere.append(device)
        else:
            by_node.setdefault(device[0].numa_node, []).append(device)
    unplaced = by_node.pop(None, [])
    described = {node.id: describe_node(node) for node in machine.numa_nodes}
    for number in sorted(node for node in by_node if node is not None):
        yield _heading(f"NUMA node {number}", described.get(number, "not listed"), by_node[number])
    if unplaced:
        yield _heading("NUMA node not told" if machine.numa_nodes else "PCI", "", unplaced)
    if elsewhere:
        children = [_device_item(device, "") for device in elsewhere]
        yield Item(head="Without a PCI function", head_style="bold", children=children)


def _heading(title: str, tail: str, devices: list[list[Gpu]]) -> Item:
    told = any(device[0].upstream is not None for device in devices)
    if not told:
        tail = "; ".join(filter(None, [tail, "bridges not told"]))
    return Item(head=title, head_style="bold", tail=tail, children=_below(_grow(devices), 0, told=told))


def _empty_nodes(machine: Machine) -> list[Item]:
    """Give the NUMA nodes that have no GPU, one line each."""
    used = {gpu.numa_node for gpu in machine.gpus}
    empty = [node for node in machine.numa_nodes if node.id not in used]
    return [
        Item(head=f"NUMA node {node.id}", head_style="bold", tail=f"{describe_node(node)}; no GPU") for node in empty
    ]


def _devices(gpus: Iterable[Gpu]) -> list[list[Gpu]]:
    """Put partitions beside the device that they are parts of."""
    groups: dict[str, list[Gpu]] = {}
    for gpu in gpus:
        groups.setdefault(gpu.pci_address or gpu.id, []).append(gpu)
    return list(groups.values())


def _grow(devices: Sequence[list[Gpu]]) -> _Branch:
    root = _Branch()
    for device in devices:
        links = {bridge.pci_address: bridge.link for bridge in device[0].upstream_links}
        branch = root
        for address in device[0].upstream or ():
            branch = branch.branches.setdefault(address, _Branch(address=address, link=links.get(address)))
        branch.devices.append(device)
    return root


def _below(branch: _Branch, depth: int, *, told: bool = True) -> list[Item]:
    """Draw what hangs on a bridge, in bus order. `depth` counts the bridges above; `told`: other chains are known."""
    children = [(address, _bridge_item(child, depth)) for address, child in branch.branches.items()]
    for device in branch.devices:
        known = depth > 0 or device[0].upstream is not None or not told
        children.append((device[0].pci_address or "", _device_item(device, "" if known else "bridges not told")))
    return [item for _address, item in sorted(children, key=lambda child: pci_sort_key(child[0]))]


def _bridge_item(bridge: _Branch, depth: int) -> Item:
    """Draw a bridge.

    A chain alternates: root port, then for each switch its upstream port and one of its downstream ports. A
    downstream port with a single device is named in the device's line.
    """
    is_port = depth > 0 and depth % 2 == 0
    if is_port and len(bridge.devices) == 1 and not bridge.branches:
        return _device_item(bridge.devices[0], f"port {bridge.address}")
    kind = "root port" if depth == 0 else "port" if is_port else "switch" if bridge.branches else "bridge"
    link = UNKNOWN if bridge.link is None else describe_link(bridge.link)
    return Item(
        head=f"{kind} {bridge.address}", tail="" if link == UNKNOWN else link, children=_below(bridge, depth + 1)
    )


def _device_item(device: list[Gpu], where: str) -> Item:
    parts = [gpu for gpu in device if gpu.partition is not None]
    whole = next((gpu for gpu in device if gpu.partition is None), None)
    if whole is not None:
        item = _gpu_item(whole, where)
    else:
        gpu = parts[0]
        details = [where, describe_gpu_link(gpu, now=True), _driver(gpu), f"{len(parts)} partitions"]
        item = Item(head=gpu.pci_address or "", label=describe_name(gpu), tail=_list(details))
    if len(parts) >= ALIKE and len({(describe_name(gpu), _traits(gpu)) for gpu in parts}) == 1:
        span = f"partitions {parts[0].partition} … {parts[-1].partition}"
        head = f"{parts[0].id} … {parts[-1].id}"
        item.children.append(Item(head=head, head_style=_style(parts[0]), label=span, tail=f"each {_traits(parts[0])}"))
        return item
    for gpu in parts:
        name = describe_name(gpu) if whole is not None else ""
        label = "  ".join(filter(None, [f"partition {gpu.partition}", name]))
        item.children.append(Item(head=gpu.id, head_style=_style(gpu), label=label, tail=_traits(gpu)))
    return item


def _gpu_item(gpu: Gpu, where: str) -> Item:
    label = [gpu.key if gpu.key != "?" else "", describe_name(gpu)]
    kind = "" if gpu.kind in {"discrete", "unknown"} else KIND_NAMES.get(gpu.kind, gpu.kind)
    details = [where, kind, describe_gpu_link(gpu, now=True), _driver(gpu), _traits(gpu)]
    return Item(
        head=gpu.id,
        head_style=_style(gpu),
        label="  ".join(filter(None, label)),
        tail=_list(details),
        tail_style="yellow" if describe_use(gpu) in {"no", "masked", "not granted", "unfit"} else "dim",
    )


def _driver(gpu: Gpu) -> str:
    driver = describe_driver(gpu)
    return "no driver" if driver == "none" else driver


def _traits(gpu: Gpu) -> str:
    use = {"no": "not usable", "masked": "masked", "not granted": "not granted"}
    word = describe_use(gpu)
    return _list([describe_size(gpu.memory_total_bytes), describe_arch(gpu), use.get(word, word)])


def _list(details: Sequence[str]) -> str:
    return ", ".join(word for word in details if word and word != UNKNOWN)


def _style(gpu: Gpu) -> str:
    return f"bold {VENDOR_STYLES[gpu.vendor]}" if gpu.is_compute else "dim"


def _xgmi(gpus: Sequence[Gpu]) -> Iterator[str]:
    """Name the groups of GPUs that XGMI joins."""
    by_node = {gpu.kfd.node: gpu for gpu in gpus if gpu.kfd is not None}
    groups: list[set[int]] = []
    for node, gpu in by_node.items():
        links = gpu.kfd.links if gpu.kfd is not None else ()
        linked = {node, *(link.node_to for link in links if link.type == XGMI and link.node_to in by_node)}
        if len(linked) > 1:
            touched = [group for group in groups if group & linked]
            groups = [group for group in groups if not group & linked] + [linked.union(*touched)]
    for group in groups:
        members = [(place, gpu.id) for place, gpu in enumerate(gpus) if gpu.kfd and gpu.kfd.node in group]
        yield f"XGMI joins {ranges(members)}"
