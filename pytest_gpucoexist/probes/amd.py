"""What amdgpu's own sysfs attributes say about each GPU.

The attributes read here answer from the driver's memory: they wake nothing and do not stall when the GPU hangs
(amdgpu_vram_mgr.c, amdgpu_pm.c, amdgpu_atombios.c). The partition modes can be a register read and are left alone while
the GPU sleeps; `gpu_metrics`, `gpu_busy_percent` and sensors ask its firmware and are not read at all.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytest_gpucoexist.model.readings import Observation, Reading
from pytest_gpucoexist.probes.attributes import byte_count, line
from pytest_gpucoexist.probes.links import asleep_reading
from pytest_gpucoexist.probes.modules import module_driver, module_version
from pytest_gpucoexist.probes.parse import number
from pytest_gpucoexist.probes.reader import Bad, excerpt, read

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_gpucoexist.host.base import Host
    from pytest_gpucoexist.model.machine import Driver
    from pytest_gpucoexist.probes.functions import PciFunction

__all__ = ["drivers", "observe", "unique_id"]

_DRIVER = "amdgpu"
_UNIQUE_ID = re.compile(r"(?:0x)?([0-9a-fA-F]{1,16})")
_FEATURE_MASK = re.compile(r"feature mask: 0x([0-9a-fA-F]{1,16})")


def unique_id(text: str) -> str | Bad:
    """Turn `unique_id` into the UUID that ROCm uses: `GPU-` and 16 lower-case hexadecimal digits.

    Zero means that the board has none; ROCm then prints `GPU-XX`, which names nothing.
    """
    text = text.strip()
    if not text:
        return Bad("empty: this board has no unique id", "unsupported")
    match = _UNIQUE_ID.fullmatch(text)
    if match is None:
        return Bad(f"not a unique id: {excerpt(text)}")
    value = int(match[1], 16)
    return f"GPU-{value:016x}" if value else Bad("0: this board has no unique id", "unsupported")


def drivers(host: Host) -> list[Driver]:
    """List the loaded kernel drivers that can bind an AMD GPU."""
    found = (module_driver(host, name) for name in (_DRIVER, "radeon"))
    return [driver for driver in found if driver is not None]


def observe(host: Host, functions: Iterable[PciFunction]) -> list[Observation]:
    """Observe every function that amdgpu holds."""
    mine = [function for function in functions if function.driver == _DRIVER]
    if not mine:
        return []
    version, source = module_version(host, _DRIVER)
    found: list[Observation] = []
    for function in mine:
        readings = _readings(host, function)
        if version is not None:
            readings.append(Reading(field="driver_version", value=version, source=source))
        found.append(function.observation(_DRIVER, readings))
    return found


def _readings(host: Host, function: PciFunction) -> list[Reading]:
    path = function.path
    readings = [
        *_memory(host, path),
        read(host, "uuid", f"{path}/unique_id", unique_id),
        read(host, "vbios_version", f"{path}/vbios_version", line),
        *_ecc(host, path),
    ]
    name = read(host, "name", f"{path}/product_name", line)
    if name.value is not None:
        readings.append(name)
    if function.asleep:
        readings.append(asleep_reading("features.partitioned", f"{path}/current_compute_partition"))
    else:
        readings += _partitions(host, path)
    return readings


def _memory(host: Host, path: str) -> list[Reading]:
    total = read(host, "memory_total_bytes", f"{path}/mem_info_vram_total", byte_count)
    used = read(host, "memory_free_bytes", f"{path}/mem_info_vram_used", number)
    if total.value is None:
        return [total]
    if used.value is None:
        return [total, used]
    free = Reading(field="memory_free_bytes", value=max(total.value - used.value, 0), source=used.source)
    visible = read(host, "features.large_bar", f"{path}/mem_info_vis_vram_total", number)
    if visible.value is None:
        return [total, free]
    # The CPU reaches the whole VRAM through the BAR: resizable BAR is in effect, or it is an APU's carve-out.
    large = Reading(field="features.large_bar", value=visible.value >= total.value, source=visible.source)
    return [total, free, large]


def _partitions(host: Host, path: str) -> list[Reading]:
    """Read the partition modes of an Instinct (`SPX`, `CPX`; `NPS1`, `NPS4`); other boards have no such files."""
    compute = read(host, "features.partitioned", f"{path}/current_compute_partition", line)
    if compute.value is None:
        return []
    memory = read(host, "features.partitioned", f"{path}/current_memory_partition", line)
    modes = compute.value if memory.value is None else f"{compute.value}, {memory.value}"
    split = compute.value != "SPX"
    return [Reading(field="features.partitioned", value=split, source=compute.source, detail=modes)]


def _ecc(host: Host, path: str) -> list[Reading]:
    """Read whether RAS covers the memory: bit 0 of the mask is the memory controller (amdgpu_ras.h)."""
    reading = read(host, "features.ecc", f"{path}/ras/features", line)
    mask = _FEATURE_MASK.match(reading.value or "")
    if mask is None:
        return []
    return [Reading(field="features.ecc", value=bool(int(mask[1], 16) & 1), source=reading.source)]
