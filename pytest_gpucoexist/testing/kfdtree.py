"""Write the KFD topology of a machine with amdgpu (drivers/gpu/drm/amd/amdkfd/kfd_topology.c)."""

from __future__ import annotations

import errno
import re
import zlib
from typing import TYPE_CHECKING

from pytest_gpucoexist.host.base import Node
from pytest_gpucoexist.model.identity import pci_sort_key
from pytest_gpucoexist.testing.parts import RENDER_GID, MachineParts
from pytest_gpucoexist.testing.pcitree import link, put

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpucoexist.host.tree import MemoryTree
    from pytest_gpucoexist.testing.driven import DrivenGpu

__all__ = ["gfx_target_version", "write_kfd"]

_KFD_MAJOR = 234
_PCIE = 2  # CRAT's number of the link type
_GFX = re.compile(r"gfx(\d+)([0-9a-f])([0-9a-f])")


def gfx_target_version(arch: str) -> int:
    """Return KFD's number of a target: `gfx90a` is 90010. Raises ValueError."""
    match = _GFX.fullmatch(arch)
    if match is None:
        raise ValueError(f"not a gfx target: {arch!r} (gfx90a, gfx1100)")
    major, minor, step = match.groups()
    return int(major) * 10000 + int(minor, 16) * 100 + int(step, 16)


def write_kfd(tree: MemoryTree, gpus: Sequence[DrivenGpu], parts: MachineParts, errors: dict[str, int]) -> None:
    """Write the class device, its node and one topology node per NUMA node and per GPU that amdgpu drives."""
    mine = [gpu for gpu in gpus if gpu.part.driver == "amdgpu"]
    if not mine:
        return
    device = "/sys/devices/virtual/kfd/kfd"
    link(tree, "/sys/class/kfd/kfd", device)
    put(tree, f"{device}/dev", f"{_KFD_MAJOR}:0")
    if not all(gpu.part.withheld for gpu in mine):
        tree.add_node("/dev/kfd", Node(kind="chardev", mode=0o660, gid=RENDER_GID, major=_KFD_MAJOR, minor=0))
    topology = f"{device}/topology"
    put(tree, f"{topology}/generation_id", 2)
    put(tree, f"{topology}/system_properties", "platform_oem 0\nplatform_id 0\nplatform_rev 0")
    inside = [gpu for gpu in mine if gpu.kfd_node is not None]
    for number, node in enumerate(parts.nodes):
        folder = f"{topology}/nodes/{number}"
        put(tree, f"{folder}/gpu_id", 0)
        put(tree, f"{folder}/name", "")
        _properties(tree, folder, {"cpu_cores_count": node.cpus, "simd_count": 0, "gfx_target_version": 0})
        near = [gpu for gpu in inside if gpu.part.numa_node == number]
        for index, gpu in enumerate(near):
            _io_link(tree, folder, index, number, gpu.kfd_node)
    for gpu in inside:
        _gpu_node(tree, gpu, topology, errors)


def _gpu_node(tree: MemoryTree, gpu: DrivenGpu, topology: str, errors: dict[str, int]) -> None:
    folder = f"{topology}/nodes/{gpu.kfd_node}"
    model = gpu.part.model
    domain, bus, device, function = pci_sort_key(gpu.address)
    put(tree, f"{folder}/gpu_id", zlib.crc32(gpu.address.encode()) % 65535 + 1)
    put(tree, f"{folder}/name", "ip discovery")
    per_unit = 4 if (model.arch or "").startswith("gfx9") else 2
    _properties(
        tree,
        folder,
        {
            "cpu_cores_count": 0,
            "simd_count": model.compute_units * per_unit,
            "simd_per_cu": per_unit,
            "wave_front_size": 64 if per_unit == 4 else 32,
            "gfx_target_version": gfx_target_version(model.arch or ""),
            "vendor_id": int(model.vendor_id, 16),
            "device_id": int(model.device_id, 16),
            "location_id": bus << 8 | device << 3 | function,
            "domain": domain,
            "drm_render_minor": gpu.render,
            "unique_id": gpu.unique_id,
            "num_xcc": 1,
        },
    )
    if model.place != "processor":
        put(
            tree,
            f"{folder}/mem_banks/0/properties",
            f"heap_type 1\nsize_in_bytes {model.memory_bytes}\nflags 0\nwidth 384\nmem_clk_max 1249",
        )
    _io_link(tree, folder, 0, gpu.kfd_node, gpu.part.numa_node)
    if gpu.part.withheld:
        # The cgroup check of kfd_devcgroup_check_permission: the files are there and cannot be read.
        for name in ("gpu_id", "properties"):
            errors[f"{folder}/{name}"] = errno.EPERM


def _io_link(tree: MemoryTree, folder: str, index: int, source: int | None, target: int | None) -> None:
    put(
        tree,
        f"{folder}/io_links/{index}/properties",
        f"type {_PCIE}\nversion_major 0\nversion_minor 0\nnode_from {source}\nnode_to {target}\nweight 20\n"
        "min_latency 0\nmax_latency 0\nmin_bandwidth 312\nmax_bandwidth 32000\nrecommended_transfer_size 0\nflags 1",
    )


def _properties(tree: MemoryTree, folder: str, values: dict[str, object]) -> None:
    put(tree, f"{folder}/properties", "\n".join(f"{name} {value}" for name, value in values.items()))
