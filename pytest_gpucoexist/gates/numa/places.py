"""Gates about where a GPU sits, and which CPUs and memory this process has."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.container.place import container_of
from pytest_gpucoexist.gates.findings import Finding, passed, skipped, unknown, warned
from pytest_gpucoexist.gates.pcie.folders import in_guest
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.verdicts import Evidence, Fix
from pytest_gpucoexist.probes.parse import cpus_of_list, list_of_cpus
from pytest_gpucoexist.probes.reader import Bad

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.model.machine import Gpu

__all__ = ["affinity", "gpu_memory_nodes", "node_known"]

_STATUS = "/proc/self/status"


@gate(
    "numa.node_known",
    group="numa",
    title="The node of each GPU is known",
    reads="numa_node of each GPU and of the bridges above it, and the nodes that have CPUs",
    criterion="on a machine of several nodes that is no virtual one, each GPU names one",
    why="where the firmware does not say the node, nothing is bound, and copies cross the sockets unseen: a third of "
    "the bandwidth, and figures that change from run to run",
    action="look for a newer BIOS (its SRAT and _PXM tables say the node)",
    source="NVIDIA/cuCascade PR#119",
)
def node_known(subject: Subject) -> Iterator[Finding]:
    """Judge each GPU on a machine of several nodes."""
    nodes = [node for node in subject.machine.numa_nodes if node.cpulist]
    if not subject.machine.numa_nodes:
        source = "/sys/devices/system/node"
        yield unknown(
            "the NUMA nodes are not told", Evidence(source=source, found="no nodes", expected="node0 and others")
        )
        return
    if len(nodes) < 2:
        yield passed(
            "one NUMA node has CPUs: every GPU is on it",
            Evidence(source="/sys/devices/system/node", found=f"{len(nodes)} node with CPUs"),
        )
        return
    for gpu in subject.functions():
        path = f"/sys/bus/pci/devices/{gpu.pci_address}/numa_node"
        if gpu.numa_node is not None:
            evidence = Evidence(source=path, found=str(gpu.numa_node))
            if gpu.numa_node not in {node.id for node in subject.machine.numa_nodes}:
                yield warned(f"it names node {gpu.numa_node}, which is not online", evidence, on=[gpu])
            else:
                yield passed("its NUMA node is known", evidence, on=[gpu])
            continue
        fact = gpu.facts.get("numa_node")
        rows = [Evidence(source=path, found=(fact.detail if fact else None) or "not told", expected="0 or more")]
        above = _node_above(subject, gpu)
        if above is not None:
            rows.append(above)
        if fact is not None and fact.status in {"denied", "broken"}:
            yield unknown(f"its NUMA node could not be read: {fact.detail}", *rows, on=[gpu])
        elif in_guest(subject):
            yield skipped("its NUMA node is not told: in a virtual machine that is the host's to say", on=[gpu])
        else:
            yield warned(f"its NUMA node is not known, on a machine of {len(nodes)} nodes", *rows, on=[gpu])


def _node_above(subject: Subject, gpu: Gpu) -> Evidence | None:
    """Return what the closest bridge that knows its node says: where the card most likely is."""
    for address in reversed(gpu.upstream or ()):
        path = f"/sys/bus/pci/devices/{address}/numa_node"
        text = (subject.read(path).text or "").strip()
        if text.isdecimal():
            return Evidence(source=path, found=f"{text}: of the bridge above it")
    return None


@gate(
    "numa.affinity",
    group="numa",
    title="This process may run near each GPU",
    reads="/proc/self/status: Cpus_allowed_list; local_cpulist of each GPU",
    criterion="among the CPUs that this process may use is one of the GPU's node",
    why="a process that was pinned to the other socket has 3.8 GB/s where 12.1 were possible",
    action="start the tests with CPUs of the GPU's node (taskset, numactl --cpunodebind), or use the fixture numa_node",
    source="mpicbg-scicomp/gearshifft PR#82",
)
def affinity(subject: Subject) -> Iterator[Finding]:
    """Intersect this process's CPUs with those near each GPU that is not masked: a job gets CPUs near its own GPUs."""
    text = subject.read(_STATUS)
    match = re.search(r"^Cpus_allowed_list:\s*(\S*)$", text.text or "", re.MULTILINE)
    mine = Bad("no line Cpus_allowed_list") if match is None else cpus_of_list(match[1])
    if isinstance(mine, Bad) or not mine:
        found = text.detail or text.status if text.text is None else mine.detail if isinstance(mine, Bad) else "empty"
        yield unknown(
            "the CPUs that this process may use are not told",
            Evidence(source=_STATUS, found=found, expected="Cpus_allowed_list"),
        )
        return
    gpus = [gpu for gpu in subject.functions() if gpu.visible] or subject.functions()
    if not gpus:
        yield skipped("the GPUs here have no PCI function, and so no place")
        return
    for gpu in gpus:
        near = cpus_of_list(gpu.local_cpulist or "")
        if isinstance(near, Bad) or not near:
            yield unknown(
                "which CPUs are near the GPU is not told", Evidence(source="local_cpulist", found="not told"), on=[gpu]
            )
            continue
        evidence = Evidence(
            source=f"{_STATUS}: Cpus_allowed_list", found=list_of_cpus(mine), expected=f"one of {gpu.local_cpulist}"
        )
        if set(mine) & set(near):
            yield passed("this process may run near the GPU", evidence, on=[gpu])
        else:
            fix = [] if container_of(subject) else [Fix(lines=(f"taskset --cpu-list {gpu.local_cpulist} pytest …",))]
            yield warned(
                f"this process may run on CPUs {list_of_cpus(mine)} alone, none of them near the GPU",
                evidence,
                on=[gpu],
                fix=fix,
            )


