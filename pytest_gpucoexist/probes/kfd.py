"""KFD, the kernel's list of compute devices for ROCm: gfx target, partitions, links, memory.

Source: drivers/gpu/drm/amd/amdkfd/kfd_topology.c. A node is a GPU when it has SIMDs and a CPU when it has cores; an
APU's node of old kernels has both. `location_id` is bus, device and function of the PCI address; on a partitioned GPU
either bits 31:28 carry the partition's number, or (kernels before 6.8) it is added to the function.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pytest_gpucoexist.model.machine import DrmNodes, KfdCpuNode, KfdLink, KfdNode
from pytest_gpucoexist.model.readings import Observation, Reading
from pytest_gpucoexist.probes.parse import named_values, number
from pytest_gpucoexist.probes.reader import Bad, names_in, read, read_text

if TYPE_CHECKING:
    from collections.abc import Collection

    from pytest_gpucoexist.host.base import Host

__all__ = ["Kfd", "address_of", "gfx_name", "observe", "uuid_of"]

NODES = "/sys/class/kfd/kfd/topology/nodes"

# CRAT heap types of the GPU's own memory (kfd_crat.h): frame buffer, visible to the CPU and not.
_LOCAL_HEAPS = {1, 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kfd:
    """What the topology shows; everything is empty where there is none."""

    observations: tuple[Observation, ...] = ()
    cpu_nodes: tuple[KfdCpuNode, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    node: int
    path: str
    address: str
    partition: int
    properties: Mapping[str, int]


def gfx_name(version: int) -> str:
    """Name a gfx target; minor and step are hexadecimal digits.

    >>> gfx_name(90010), gfx_name(110003)
    ('gfx90a', 'gfx1103')
    """
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def address_of(domain: int, location_id: int) -> tuple[str, int]:
    """Return the PCI address and the partition number in a location's top bits."""
    bus, device, function = location_id >> 8 & 0xFF, location_id >> 3 & 0x1F, location_id & 0x7
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function}", location_id >> 28 & 0xF


def uuid_of(unique_id: int | None) -> str | None:
    """Write a unique id the way ROCm names devices; 0 is none (ROCm prints `GPU-XX`, which names nothing)."""
    return f"GPU-{unique_id:016x}" if unique_id else None


def observe(host: Host, known: Collection[str]) -> Kfd:
    """Read the topology. `known` are the addresses of GPUs that PCI shows."""
    try:
        names = host.list_dir(NODES)
    except OSError:
        return Kfd()
    cpu_nodes: list[KfdCpuNode] = []
    gpus: list[_Found] = []
    notes: list[str] = []
    for node in sorted(int(name) for name in names if name.isascii() and name.isdigit()):
        path = f"{NODES}/{node}"
        properties = read(host, "properties", f"{path}/properties", named_values)
        if properties.status != "ok":
            # EPERM: the device cgroup of a container does not grant this GPU.
            notes.append(f"KFD node {node}: {properties.status}: {properties.detail}")
            continue
        values: dict[str, int] = properties.value
        if values.get("cpu_cores_count", 0) > 0:
            cpu_nodes.append(KfdCpuNode(node=node, cpu_cores=values["cpu_cores_count"]))
        if values.get("simd_count", 0) > 0:
            address, partition = address_of(values.get("domain", 0), values.get("location_id", 0))
            gpus.append(_Found(node=node, path=path, address=address, partition=partition, properties=values))
    cpus = {cpu.node for cpu in cpu_nodes}
    observations = [
        _observe(host, found, address, partition, cpus) for found, address, partition in _place(gpus, known)
    ]
    return Kfd(observations=tuple(observations), cpu_nodes=tuple(cpu_nodes), notes=tuple(notes))


def _place(gpus: list[_Found], known: Collection[str]) -> list[tuple[_Found, str, str | None]]:
    """Give each node its PCI function and, where several nodes share one, its partition."""
    placed: list[tuple[_Found, str, int]] = []
    for found in gpus:
        address, partition = found.address, found.partition
        whole = f"{address[:-1]}0"
        if address not in known and whole in known:
            # There is no such function: it is partition N of function 0.
            address, partition = whole, int(found.address[-1])
        placed.append((found, address, partition))
    count = Counter(address for _, address, _ in placed)
    numbers: dict[str, list[int]] = {}
    for _, address, partition in placed:
        numbers.setdefault(address, []).append(partition)
    result: list[tuple[_Found, str, str | None]] = []
    seen: Counter[str] = Counter()
    for found, address, partition in placed:
        distinct = len(set(numbers[address])) == count[address]
        label = str(partition if distinct else seen[address]) if count[address] > 1 or partition else None
        seen[address] += 1
        result.append((found, address, label))
    return result


