"""NUMA nodes from sysfs: CPUs, memory, distances (Documentation/ABI/stable/sysfs-devices-node)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytest_gpucoexist.model.machine import NumaNode
from pytest_gpucoexist.probes.parse import cpulist_of_mask, cpus_of_list, list_of_cpus
from pytest_gpucoexist.probes.reader import Bad, read

if TYPE_CHECKING:
    from pytest_gpucoexist.host.base import Host

__all__ = ["nodes"]

FOLDERS = ("/sys/devices/system/node", "/sys/bus/node/devices")

_NODE = re.compile(r"node([0-9]{1,4})")
_NO_CPU = re.compile(r"0+(?:,0+)*")
_MEM_TOTAL = re.compile(r"MemTotal:\s+([0-9]{1,15}) kB")


def nodes(host: Host) -> tuple[tuple[NumaNode, ...], tuple[str, ...]]:
    """Return the nodes in order, and notes on what could not be read. A node without CPUs has the list ""."""
    for folder in FOLDERS:
        try:
            names = host.list_dir(folder)
        except OSError:
            continue
        numbers = sorted(int(match[1]) for match in map(_NODE.fullmatch, names) if match is not None)
        if numbers:
            notes: list[str] = []
            return tuple(_node(host, f"{folder}/node{number}", number, notes) for number in numbers), tuple(notes)
    return (), ("no NUMA nodes are told: no /sys/devices/system/node",)


def _node(host: Host, path: str, number: int, notes: list[str]) -> NumaNode:
    cpulist = read(host, "cpulist", f"{path}/cpulist", _cpulist)
    if cpulist.status != "ok":
        mask = read(host, "cpulist", f"{path}/cpumap", _cpumap)
        cpulist = mask if mask.status == "ok" else cpulist
    memory = read(host, "memory_bytes", f"{path}/meminfo", _memory)
    distances = read(host, "distances", f"{path}/distance", _distances)
    for reading in (cpulist, memory, distances):
        if reading.status not in {"ok", "absent"}:
            notes.append(f"{reading.source}: {reading.status}: {reading.detail}")
    return NumaNode(id=number, cpulist=cpulist.value, memory_bytes=memory.value, distances=distances.value)


def _cpulist(text: str) -> str | Bad:
    cpus = cpus_of_list(text)
    return cpus if isinstance(cpus, Bad) else list_of_cpus(cpus)


def _cpumap(text: str) -> str | Bad:
    return "" if _NO_CPU.fullmatch(text.strip()) else cpulist_of_mask(text)


def _memory(text: str) -> int | Bad:
    match = _MEM_TOTAL.search(text)
    return int(match[1]) * 1024 if match else Bad("no MemTotal in it")


def _distances(text: str) -> tuple[int, ...] | Bad:
    parts = text.split()
    if not parts or not all(part.isascii() and part.isdigit() and 0 < int(part[:4]) <= 255 for part in parts):
        return Bad(f"not distances: {text[:60]!a}")
    return tuple(int(part) for part in parts)
