"""PCI sysfs, the first truth: every display and accelerator function, without a vendor's library or privileges.

`class` is read of all functions; only GPUs, accelerators and the bridges above them are looked at further. A sleeping
device is never woken: `power/runtime_status` is read first, and what lies in the configuration space or behind the
driver is then left alone. Sources: Documentation/ABI/testing/sysfs-bus-pci, drivers/pci/pci-sysfs.c.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_gpucoexist.model.machine import Accelerator, Bridge
from pytest_gpucoexist.model.readings import Observation, Reading, status_of_errno
from pytest_gpucoexist.probes import links
from pytest_gpucoexist.probes.functions import PciFunction
from pytest_gpucoexist.probes.parse import pci_class, uevent_class
from pytest_gpucoexist.probes.pcifiles import Uevent, read_function
from pytest_gpucoexist.probes.reader import first_ok, read, reason

if TYPE_CHECKING:
    from pytest_gpucoexist.host.base import Host

__all__ = ["PciScan", "is_accelerator", "is_gpu", "scan"]

BUS = "/sys/bus/pci/devices"

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]")
_DISPLAY = {"0x0300", "0x0302", "0x0380"}  # VGA, 3D and other display controllers
_PROCESSING = "0x1200"  # "processing accelerator": AMD's MI300 and many devices that are no GPU
_COPROCESSOR = "0x0b40"  # Xeon Phi, vector engines, crypto engines

# Vendors whose processing accelerators are no GPUs (pci.ids): NPUs, FPGAs, machine learning chips.
_NOT_GPU_VENDORS = {
    "0x1022": "AMD, NPU",
    "0x10ee": "AMD Xilinx, FPGA",
    "0x1172": "Altera, FPGA",
    "0x17cb": "Qualcomm, Cloud AI",
    "0x19e5": "Huawei, Ascend",
    "0x1ac1": "Google, TPU",
    "0x1bcf": "NEC, vector engine",
    "0x1d0f": "Amazon, Neuron",
    "0x1da3": "Habana, Gaudi",
    "0x1e52": "Tenstorrent",
    "0x1e60": "Hailo",
    "0x1ed2": "FuriosaAI",
    "0x1eff": "Rebellions",
    "0x8086": "Intel, NPU (its GPUs are 0x0300 and 0x0380)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PciScan:
    """What the PCI bus shows.

    `explained` are the addresses whose class could be read; `count` is the number of all functions, None where there
    is no bus at all.
    """

    functions: tuple[PciFunction, ...] = ()
    observations: tuple[Observation, ...] = ()
    accelerators: tuple[Accelerator, ...] = ()
    explained: tuple[str, ...] = ()
    count: int | None = None
    notes: tuple[str, ...] = ()


def is_gpu(class_id: str, vendor_id: str | None) -> bool:
    """Whether a function belongs in `Machine.gpus`."""
    kind = class_id[:6]
    return kind in _DISPLAY or (kind == _PROCESSING and vendor_id not in _NOT_GPU_VENDORS)


def is_accelerator(class_id: str) -> bool:
    """Whether a function that is no GPU belongs in `Machine.accelerators`."""
    return class_id[:6] in {_PROCESSING, _COPROCESSOR}


def scan(host: Host) -> PciScan:
    """Find every GPU and accelerator on the PCI bus."""
    try:
        names = host.list_dir(BUS)
    except OSError as error:
        if status_of_errno(error.errno) == "absent":
            # A kernel without PCI counts none; a tree of one device's files does not tell.
            return PciScan(count=0 if host.exists("/sys/devices/system") else None)
        return PciScan(notes=(f"{BUS}: {reason(error)}",))
    addresses = [name for name in names if _ADDRESS.fullmatch(name)]
    addresses.sort(key=lambda name: (len(name), name))  # equal domains have equal lengths: bus order
    functions: list[PciFunction] = []
    observations: list[Observation] = []
    accelerators: list[Accelerator] = []
    explained: list[str] = []
    notes: list[str] = []
    bridges: dict[str, Bridge] = {}
    for address in addresses:
        path = f"{BUS}/{address}"
        class_id = _class_of(host, path, notes)
        if class_id is None:
            continue
        explained.append(address)
        if class_id[:6] not in _DISPLAY and not is_accelerator(class_id):
            continue
        function, readings = read_function(host, path, address=address)
        readings += _chain(host, path, bridges)
        function = replace(function, class_id=class_id)
        if is_gpu(class_id, function.vendor_id):
            functions.append(function)
            observations.append(function.observation("pci", readings, creates=True))
        else:
            accelerators.append(_accelerator(function, readings))
    return PciScan(
        functions=tuple(functions),
        observations=tuple(observations),
        accelerators=tuple(accelerators),
        explained=tuple(explained),
        count=len(addresses),
        notes=tuple(notes),
    )


def _class_of(host: Host, path: str, notes: list[str]) -> str | None:
    """Read the class code; where the file makes no sense, uevent may still tell it.

    This is done for every function of the machine, hundreds of them: no Reading is built where all is well.
    """
    try:
        code = pci_class(host.read_text(f"{path}/class", 64))
    except OSError:
        code = None
    if isinstance(code, str):
        return code
    reading = first_ok(
        [
            read(host, "class_id", f"{path}/class", pci_class),
            Uevent(host, path).reading("class_id", "PCI_CLASS", uevent_class),
        ]
    )
    if reading.status != "ok":
        notes.append(f"{reading.source}: the kind of this device is unknown ({reading.detail})")
        return None
    return str(reading.value)


def _chain(host: Host, path: str, known: dict[str, Bridge]) -> list[Reading]:
    """Read the bridges above a function; those that several functions share are read once."""
    chain = links.upstream(host, path)
    readings = [chain]
    if chain.status == "ok":
        for address in chain.value:
            if address not in known:
                known[address] = links.bridge(host, address)
        bridges = tuple(known[address] for address in chain.value)
        readings.append(Reading(field="upstream_links", value=bridges, source=chain.source))
    return readings


def _accelerator(function: PciFunction, readings: list[Reading]) -> Accelerator:
    value = {item.field: item.value for item in readings}
    return Accelerator(
        pci_address=function.address or "",
        vendor_id=function.vendor_id,
        device_id=function.device_id,
        class_id=function.class_id,
        subsystem_id=value["subsystem_id"],
        numa_node=value["numa_node"],
        local_cpulist=value["local_cpulist"],
        driver=function.driver,
        upstream=value["upstream"],
        link=links.link_of(readings),
    )
