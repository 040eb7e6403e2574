"""PCIe links, of a GPU and of each bridge above it, and the chain of bridges from the root port."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytest_gpucoexist.model.machine import Bridge, Link
from pytest_gpucoexist.model.readings import Reading, status_of_errno
from pytest_gpucoexist.probes.parse import link_speed, link_width, runtime_status, word
from pytest_gpucoexist.probes.reader import link_name, read, read_text, reason

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_gpucoexist.host.base import Host

__all__ = ["ASLEEP", "asleep_reading", "bridge", "link_of", "link_readings", "upstream"]

ASLEEP = "asleep: not read, because reading would wake it"

_LINK_FILES = (
    ("link.current_speed_gtps", "current_link_speed", link_speed),
    ("link.current_width", "current_link_width", link_width),
    ("link.max_speed_gtps", "max_link_speed", link_speed),
    ("link.max_width", "max_link_width", link_width),
)
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def asleep_reading(field: str, path: str) -> Reading:
    """Say that a file was left alone because its device sleeps."""
    return Reading(field=field, value=None, source=path, status="unsupported", detail=ASLEEP)


def link_readings(host: Host, path: str, *, asleep: bool) -> list[Reading]:
    """Read the link of the function in folder `path`.

    All four files read the configuration space, for which newer kernels resume the device
    (`pci_config_pm_runtime_get` in drivers/pci/pci-sysfs.c), so a sleeping one is left alone.
    """
    if asleep:
        return [asleep_reading(field, f"{path}/{name}") for field, name, _ in _LINK_FILES]
    return [read(host, field, f"{path}/{name}", parse) for field, name, parse in _LINK_FILES]


def link_of(readings: Iterable[Reading]) -> Link:
    """Build a Link of what could be read."""
    values = {item.field.removeprefix("link."): item.value for item in readings if item.field.startswith("link.")}
    return Link(**values)


def upstream(host: Host, path: str) -> Reading:
    """Tell the bridges above a function, root port first, from where its link in `/sys/bus/pci/devices` leads.

    A function on the root bus has none. A recording with plain folders in place of the links cannot tell.
    """
    try:
        resolved = host.resolve(path)
    except OSError as error:
        status = status_of_errno(error.errno)
        return Reading(field="upstream", value=None, source=path, status=status, detail=reason(error))
    if not resolved.startswith("/sys/devices/"):
        detail = "the chain of bridges is not recorded: the folder is not in /sys/devices"
        return Reading(field="upstream", value=None, source=path, status="absent", detail=detail)
    parts = [part for part in resolved.split("/") if _ADDRESS.fullmatch(part)]
    return Reading(field="upstream", value=tuple(parts[:-1]), source=resolved)


def bridge(host: Host, address: str) -> Bridge:
    """Read one bridge: its driver and its link. Many have no link (root complexes, conventional PCI): None."""
    path = f"/sys/bus/pci/devices/{address}"
    status = read_text(host, f"{path}/power/runtime_status").reading("runtime_status", runtime_status)
    links = link_readings(host, path, asleep=status.value in {"suspended", "suspending"})
    driver = link_name(host, "driver", f"{path}/driver", word)
    return Bridge(pci_address=address, driver=driver.value, link=link_of(links))
