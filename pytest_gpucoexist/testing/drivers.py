"""What each kernel driver adds: DRM minors, device nodes, `/proc/driver/nvidia`, the files of amdgpu and xe."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from pytest_gpucoexist.host.base import Node
from pytest_gpucoexist.testing.parts import RENDER_GID, VIDEO_GID, MachineParts
from pytest_gpucoexist.testing.pcitree import link, put

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpucoexist.host.tree import MemoryTree
    from pytest_gpucoexist.testing.driven import DrivenGpu

__all__ = ["VBIOS", "write_drivers"]

_DRM_MAJOR, _NVIDIA_MAJOR, _UVM_MAJOR = 226, 195, 511
VBIOS = {"nvidia": "95.02.3c.40.b1", "amdgpu": "113-D7020100-102"}
# gpu_metrics of an APU starts with size 264 and revision 2.3 (struct gpu_metrics_v2_3 in kgd_pp_interface.h).
_APU_METRICS = bytes([0x08, 0x01, 2, 3]) + bytes(260)


def write_drivers(tree: MemoryTree, gpus: Sequence[DrivenGpu], parts: MachineParts, errors: dict[str, int]) -> None:
    """Write everything of all drivers; `errors` gets what cannot be read."""
    tree.add_dir("/sys/class/drm")
    put(tree, "/sys/class/drm/version", "drm 1.1.0 20060810")
    for gpu in gpus:
        _drm(tree, gpu)
    if any(gpu.nvidia_minor is not None for gpu in gpus):
        _nvidia(tree, gpus, parts)
    hwmon = 0
    for gpu in gpus:
        if gpu.part.driver == "amdgpu":
            _amdgpu(tree, gpu, errors)
        if gpu.part.driver == "xe" and gpu.part.model.memory_bytes:
            put(tree, f"{gpu.function.path}/tile0/physical_vram_size_bytes", hex(gpu.part.model.memory_bytes))
        if gpu.part.driver in {"amdgpu", "xe", "nouveau"}:
            folder = f"{gpu.function.path}/hwmon/hwmon{hwmon}"
            put(tree, f"{folder}/name", gpu.part.driver)
            link(tree, f"/sys/class/hwmon/hwmon{hwmon}", folder)
            hwmon += 1


def _drm(tree: MemoryTree, gpu: DrivenGpu) -> None:
    path = gpu.function.path
    for name, minor, gid in (
        (f"card{gpu.card}", gpu.card, VIDEO_GID),
        (f"renderD{gpu.render}", gpu.render, RENDER_GID),
    ):
        if minor is None:
            continue
        folder = f"{path}/drm/{name}"
        put(tree, f"{folder}/dev", f"{_DRM_MAJOR}:{minor}")
        put(tree, f"{folder}/uevent", f"MAJOR={_DRM_MAJOR}\nMINOR={minor}\nDEVNAME=dri/{name}\nDEVTYPE=drm_minor")
        link(tree, f"{folder}/device", path)
        link(tree, f"{folder}/subsystem", "/sys/class/drm")
        link(tree, f"/sys/class/drm/{name}", folder)
        _device_node(tree, gpu, f"/dev/dri/{name}", _DRM_MAJOR, minor, 0o660, gid)
    if gpu.card is not None and gpu.part.driver in {"ast", "i915"}:
        # A connector beside the cards, which is none.
        folder = f"{path}/drm/card{gpu.card}/card{gpu.card}-VGA-1"
        put(tree, f"{folder}/status", "disconnected")
        link(tree, f"/sys/class/drm/card{gpu.card}-VGA-1", folder)


def _device_node(tree: MemoryTree, gpu: DrivenGpu, path: str, major: int, minor: int, mode: int, gid: int) -> None:
    if gpu.part.withheld:
        return
    if gpu.part.denied:
        mode, gid = 0o600, 0
    tree.add_node(path, Node(kind="chardev", mode=mode, gid=gid, major=major, minor=minor))


def _nvidia(tree: MemoryTree, gpus: Sequence[DrivenGpu], parts: MachineParts) -> None:
    version = parts.nvidia_driver
    proc = "/proc/driver/nvidia"
    put(
        tree,
        f"{proc}/version",
        f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release Build  (dvs-builder@U22)  "
        "Fri Mar 14 13:12:07 UTC 2025\nGCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04)",
    )
    for module in ("nvidia", "nvidia_uvm", "nvidia_modeset", "nvidia_drm"):
        put(tree, f"/sys/module/{module}/version", version)
    put(tree, "/sys/module/nvidia/taint", "OE")
    for name, major, minor in (
        ("nvidiactl", _NVIDIA_MAJOR, 255),
        ("nvidia-modeset", _NVIDIA_MAJOR, 254),
        ("nvidia-uvm", _UVM_MAJOR, 0),
        ("nvidia-uvm-tools", _UVM_MAJOR, 1),
    ):
        tree.add_node(f"/dev/{name}", Node(kind="chardev", mode=0o666, major=major, minor=minor))
    for gpu in gpus:
        if gpu.nvidia_minor is None:
            continue
        _device_node(tree, gpu, f"/dev/nvidia{gpu.nvidia_minor}", _NVIDIA_MAJOR, gpu.nvidia_minor, 0o666, 0)
        # Columns as nv-procfs.c prints them.
        put(
            tree,
            f"{proc}/gpus/{gpu.address}/information",
            f"Model: \t\t {gpu.part.model.name}\nIRQ:   \t\t {150 + gpu.number}\nGPU UUID: \t {gpu.uuid}\n"
            f"Video BIOS: \t {VBIOS['nvidia']}\nBus Type: \t PCIe\nDMA Size: \t 47 bits\nDMA Mask: \t 0x7fffffffffff\n"
            f"Bus Location: \t {gpu.address}\nDevice Minor: \t {gpu.nvidia_minor}\nGPU Firmware: \t {version}\n"
            "GPU Excluded:\t No",
        )


def _amdgpu(tree: MemoryTree, gpu: DrivenGpu, errors: dict[str, int]) -> None:
    model, path = gpu.part.model, gpu.function.path
    attributes: dict[str, object] = {
        "mem_info_vram_total": model.memory_bytes,
        "mem_info_vram_used": gpu.part.memory_used_bytes,
        "mem_info_vis_vram_total": model.memory_bytes if model.large_bar else 256 * 2**20,
        "mem_info_gtt_total": 32 * 2**30,
        "vbios_version": VBIOS["amdgpu"],
        "gpu_busy_percent": 0,
    }
    if gpu.unique_id:
        attributes["unique_id"] = f"{gpu.unique_id:016x}"
    if model.ecc:
        # Server boards carry an inventory chip; ras/features is amdgpu_ras.c's mask of covered blocks.
        attributes["product_name"] = model.name
        attributes["ras/features"] = "feature mask: 0x3fff"
    for name, value in attributes.items():
        put(tree, f"{path}/{name}", value)
        if gpu.part.lost and name != "ras/features":
            errors[f"{path}/{name}"] = errno.ENODEV
    if model.place == "processor":
        tree.add_file(f"{path}/gpu_metrics", _APU_METRICS)
