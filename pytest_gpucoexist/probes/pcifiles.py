"""The files of one PCI function's folder in sysfs, wherever that folder lies.

The same code reads `/sys/bus/pci/devices/<address>` and, in a tree that only has DRM, `/sys/class/drm/card0/device`.
What a file does not tell, `uevent` may: the kernel prints ids, class, address and driver there a second time.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.model.identity import normal_pci_address
from pytest_gpucoexist.model.machine import Bar
from pytest_gpucoexist.model.readings import Reading
from pytest_gpucoexist.probes import links
from pytest_gpucoexist.probes.attributes import hwmon_names
from pytest_gpucoexist.probes.functions import PciFunction
from pytest_gpucoexist.probes.parse import (
    cpulist_of_mask,
    hex_id,
    local_cpulist,
    numa_node,
    number,
    pci_class,
    runtime_status,
    uevent_class,
    word,
)
from pytest_gpucoexist.probes.reader import Bad, Text, excerpt, first_ok, link_name, read, read_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpucoexist.host.base import Host

__all__ = ["Uevent", "bars", "read_function"]

_RESOURCE = re.compile(r"0x([0-9a-f]{1,16}) 0x([0-9a-f]{1,16}) 0x([0-9a-f]{1,16})")
_BARS = 6  # lines 0 to 5 of `resource`; then the expansion ROM and a bridge's windows

# include/linux/ioport.h
_IO, _MEM, _PREFETCH, _MEM_64 = 0x100, 0x200, 0x2000, 0x100000


class Uevent:
    """A function's `uevent`, read at most once and only when something else is missing."""

    def __init__(self, host: Host, path: str) -> None:
        self._host = host
        self._path = f"{path}/uevent"

    @functools.cached_property
    def text(self) -> Text:
        """The file, or why it could not be read."""
        return read_text(self._host, self._path)

    def value(self, key: str) -> str | None:
        """Return the value of `KEY=value`."""
        for line in (self.text.text or "").splitlines():
            name, equals, value = line.partition("=")
            if name == key and equals:
                return value
        return None

    def reading(self, field: str, key: str, parse: Callable[[str], Any]) -> Reading:
        """Return a line as the reading of a field."""
        value = self.value(key)
        if value is not None:
            return Text(path=self._path, text=value).reading(field, parse)
        if self.text.text is None:
            return self.text.reading(field, parse)
        return Reading(field=field, value=None, source=self._path, status="absent", detail=f"no {key} in it")

    @property
    def address(self) -> str | None:
        """The PCI address that the kernel names in it."""
        return normal_pci_address(self.value("PCI_SLOT_NAME") or "")


def read_function(
    host: Host, path: str, *, address: str | None, card: str | None = None, uevent: Uevent | None = None
) -> tuple[PciFunction, list[Reading]]:
    """Read one function. The runtime power state comes first: it decides what may be read at all."""
    event = uevent or Uevent(host, path)
    power = read(host, "runtime_status", f"{path}/power/runtime_status", runtime_status)
    ids = [
        _read(host, event, "vendor_id", f"{path}/vendor", hex_id, "PCI_ID", _before_colon),
        _read(host, event, "device_id", f"{path}/device", hex_id, "PCI_ID", _after_colon),
        _read(host, event, "class_id", f"{path}/class", pci_class, "PCI_CLASS", uevent_class),
        _subsystem(host, event, path),
    ]
    driver = _driver(host, event, path)
    value = {item.field: item.value for item in ids}
    function = PciFunction(
        path=path,
        address=address,
        card=card,
        vendor_id=value["vendor_id"],
        device_id=value["device_id"],
        class_id=value["class_id"],
        driver=driver.value,
        runtime_status=power.value,
    )
    readings = [
        *ids,
        read(host, "numa_node", f"{path}/numa_node", numa_node),
        _cpulist(host, path),
        driver,
        read(host, "bars", f"{path}/resource", bars),
        link_name(host, "iommu_group", f"{path}/iommu_group", functools.partial(number, high=1 << 31)),
        read(host, "boot_vga", f"{path}/boot_vga", _flag),
        power,
        *links.link_readings(host, path, asleep=function.asleep),
        *hwmon_names(host, path),
        *_virtual_function(host, path),
    ]
    return function, readings


