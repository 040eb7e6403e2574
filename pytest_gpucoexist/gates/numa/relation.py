"""How two GPUs are connected: the classes of `nvidia-smi topo`, from the PCI tree alone.

The class names what lies between two devices: PIX one switch (or bridge), PXB several bridges, PHB a host bridge,
NODE several host bridges of one NUMA node, SYS the link between nodes. A card that carries a switch of its own (AMD's
since Vega 20) counts as several bridges. NVLink and XGMI do not show here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pytest_gpucoexist.model.machine import Gpu, Machine

__all__ = ["MEANINGS", "Relation", "matrix", "relation"]

Relation = Literal["SELF", "PIX", "PXB", "PHB", "NODE", "SYS", "unknown"]

MEANINGS: dict[str, str] = {
    "SELF": "the same card",
    "PIX": "one PCIe switch",
    "PXB": "several PCIe switches, no host bridge",
    "PHB": "a host bridge",
    "NODE": "host bridges of one NUMA node",
    "SYS": "the link between NUMA nodes",
    "unknown": "not told",
}


def relation(machine: Machine, a: str, b: str) -> Relation:
    """Return what lies between two GPUs, named by key or id; `unknown` where the tree does not tell.

    Raises ValueError for a GPU that the machine does not have.
    """
    return _between(machine, _gpu(machine, a), _gpu(machine, b))


def _between(machine: Machine, first: Gpu, second: Gpu) -> Relation:
    if first.pci_address is not None and first.pci_address == second.pci_address:
        return "SELF"
    if first.upstream is None or second.upstream is None or first.pci_address is None or second.pci_address is None:
        return "unknown"
    # A bridge above no other bridge is a root port: what hangs below two of them meets in the host bridge.
    common = _common(first.upstream, second.upstream)
    if common:
        between = len(first.upstream) + len(second.upstream) - 2 * common
        # Both below one port or one switch: at most one port of the switch lies on each side.
        return "PIX" if between <= 2 else "PXB"
    if first.numa_node is not None and second.numa_node is not None and first.numa_node != second.numa_node:
        return "SYS"
    if _root_bus(first) is not None and _root_bus(first) == _root_bus(second):
        return "PHB"
    if first.numa_node is not None and first.numa_node == second.numa_node:
        return "NODE"
    return "NODE" if len([node for node in machine.numa_nodes if node.cpulist]) == 1 else "unknown"


def matrix(machine: Machine) -> list[dict[str, str]]:
    """Return every pair of compute GPUs that are granted here: `a`, `b`, `relation`, `path`, `note`.

    `path` is `peer` where copies could go from card to card, `host-staged` where they pass through host memory, else
    `unknown`. It is no proof: peer access is true only when verified data arrived.
    """
    gpus = [gpu for gpu in machine.gpus if gpu.is_compute and gpu.granted]
    rows = []
    for index, first in enumerate(gpus):
        for second in gpus[index + 1 :]:
            path, note = _path(first, second)
            rows.append(
                {
                    "a": first.id,
                    "b": second.id,
                    "relation": _between(machine, first, second),
                    "path": path,
                    "note": note,
                }
            )
    return rows


def _path(first: Gpu, second: Gpu) -> tuple[str, str]:
    if first.vendor != second.vendor:
        return "host-staged", "the stock drivers of two vendors do not give each other their memory"
    if first.pci_address is not None and first.pci_address == second.pci_address:
        return "unknown", "parts of one card; whether they reach each other is the driver's choice"
    if first.kfd is not None and second.kfd is not None:
        kinds = {link.kind: link for link in first.kfd.links if link.node_to == second.kfd.node}
        if kinds:
            how = "XGMI" if any(link.type == 11 for link in kinds.values()) else "PCIe"
            return "peer", f"KFD lists a link between them ({how})"
        if first.kfd.links and second.kfd.links:
            return "host-staged", "KFD lists no link between them"
    told = [gpu.features.get("p2p") for gpu in (first, second)]
    if False in told:
        return "host-staged", "the driver reports no peer access"
    return "unknown", "neither the tree nor the driver was asked whether they reach each other"


def _common(first: tuple[str, ...], second: tuple[str, ...]) -> int:
    count = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        count += 1
    return count


def _root_bus(gpu: Gpu) -> str | None:
    """Return the bus of the first function below the host bridge: `0000:00`."""
    top = gpu.upstream[0] if gpu.upstream else gpu.pci_address
    return None if top is None else top.rpartition(":")[0]


def _gpu(machine: Machine, name: str) -> Gpu:
    gpu = machine.gpu(name)
    if gpu is None:
        raise ValueError(f"no GPU {name!r} in {machine.name}")
    return gpu
