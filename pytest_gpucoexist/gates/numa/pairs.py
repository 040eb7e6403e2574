"""How far apart the nodes of two GPUs are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.findings import Finding, passed, skipped, unknown, warned
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.verdicts import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.model.machine import Machine

__all__ = ["distance"]

_ONE = "one GPU: no pair"


@gate(
    "numa.pair_distance",
    group="numa",
    severity="info",
    title="Distances between the GPUs' nodes make sense",
    reads="/sys/devices/system/node/node*/distance, and the node of each GPU",
    criterion="the table of distances is symmetric, and no other node is as near as a node is to itself",
    why="where two GPUs sit on different nodes, expectations of bandwidth are scaled by this table; firmware that "
    "writes nonsense into it makes placement wrong",
    action="look for a newer BIOS; move both cards to one socket where the distance matters",
    source="ACPI specification, System Locality Information Table; Linux drivers/acpi/numa/srat.c",
)
def distance(subject: Subject) -> Iterator[Finding]:
    """Judge the table, and record how far apart GPUs are."""
    machine = subject.machine
    nodes = {node.id: node for node in machine.numa_nodes}
    if not nodes:
        source = "/sys/devices/system/node"
        yield unknown(
            "the NUMA nodes are not told", Evidence(source=source, found="no nodes", expected="node0 and others")
        )
        return
    if len(nodes) < 2:
        yield skipped("one NUMA node: no distance")
        return
    ids = sorted(nodes)
    rows = {number: nodes[number].distances for number in ids}
    evidence = [
        Evidence(
            source=f"/sys/devices/system/node/node{number}/distance",
            found=" ".join(map(str, row)) if row else "not told",
        )
        for number, row in rows.items()
    ]
    table: dict[tuple[int, int], int] = {}
    for number, row in rows.items():
        if row is None or len(row) != len(ids):
            yield unknown("the table of distances is not told for every node", *evidence)
            return
        table.update({(number, other): value for other, value in zip(ids, row, strict=True)})
    for (one, other), value in table.items():
        if one != other and value <= table[one, one]:
            yield warned(f"node {other} is said to be as near to node {one} as that is to itself", *evidence)
            return
        if value != table[other, one]:
            yield warned(f"from node {one} to node {other} is {value}, and back {table[other, one]}", *evidence)
            return
    yield passed(_said(machine, table), *evidence)


def _said(machine: Machine, table: dict[tuple[int, int], int]) -> str:
    gpus = [gpu for gpu in machine.gpus if gpu.is_compute and gpu.granted and gpu.numa_node is not None]
    far = [
        (table.get((a.numa_node or 0, b.numa_node or 0), 0), a.id, b.id)
        for number, a in enumerate(gpus)
        for b in gpus[number + 1 :]
        if a.numa_node != b.numa_node
    ]
    if not far:
        return "distances make sense, and all GPUs whose node is known sit on one node"
    value, a, b = max(far)
    return f"distances make sense; the farthest GPUs, {a} and {b}, are {value} apart (10 is the same node)"
