"""What `/proc/driver/nvidia` says about each GPU that the NVIDIA driver holds.

`gpus/<address>/information` takes a power reference (`rm_ref_dynamic_power` in nv-procfs.c): reading it wakes a
sleeping GPU, so the runtime power state is looked at first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpucoexist.model.identity import normal_pci_address, pci_sort_key
from pytest_gpucoexist.model.readings import Observation, Reading, Status, status_of_errno
from pytest_gpucoexist.probes.attributes import text_or_none
from pytest_gpucoexist.probes.links import ASLEEP
from pytest_gpucoexist.probes.modules import bound_addresses
from pytest_gpucoexist.probes.nvidia_driver import conflicts, driver_versions, drivers

if TYPE_CHECKING:
    from pytest_gpucoexist.host.base import Host

__all__ = ["Information", "conflicts", "drivers", "gpu_information", "observe", "parse_information"]

_PROC = "/proc/driver/nvidia"


@dataclass(frozen=True, slots=True, kw_only=True)
class Information:
    """`/proc/driver/nvidia/gpus/<address>/information`, understood.

    `uuid` and `vbios_version` are None until something has opened the GPU: the driver prints question marks.
    `minor` is N of `/dev/nvidiaN`. `status` other than `ok` says why nothing was read.
    """

    model: str | None = None
    uuid: str | None = None
    minor: int | None = None
    vbios_version: str | None = None
    bus_location: str | None = None
    firmware: str | None = None
    excluded: bool = False
    status: Status = "ok"
    detail: str | None = None


def parse_information(text: str) -> Information:
    """Understand the text of an `information` file; what it does not say stays None."""
    values: dict[str, str] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            values[key.strip()] = value.strip()
    minor = values.get("Device Minor", "")
    # "GPU Excluded" since 470, "Blacklisted" before.
    excluded = values.get("GPU Excluded", values.get("Blacklisted", "No"))
    return Information(
        model=_known(values.get("Model")),
        uuid=_known(values.get("GPU UUID")),
        minor=int(minor) if minor.isdecimal() else None,
        vbios_version=_known(values.get("Video BIOS")),
        bus_location=normal_pci_address(values.get("Bus Location", "")),
        firmware=_known(values.get("GPU Firmware")),
        excluded=excluded.lower() == "yes",
        status="ok" if values else "broken",
        detail=None if values else f"not understood: {text[:60]!r}",
    )


def gpu_information(host: Host) -> dict[str, Information]:
    """Return what the driver says about each of its GPUs, by PCI address, in bus order."""
    try:
        names = host.list_dir(f"{_PROC}/gpus")
    except OSError:
        return {}
    found: dict[str, Information] = {}
    for name in names:
        address = normal_pci_address(name)
        if address is not None:
            found[address] = _read_information(host, f"{_PROC}/gpus/{name}", address)
    return {address: found[address] for address in sorted(found, key=pci_sort_key)}


def observe(host: Host) -> list[Observation]:
    """Observe every function that the NVIDIA driver holds."""
    information = gpu_information(host)
    source, version = next(iter(driver_versions(host).items()), (None, None))
    observations: list[Observation] = []
    for address in sorted({*information, *bound_addresses(host, "nvidia")}, key=pci_sort_key):
        readings: list[Reading] = []
        if source is not None:
            readings.append(Reading(field="driver_version", value=version, source=source))
        if address in information:
            readings += _readings(host, address, information[address])
        if readings:
            observations.append(Observation(probe="nvidia", pci_address=address, readings=tuple(readings)))
    return observations


def _readings(host: Host, address: str, known: Information) -> list[Reading]:
    source = f"{_PROC}/gpus/{address}/information"
    readings = [Reading(field="vendor", value="nvidia", source=f"{_PROC}/gpus")]
    for field, value in (
        ("name", known.model),
        ("uuid", known.uuid),
        ("vbios_version", known.vbios_version),
    ):
        if value is not None:
            readings.append(Reading(field=field, value=value, source=source))
        elif known.status != "ok":
            readings.append(Reading(field=field, value=None, source=source, status=known.status, detail=known.detail))
        else:
            detail = "the driver prints question marks until something opens the GPU"
            readings.append(Reading(field=field, value=None, source=source, status="unsupported", detail=detail))
    readings += _memory_node(host, address)
    if known.minor is not None:
        readings += _mig(host, known.minor)
    return readings


def _memory_node(host: Host, address: str) -> list[Reading]:
    """Read whether the GPU's memory is a NUMA node of its own (POWER9, Grace): coherent with the CPU."""
    path = f"{_PROC}/gpus/{address}/numa_status"
    try:
        text = host.read_text(path)
    except OSError:
        return []
    # "Node:      255" and "Status:    online"; without such memory "Node: -1" or an empty file.
    node = re.search(r"^Node:\s*(-?\d+)", text, re.MULTILINE)
    if node is None or int(node[1]) < 0:
        return []
    return [Reading(field="features.memory_node", value=True, source=path, detail=f"memory is node {node[1]}")]


def _mig(host: Host, minor: int) -> list[Reading]:
    path = f"{_PROC}/capabilities/gpu{minor}/mig"
    try:
        instances = [name for name in host.list_dir(path) if name.startswith("gi")]
    except OSError:
        return []
    return [Reading(field="features.mig", value=bool(instances), source=path)]


def _read_information(host: Host, folder: str, address: str) -> Information:
    state = text_or_none(host, f"/sys/bus/pci/devices/{address}/power/runtime_status")
    if state in {"suspended", "suspending"}:
        return Information(status="unsupported", detail=ASLEEP)
    try:
        return parse_information(host.read_text(f"{folder}/information"))
    except OSError as error:
        return Information(status=status_of_errno(error.errno), detail=str(error))


def _known(text: str | None) -> str | None:
    """Drop a value that the driver does not know yet: `GPU-????????-…`, `??.??.??.??.??`, `N/A`, `Unknown`."""
    if not text or "?" in text or text in {"N/A", "Unknown"}:
        return None
    return text
