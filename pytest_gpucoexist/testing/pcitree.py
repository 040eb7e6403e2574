"""Write placed functions as the kernel shows them in sysfs (Documentation/ABI/testing/sysfs-bus-pci)."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

from pytest_gpucoexist.testing.config import LOST, SPEED_CODES, bridge_config, endpoint_config

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpucoexist.host.tree import MemoryTree
    from pytest_gpucoexist.testing.placing import PlacedFunction

__all__ = ["cpulist", "cpumap", "link", "put", "write_functions"]

_IO, _MEM, _MEM_64, _PREFETCH_64 = 0x40101, 0x40200, 0x140204, 0x14220C
_NO_RESOURCE = "0x0000000000000000 0x0000000000000000 0x0000000000000000"


def put(tree: MemoryTree, path: str, value: object) -> None:
    """Write a file as sysfs does: text with a newline."""
    tree.add_file(path, f"{value}\n".encode())


def link(tree: MemoryTree, path: str, target: str) -> None:
    """Make a relative link to an absolute path, as sysfs does."""
    tree.add_link(path, posixpath.relpath(target, posixpath.dirname(path)))


def cpulist(node: int, cpus: Sequence[int]) -> str:
    """Return the CPUs of a node as a list: `8-15`. `cpus` are the numbers of CPUs of all nodes."""
    first = sum(cpus[:node])
    return f"{first}-{first + cpus[node] - 1}" if cpus[node] > 1 else str(first)


def cpumap(node: int, cpus: Sequence[int]) -> str:
    """Return the same as a mask in words of 32 bits: `0000ff00`."""
    mask = ((1 << cpus[node]) - 1) << sum(cpus[:node])
    words = max(1, -(-sum(cpus) // 32))
    return ",".join(f"{mask >> 32 * word & 0xFFFFFFFF:08x}" for word in reversed(range(words)))


def write_functions(tree: MemoryTree, functions: Sequence[PlacedFunction], cpus: Sequence[int]) -> None:
    """Write all functions, the links to them by bus and driver, and their IOMMU groups."""
    tree.add_dir("/sys/bus/pci/devices")
    for group, function in enumerate(functions):
        _write(tree, function, cpus)
        link(tree, f"/sys/bus/pci/devices/{function.address}", function.path)
        # A card's functions share a group: nothing isolates them from each other.
        number = group - 1 if function.class_id == "0x040300" else group
        link(tree, f"{function.path}/iommu_group", f"/sys/kernel/iommu_groups/{number}")
        link(tree, f"/sys/kernel/iommu_groups/{number}/devices/{function.address}", function.path)
        if function.driver is not None:
            driver = f"/sys/bus/pci/drivers/{function.driver}"
            link(tree, f"{function.path}/driver", driver)
            link(tree, f"{driver}/{function.address}", function.path)
            if function.driver != "pcieport":
                link(tree, f"{driver}/module", f"/sys/module/{function.driver}")


def _write(tree: MemoryTree, function: PlacedFunction, cpus: Sequence[int]) -> None:
    path = function.path
    vendor, device = function.ids.split(":")
    sub_vendor, sub_device = function.subsystem.split(":")
    for name, value in (
        ("vendor", vendor),
        ("device", device),
        ("subsystem_vendor", sub_vendor),
        ("subsystem_device", sub_device),
        ("class", function.class_id),
        ("revision", "0xa1"),
        ("numa_node", function.numa_node),
        ("local_cpulist", cpulist(function.numa_node, cpus)),
        ("local_cpus", cpumap(function.numa_node, cpus)),
        ("enable", 1),
        ("irq", 0),
        ("uevent", _uevent(function)),
        ("resource", _resource(function)),
        ("power/runtime_status", function.gpu.runtime_status if function.gpu else "active"),
        ("power/control", "auto"),
    ):
        put(tree, f"{path}/{name}", value)
    tree.add_file(f"{path}/config", _config(function))
    link(tree, f"{path}/subsystem", "/sys/bus/pci")
    if function.link is not None:
        lost = function.gpu is not None and function.gpu.lost
        speed, width, max_speed, max_width = function.link
        # All ones in the registers: 63 lanes, no speed by that code, the highest speed of Link Capabilities 2.
        put(tree, f"{path}/current_link_speed", "Unknown" if lost else f"{speed:.1f} GT/s PCIe")
        put(tree, f"{path}/current_link_width", 63 if lost else width)
        put(tree, f"{path}/max_link_speed", "64.0 GT/s PCIe" if lost else f"{max_speed:.1f} GT/s PCIe")
        put(tree, f"{path}/max_link_width", 63 if lost else max_width)
    if function.port is not None:
        put(tree, f"{path}/secondary_bus_number", function.secondary)
        put(tree, f"{path}/subordinate_bus_number", function.subordinate)
    if function.gpu is not None and function.class_id == "0x030000":
        put(tree, f"{path}/boot_vga", int(function.gpu.boot_vga))


def _uevent(function: PlacedFunction) -> str:
    vendor, device = (part[2:].upper() for part in function.ids.split(":"))
    sub_vendor, sub_device = (part[2:].upper() for part in function.subsystem.split(":"))
    code = function.class_id[2:]
    lines = [
        f"PCI_CLASS={code.lstrip('0').upper()}",
        f"PCI_ID={vendor}:{device}",
        f"PCI_SUBSYS_ID={sub_vendor}:{sub_device}",
        f"PCI_SLOT_NAME={function.address}",
        f"MODALIAS=pci:v0000{vendor}d0000{device}sv0000{sub_vendor}sd0000{sub_device}bc{code[:2]}sc{code[2:4]}i{code[4:]}",
    ]
    return "\n".join([f"DRIVER={function.driver}", *lines] if function.driver else lines)


def _resource(function: PlacedFunction) -> str:
    """Return base address registers as the kernel prints them; each bus has its own place below 4 GiB and above."""
    lines = [_NO_RESOURCE] * (17 if function.port is not None else 13)
    gpu = function.gpu
    if gpu is not None:
        low = 0x8000_0000 + (function.bus << 25)
        high = 0x100_0000_0000 + (function.bus << 38)
        bar = 256 * 2**20
        if gpu.model.large_bar:
            bar = 1 << (gpu.model.memory_bytes - 1).bit_length()
        if gpu.model.vendor_id == "0x10de":
            # NVIDIA: registers in BAR 0, memory in BAR 1, BAR 3 beside them.
            lines[0] = _region(low, 16 * 2**20, _MEM)
            lines[1] = _region(high, bar, _PREFETCH_64)
            lines[3] = _region(high + (1 << 37), 32 * 2**20, _PREFETCH_64)
        elif gpu.model.vendor_id == "0x8086":
            # Intel: registers in BAR 0, memory in BAR 2 (GEN12_LMEM_BAR, i915; LMEM_BAR, xe).
            lines[0] = _region(high + (1 << 37), 16 * 2**20, _MEM_64)
            lines[2] = _region(high, bar, _PREFETCH_64)
        else:
            # AMD: memory in BAR 0, doorbells in BAR 2, registers in BAR 5.
            lines[0] = _region(high, bar, _PREFETCH_64)
            lines[2] = _region(high + (1 << 37), 2 * 2**20, _PREFETCH_64)
            lines[5] = _region(low, 2**20, _MEM)
    return "\n".join(lines)


def _region(start: int, size: int, flags: int) -> str:
    return f"0x{start:016x} 0x{start + size - 1:016x} 0x{flags:016x}"


def _config(function: PlacedFunction) -> bytes:
    if function.gpu is not None and function.gpu.lost:
        return LOST
    ids = _pair(function.ids)
    codes = None
    if function.link is not None:
        speed, width, max_speed, max_width = function.link
        codes = (SPEED_CODES[speed], width, SPEED_CODES[max_speed], max_width)
    if function.port is not None:
        return bridge_config(ids, function.port, (function.bus, function.secondary, function.subordinate), codes)
    return endpoint_config(ids, _pair(function.subsystem), int(function.class_id, 16), codes)


def _pair(text: str) -> tuple[int, int]:
    first, second = (int(part, 16) for part in text.split(":"))
    return first, second
