"""What kind of GPU it is, and the fact that decided it.

Ids are those of pci.ids. A driver's own word (the layout of amdgpu's metrics, KFD's gfx target) goes before a guess
from where the function sits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.model.readings import Reading

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucoexist.model.machine import KfdNode

__all__ = ["kind_of"]

_BMC_VENDORS = {"0x1a03": "ASPEED", "0x102b": "Matrox", "0x18ca": "XGI", "0x126f": "Silicon Motion"}
_BMC_DEVICES = {
    ("0x1002", "0x4752"): "Rage XL",
    ("0x1002", "0x515e"): "ES1000",
    ("0x1002", "0x5969"): "ES1000",
    ("0x19e5", "0x1711"): "Huawei Hi171x",
}
_VIRTUAL_VENDORS = {
    "0x1013": "Cirrus, as QEMU emulates it",
    "0x1234": "QEMU standard VGA",
    "0x1414": "Microsoft Hyper-V",
    "0x15ad": "VMware",
    "0x1af4": "virtio",
    "0x1ab8": "Parallels",
    "0x1b36": "QEMU",
    "0x80ee": "VirtualBox",
}

# Targets that LLVM's AMDGPUUsage lists for APUs only.
_APU_TARGETS = {
    *("gfx700", "gfx801", "gfx810", "gfx902", "gfx909", "gfx90c", "gfx1013", "gfx1033", "gfx1035", "gfx1036"),
    *("gfx1037", "gfx1103", "gfx1150", "gfx1151", "gfx1152", "gfx1153"),
}


def kind_of(values: Mapping[str, Any], told: Reading | None, kfd_is_cpu: bool) -> Reading:
    """Decide the kind from the device's fields. `told` is what a driver's probe said about it, if any did."""
    vendor, device = values.get("vendor_id") or "", values.get("device_id") or ""
    address = values.get("pci_address") or ""
    if vendor in _BMC_VENDORS:
        return _kind("bmc", "vendor_id", f"{_BMC_VENDORS[vendor]}: display of a server's management controller")
    if (vendor, device) in _BMC_DEVICES:
        return _kind("bmc", "device_id", f"{_BMC_DEVICES[vendor, device]}: display of a server's management controller")
    if vendor in _VIRTUAL_VENDORS:
        return _kind("virtual", "vendor_id", f"{_VIRTUAL_VENDORS[vendor]}")
    if told is not None:
        return told
    kfd: KfdNode | None = values.get("kfd")
    if kfd is not None and kfd_is_cpu:
        return _kind("integrated", "KFD", "its KFD node has CPU cores and SIMDs")
    if values.get("arch") in _APU_TARGETS:
        return _kind("integrated", "KFD", f"{values['arch']} is found in APUs only")
    return _by_place(values.get("vendor"), address, values.get("upstream"))


def _by_place(vendor: str | None, address: str, upstream: tuple[str, ...] | None) -> Reading:
    if vendor == "intel" and address.startswith("0000:00:02."):
        return _kind("integrated", "pci_address", "device 2 of the root complex is Intel's integrated GPU")
    if vendor == "amd" and address.startswith("0000:00:01."):
        return _kind("integrated", "pci_address", "device 1 of the root complex is the GPU of an older APU")
    if vendor == "amd" and upstream is not None and len(upstream) == 1 and upstream[0].startswith("0000:00:08."):
        return _kind("integrated", "upstream", f"behind {upstream[0]}, where AMD's processors have internal devices")
    if vendor in {"nvidia", "amd", "intel"}:
        return _kind("discrete", "vendor", "nothing says that it is part of a processor")
    return _kind("unknown", "vendor_id", "a vendor that makes no GPUs for computing that this package knows")


def _kind(value: str, source: str, detail: str) -> Reading:
    return Reading(field="kind", value=value, source=source, detail=detail)