def _observe(host: Host, found: _Found, address: str, partition: str | None, cpus: set[int]) -> Observation:
    values, source = found.properties, f"{found.path}/properties"
    links = (*_links(host, found.path, "io"), *_links(host, found.path, "p2p"))
    minor = values.get("drm_render_minor")
    node = KfdNode(
        node=found.node,
        gpu_id=read(host, "gpu_id", f"{found.path}/gpu_id", number).value,
        gfx_target_version=values.get("gfx_target_version"),
        simd_count=values.get("simd_count"),
        num_xcc=values.get("num_xcc"),
        nearest_cpu_node=_nearest(found.node, links, cpus),
        render_minor=minor,
        unique_id=values.get("unique_id"),
        links=links,
    )
    readings = [
        Reading(field="kfd", value=node, source=source),
        *_id_readings(values, source),
        _gfx(values, source),
        _memory(host, found.path),
    ]
    if minor:
        readings.append(Reading(field="drm", value=DrmNodes(render=f"renderD{minor}"), source=source))
    return Observation(probe="kfd", pci_address=address, partition=partition, readings=tuple(readings), creates=True)


def _id_readings(values: Mapping[str, int], source: str) -> list[Reading]:
    readings = [
        Reading(field=field, value=f"0x{values[key]:04x}", source=source)
        for field, key in (("vendor_id", "vendor_id"), ("device_id", "device_id"))
        if 0 < values.get(key, 0) < 0xFFFF
    ]
    uuid = uuid_of(values.get("unique_id"))
    if uuid is not None:
        readings.append(Reading(field="uuid", value=uuid, source=source))
    else:
        detail = "no unique_id: this board has none"
        readings.append(Reading(field="uuid", value=None, source=source, status="unsupported", detail=detail))
    return readings


def _gfx(values: Mapping[str, int], source: str) -> Reading:
    version = values.get("gfx_target_version")
    if version:
        return Reading(field="arch", value=gfx_name(version), source=source)
    detail = "no gfx_target_version: the kernel is older than 5.16"
    return Reading(field="arch", value=None, source=source, status="absent", detail=detail)


def _memory(host: Host, path: str) -> Reading:
    """Add up the banks of the GPU's own memory."""
    folder = f"{path}/mem_banks"
    total = 0
    for name in names_in(host, folder):
        bank = read(host, "memory_total_bytes", f"{folder}/{name}/properties", _bank)
        if bank.status != "ok":
            return bank
        total += bank.value
    if total == 0:
        detail = "no bank of local memory"
        return Reading(field="memory_total_bytes", value=None, source=folder, status="absent", detail=detail)
    return Reading(field="memory_total_bytes", value=total, source=folder)


def _bank(text: str) -> object:
    values = named_values(text)
    if not isinstance(values, dict):
        return values
    return values.get("size_in_bytes", 0) if values.get("heap_type") in _LOCAL_HEAPS else 0


def _links(host: Host, path: str, kind: Literal["io", "p2p"]) -> list[KfdLink]:
    links: list[KfdLink] = []
    for name in sorted(names_in(host, f"{path}/{kind}_links"), key=lambda name: (len(name), name)):
        values = named_values(read_text(host, f"{path}/{kind}_links/{name}/properties").text or "")
        if isinstance(values, Bad) or "type" not in values or "node_to" not in values:
            continue
        links.append(
            KfdLink(
                kind=kind,
                type=values["type"],
                node_to=values["node_to"],
                weight=values.get("weight"),
                min_bandwidth_mbps=values.get("min_bandwidth"),
                max_bandwidth_mbps=values.get("max_bandwidth"),
            )
        )
    return links


def _nearest(node: int, links: tuple[KfdLink, ...], cpus: set[int]) -> int | None:
    """Return the CPU node with the lightest link; an APU's node is its own."""
    if node in cpus:
        return node
    near = [link for link in links if link.node_to in cpus]
    return min(near, key=_distance).node_to if near else None


def _distance(link: KfdLink) -> tuple[bool, int, int]:
    # A link that does not tell its weight is no near one.
    return link.weight is None, link.weight or 0, link.node_to
