"""Compare `Machine.to_json()` with a truth file, field by field.

A truth file states what its authors read from one source. What it leaves null, that source did not tell; the machine
may know it from another one (`uevent`, a CPU mask, `/proc/driver/nvidia`) and must then say from which.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Score", "compare"]

Json = Mapping[str, Any]

# What the Machine has no place for: other people's names, the PCI modules that could bind, hwloc's objects.
NOT_OURS = {"description", "driver_modules", "os_devices", "local_cpus", "kfd_node"}

_SECOND_SOURCES = ("/uevent", "/local_cpus", "/proc/driver/nvidia/gpus", "/sys/class/kfd", "/sys/class/drm")


@dataclass(slots=True)
class Score:
    """Fields that were stated, fields that agreed, and what differed."""

    stated: int = 0
    wrong: list[str] = field(default_factory=list)

    def check(self, where: str, expected: object, found: object) -> None:
        self.stated += 1
        if expected != found:
            self.wrong.append(f"{where}: truth {expected!r}, found {found!r}")


def compare(truth: Json, machine: Json) -> Score:
    """Compare everything that the truth states."""
    score = Score()
    _gpus(score, truth, machine)
    for card in truth.get("drm_cards", ()):
        (name,) = card["drm"]
        (gpu,) = [gpu for gpu in machine["gpus"] if gpu["drm"] and gpu["drm"]["card"] == name]
        _gpu(score, f"drm_cards {name}", card, gpu)
    for vga in truth.get("bmc_vga", ()):
        gpu = _only(machine["gpus"], vga["bdf"])
        _gpu(score, vga["bdf"], vga, gpu)
        score.check(f"{vga['bdf']}.kind", "bmc", gpu.get("kind"))
    for other in truth.get("other_accelerators", ()):
        _gpu(score, other["bdf"], other, _only(machine["accelerators"], other["bdf"]))
    if "other_accelerators" in truth:
        score.check("other_accelerators", len(truth["other_accelerators"]), len(machine["accelerators"]))
    if "pci_functions" in truth:
        score.check("pci_functions", truth["pci_functions"], machine["pci_functions"])
    if "cpu_nodes" in truth:
        score.check("cpu_nodes", truth["cpu_nodes"], machine["kfd_cpu_nodes"])
    _numa(score, truth.get("numa_nodes"), machine["numa_nodes"])
    for address, status in truth.get("nvidia_numa_status", {}).items():
        fact = _only(machine["gpus"], address)["facts"]["features.memory_node"]
        score.check(f"{address}.memory node", f"memory is node {status['node']}", fact["detail"])
    return score


def _gpus(score: Score, truth: Json, machine: Json) -> None:
    expected = Counter(gpu["bdf"] for gpu in (*truth["gpus"], *truth.get("bmc_vga", ())))
    found = Counter(gpu["pci_address"] for gpu in machine["gpus"])
    if "drm_cards" not in truth:
        score.check("gpus", dict(expected), dict(found))
    for wanted in truth["gpus"]:
        candidates = [gpu for gpu in machine["gpus"] if gpu["pci_address"] == wanted["bdf"]]
        if "kfd_node" in wanted:
            candidates = [gpu for gpu in candidates if gpu["kfd"]["node"] == wanted["kfd_node"]]
        score.check(f"{wanted['bdf']} is listed", 1, len(candidates))
        if candidates:
            _gpu(score, str(wanted["bdf"]), wanted, candidates[0])


def _gpu(score: Score, where: str, truth: Json, gpu: Json) -> None:
    for name, expected in truth.items():
        if name in NOT_OURS:
            continue
        if expected is None or expected == -1:
            _null(score, f"{where}.{name}", name, gpu)
        else:
            wanted, found = _FIELDS[name](expected, gpu)
            score.check(f"{where}.{name}", wanted, found)
    mask = truth.get("local_cpus")
    if mask is not None and truth.get("local_cpulist") is None:
        score.check(f"{where}.local_cpus", _cpus_of_mask(mask), _cpus_of_list(gpu["local_cpulist"]))


def _null(score: Score, where: str, name: str, gpu: Json) -> None:
    """The source of the truth did not tell: None, or a value from a source that is named and another one."""
    ours = _NAMES.get(name, name)
    value: Any = gpu
    for part in ours.split("."):
        value = value.get(part) if value is not None else None
    if value is None or value == []:
        score.check(where, None, None)
        return
    source = gpu["facts"][ours]["source"]
    other = any(part in source for part in _SECOND_SOURCES)
    score.check(f"{where} (from {source})", True, other)


def _numa(score: Score, truth: Any, nodes: Sequence[Json]) -> None:
    if isinstance(truth, dict):
        found = {str(node["id"]): node["cpulist"] for node in nodes}
        score.check("numa_nodes", sorted(truth), sorted(found))
        for number, cpulist in truth.items():
            score.check(f"node{number}.cpulist", cpulist, found.get(number))
    elif truth is not None:
        score.check("numa_nodes", truth, [node["id"] for node in nodes])


def _only(items: Sequence[Json], address: str) -> Json:
    return next((item for item in items if item["pci_address"] == address), {})


def _speed(text: str) -> float | None:
    number = text.replace("GT/s", " ").split()[0]
    return None if number == "Unknown" else float(number)


def _links(truth: Mapping[str, int], gpu: Json) -> tuple[object, object]:
    found = Counter(f"{link['kind']}_links type {link['type']}" for link in gpu["kfd"]["links"])
    return truth, dict(found)


def _upstream_links(truth: Sequence[Json], gpu: Json) -> tuple[object, object]:
    """Compare what is stated of each bridge; one driver that a tree has was left out when its truth was made."""
    wanted, found = [], []
    nothing: Json = {}
    for item, ours in itertools.zip_longest(truth, gpu["upstream_links"], fillvalue=nothing):
        link = ours.get("link", {})
        stated = (
            ("pci_address", item.get("bdf"), ours.get("pci_address")),
            ("driver", item.get("driver"), ours.get("driver")),
            ("speed", _speed(item.get("current_link_speed") or "Unknown"), link.get("current_speed_gtps")),
            ("width", int(item.get("current_link_width") or 0) or None, link.get("current_width")),
        )
        wanted.append([(name, value) for name, value, _ in stated if value is not None])
        found.append([(name, value) for name, expected, value in stated if expected is not None])
    return wanted, found


def _locality(truth: Json, gpu: Json) -> tuple[object, object]:
    nodes = _cpus_of_mask(truth["nodeset"])
    wanted = (_cpus_of_mask(truth["cpuset"]), nodes if len(nodes) == 1 else [])
    return wanted, (_cpus_of_list(gpu["local_cpulist"]), [] if gpu["numa_node"] is None else [gpu["numa_node"]])


def _gigabytes(truth: str, gpu: Json) -> tuple[object, object]:
    """hwloc's number: transfer rate times encoding times lanes. Less than one lane of the first generation is none."""
    speed, width = gpu["link"]["current_speed_gtps"], gpu["link"]["current_width"]
    if float(truth) < 0.25:
        return (None, None), (speed, width)
    found = speed * (0.8 if speed <= 5 else 128 / 130) * width / 8
    return True, abs(found - float(truth)) <= 0.02 * float(truth)