def bars(text: str) -> tuple[Bar, ...] | Bad:
    """Read the base address registers that are in use from `resource`: lines of start, end and flags."""
    found: list[Bar] = []
    lines = text.splitlines()
    if not lines:
        return Bad("empty")
    for index, line in enumerate(lines[:_BARS]):
        match = _RESOURCE.fullmatch(line.strip())
        if match is None:
            return Bad(f"not a resource: {excerpt(line)}")
        start, end, flags = (int(part, 16) for part in match.groups())
        if not flags & (_IO | _MEM):
            continue
        if end < start:
            return Bad(f"a region that ends before it starts: {excerpt(line)}")
        found.append(
            Bar(
                index=index,
                size_bytes=end - start + 1,
                is_64bit=bool(flags & _MEM_64),
                prefetchable=bool(flags & _PREFETCH),
            )
        )
    return tuple(found)


def _read(
    host: Host,
    event: Uevent,
    field: str,
    path: str,
    parse: Callable[[str], Any],
    key: str,
    parse_event: Callable[[str], Any],
) -> Reading:
    reading = read(host, field, path, parse)
    if reading.status == "ok":
        return reading
    return first_ok([reading, event.reading(field, key, parse_event)])


def _subsystem(host: Host, event: Uevent, path: str) -> Reading:
    vendor = read(host, "subsystem_id", f"{path}/subsystem_vendor", hex_id)
    device = read(host, "subsystem_id", f"{path}/subsystem_device", hex_id)
    if vendor.status == device.status == "ok":
        return Reading(field="subsystem_id", value=f"{vendor.value}:{device.value}", source=vendor.source)
    second = event.reading("subsystem_id", "PCI_SUBSYS_ID", _id_pair)
    return second if second.status == "ok" else (device if vendor.status == "ok" else vendor)


def _driver(host: Host, event: Uevent, path: str) -> Reading:
    reading = link_name(host, "driver", f"{path}/driver", word)
    if reading.status == "ok":
        return reading
    second = event.reading("driver", "DRIVER", word)
    if second.status == "ok":
        return second
    if reading.status == "absent":
        return Reading(
            field="driver", value=None, source=reading.source, status="absent", detail="no driver is bound to it"
        )
    return reading


def _cpulist(host: Host, path: str) -> Reading:
    """Read `local_cpulist`; where only the mask is there, the list is derived from it and the detail says so."""
    reading = read(host, "local_cpulist", f"{path}/local_cpulist", local_cpulist)
    if reading.status == "ok":
        return reading
    mask = read(host, "local_cpulist", f"{path}/local_cpus", cpulist_of_mask)
    if mask.status != "ok":
        return reading
    return Reading(field=mask.field, value=mask.value, source=mask.source, detail="derived from the mask local_cpus")


def _virtual_function(host: Host, path: str) -> list[Reading]:
    """Tell an SR-IOV virtual function by its link `physfn`; a guest that was given one sees a whole device."""
    whole = link_name(host, "features.virtual_function", f"{path}/physfn", normal_pci_address)
    if not whole.value:
        return []
    return [Reading(field=whole.field, value=True, source=whole.source, detail=f"of {whole.value}")]


def _flag(text: str) -> bool | Bad:
    return text.strip() == "1" if text.strip() in {"0", "1"} else Bad(f"neither 0 nor 1: {excerpt(text)}")


def _before_colon(text: str) -> str | Bad:
    return hex_id(text.partition(":")[0])


def _after_colon(text: str) -> str | Bad:
    return hex_id(text.partition(":")[2])


def _id_pair(text: str) -> str | Bad:
    vendor, device = _before_colon(text), _after_colon(text)
    if isinstance(vendor, Bad) or isinstance(device, Bad):
        return Bad(f"not a pair of ids: {excerpt(text)}")
    return f"{vendor}:{device}"