@gate(
    "numa.gpu_nodes",
    group="numa",
    vendors=("nvidia",),
    severity="info",
    title="Host memory comes from nodes with CPUs",
    reads="nodes without CPUs, /proc/self/status: Mems_allowed_list",
    criterion="this process may take memory from a node that has CPUs",
    why="on Grace and POWER9 the GPUs' own memory shows as nodes: a host buffer that lies there takes memory from the "
    "GPU, and measures something else",
    action="leave nodes without CPUs out of --membind and of the container's cpuset.mems",
    source="open-mpi/hwloc PR#357",
)
def gpu_memory_nodes(subject: Subject) -> Iterator[Finding]:
    """Look for nodes that are no host memory, and whether this process is bound to them."""
    nodes = subject.machine.numa_nodes
    if not nodes:
        yield unknown("the NUMA nodes are not told", Evidence(source="/sys/devices/system/node", found="no nodes"))
        return
    bare = [node.id for node in nodes if node.cpulist == ""]
    unread = [node.id for node in nodes if node.cpulist is None]
    evidence = Evidence(
        source="/sys/devices/system/node", found=f"nodes without CPUs: {', '.join(map(str, bare)) or 'none'}"
    )
    if unread:
        yield unknown(f"the CPUs of node {unread[0]} cannot be read", evidence)
        return
    if not bare:
        yield passed("every node has CPUs: none is a GPU's memory", evidence)
        return
    text = subject.read(_STATUS)
    match = re.search(r"^Mems_allowed_list:\s*(\S*)$", text.text or "", re.MULTILINE)
    allowed = Bad("no line Mems_allowed_list") if match is None else cpus_of_list(match[1])
    if isinstance(allowed, Bad):
        yield skipped(
            f"nodes {list_of_cpus(tuple(bare))} have no CPUs; from which nodes this process takes memory is not told"
        )
        return
    rows = (evidence, Evidence(source=f"{_STATUS}: Mems_allowed_list", found=list_of_cpus(allowed)))
    if allowed and not set(allowed) - set(bare):
        yield warned("this process may take memory only from nodes without CPUs: from the GPUs", *rows)
        return
    yield passed(f"nodes {list_of_cpus(tuple(bare))} have no CPUs (GPU memory); host buffers can lie elsewhere", *rows)
