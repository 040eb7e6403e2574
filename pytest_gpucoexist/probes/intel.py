"""What the i915 and xe drivers say in sysfs about each GPU.

Mainline i915 tells no size of local memory; Intel's out-of-tree build writes `lmem_total_bytes` beside the DRM card.
xe writes `tile*/physical_vram_size_bytes` (xe_tile_sysfs.c), which may resume the device: left alone while it sleeps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.model.identity import pci_sort_key
from pytest_gpucoexist.model.readings import Observation, Reading
from pytest_gpucoexist.probes.attributes import byte_count
from pytest_gpucoexist.probes.links import asleep_reading
from pytest_gpucoexist.probes.modules import module_driver, module_version
from pytest_gpucoexist.probes.reader import names_in, read

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_gpucoexist.host.base import Host
    from pytest_gpucoexist.model.machine import Driver
    from pytest_gpucoexist.probes.functions import PciFunction

__all__ = ["drivers", "observe"]

_DRIVERS = ("i915", "xe")


def drivers(host: Host) -> list[Driver]:
    """List the loaded kernel drivers that can bind an Intel GPU."""
    found = (module_driver(host, name) for name in _DRIVERS)
    return [driver for driver in found if driver is not None]


def observe(host: Host, functions: Iterable[PciFunction]) -> list[Observation]:
    """Observe every function that i915 or xe holds."""
    return [_observe(host, function) for function in functions if function.driver in _DRIVERS]


def _observe(host: Host, function: PciFunction) -> Observation:
    driver = function.driver or ""
    readings = [*_kind(function), *_memory(host, function)]
    version, source = module_version(host, driver)
    if version is not None:
        readings.append(Reading(field="driver_version", value=version, source=source))
    return function.observation(driver, readings)


def _kind(function: PciFunction) -> list[Reading]:
    """Intel's integrated GPU is device 2 of the root complex (also its SR-IOV functions); every other is a card."""
    if function.address is None:
        return []
    domain, bus, device, _function = pci_sort_key(function.address)
    if (domain, bus, device) == (0, 0, 2):
        return [Reading(field="kind", value="integrated", source="PCI address 0000:00:02")]
    return [Reading(field="kind", value="discrete", source="PCI address")]


def _memory(host: Host, function: PciFunction) -> list[Reading]:
    tiles = _entries(host, function.path, "tile")
    if tiles and function.asleep:
        return [asleep_reading("memory_total_bytes", f"{tiles[0]}/physical_vram_size_bytes")]
    folders = (*_entries(host, f"{function.path}/drm", "card"), function.path.removesuffix("/device"))
    sizes = [
        *(read(host, "memory_total_bytes", f"{tile}/physical_vram_size_bytes", byte_count) for tile in tiles),
        *(read(host, "memory_total_bytes", f"{card}/lmem_total_bytes", byte_count) for card in folders),
    ]
    known = [reading for reading in sizes if reading.value is not None]
    if not known:
        return []
    total = sum(reading.value for reading in known)
    return [Reading(field="memory_total_bytes", value=total, source=known[0].source)]


def _entries(host: Host, folder: str, prefix: str) -> list[str]:
    return [
        f"{folder}/{name}"
        for name in names_in(host, folder)
        if name.removeprefix(prefix).isdecimal() and name != prefix
    ]