def _plain(name: str, convert: Callable[[Any], Any] = lambda value: value) -> Callable[[Any, Json], tuple[Any, Any]]:
    return lambda truth, gpu: (convert(truth), gpu.get(name))


def _kfd(name: str) -> Callable[[Any, Json], tuple[Any, Any]]:
    return lambda truth, gpu: (int(truth), gpu["kfd"][name])


def _link(name: str, convert: Callable[[str], Any]) -> Callable[[Any, Json], tuple[Any, Any]]:
    return lambda truth, gpu: (convert(truth), gpu["link"][name])


def _class(truth: str, gpu: Json) -> tuple[object, object]:
    return truth, gpu["class_id"][: len(truth)]


def _drm(truth: Sequence[str], gpu: Json) -> tuple[object, object]:
    nodes = gpu["drm"] or {"card": None, "render": None, "others": []}
    return sorted(truth), sorted(name for name in (nodes["card"], nodes["render"], *nodes["others"]) if name)


_FIELDS: dict[str, Callable[[Any, Json], tuple[Any, Any]]] = {
    "bdf": _plain("pci_address"),
    "vendor": _plain("vendor_id"),
    "device": _plain("device_id"),
    "class": _class,
    "subsystem": _plain("subsystem_id", ":".join),
    "numa_node": _plain("numa_node"),
    "local_cpulist": _plain("local_cpulist"),
    "current_link_speed": _link("current_speed_gtps", _speed),
    "max_link_speed": _link("max_speed_gtps", _speed),
    "current_link_width": _link("current_width", lambda text: int(text.lstrip("x"))),
    "max_link_width": _link("max_width", lambda text: int(text.lstrip("x"))),
    "driver": _plain("driver"),
    "upstream": _plain("upstream"),
    "upstream_links": _upstream_links,
    "drm": _drm,
    "boot_vga": _plain("boot_vga", bool),
    "hwmon_names": _plain("hwmon"),
    "vram_total": _plain("memory_total_bytes"),
    "iommu_group": _plain("iommu_group"),
    "drm_render_minor": _kfd("render_minor"),
    "gfx_target_version": _kfd("gfx_target_version"),
    "simd_count": _kfd("simd_count"),
    "num_xcc": _kfd("num_xcc"),
    "nearest_cpu_node": _kfd("nearest_cpu_node"),
    "links": _links,
    "locality": _locality,
    "pci_link_speed_GBps": _gigabytes,
}
# Where a field lies in the JSON, and its name in `facts`, when the truth has null.
_NAMES = {
    "bdf": "pci_address",
    "vendor": "vendor_id",
    "device": "device_id",
    "class": "class_id",
    "subsystem": "subsystem_id",
    "current_link_speed": "link.current_speed_gtps",
    "current_link_width": "link.current_width",
    "max_link_speed": "link.max_speed_gtps",
    "max_link_width": "link.max_width",
    "hwmon_names": "hwmon",
    "vram_total": "memory_total_bytes",
    "gfx_target_version": "kfd.gfx_target_version",
    "num_xcc": "kfd.num_xcc",
}


def _cpus_of_mask(text: str) -> list[int]:
    """Read a mask as the kernel or hwloc prints it: groups of 32 bits; hwloc leaves empty groups out."""
    value = 0
    for group in text.split(","):
        value = value << 32 | int(group or "0", 16)
    return [bit for bit in range(value.bit_length()) if value >> bit & 1]


def _cpus_of_list(text: str | None) -> list[int]:
    cpus: list[int] = []
    for part in (text or "").split(","):
        first, _, last = part.partition("-")
        if first:
            cpus += range(int(first), int(last or first) + 1)
    return sorted(cpus)
