"""Names of devices that hold across boots, orders and runtimes.

A GPU is keyed by PCI address plus partition, or by UUID where it has no PCI function. An index, `cardN` or
`renderDN` is never a key: each of them changes between boots or between runtimes.
"""

from __future__ import annotations

import re
from typing import Literal, get_args

__all__ = ["VENDORS", "Vendor", "device_key", "normal_pci_address", "pci_sort_key", "vendor_of"]

Vendor = Literal["nvidia", "amd", "intel", "other"]
VENDORS: tuple[Vendor, ...] = get_args(Vendor)

_PCI_VENDORS: dict[str, Vendor] = {"0x10de": "nvidia", "0x1002": "amd", "0x8086": "intel"}

# Domains have four hexadecimal digits, or more behind a VMD controller or Hyper-V ("10000:01:00.0"); NVML prints eight.
_PCI_ADDRESS = re.compile(r"(?:([0-9a-fA-F]{1,8}):)?([0-9a-fA-F]{1,2}):([0-9a-fA-F]{1,2})\.([0-7])")


def vendor_of(vendor_id: str | None) -> Vendor:
    """Name the vendor of a PCI vendor id such as `0x10de`."""
    return _PCI_VENDORS.get((vendor_id or "").lower(), "other")


def normal_pci_address(text: str) -> str | None:
    """Write an address the way sysfs does (`0000:41:00.0`), or return None when it is none.

    >>> normal_pci_address("00000000:C1:00.0")
    '0000:c1:00.0'
    """
    match = _PCI_ADDRESS.fullmatch(text.strip())
    if match is None:
        return None
    domain, bus, device, function = match.groups()
    number = int(device, 16)
    if number > 31:
        return None
    return f"{int(domain or '0', 16):04x}:{int(bus, 16):02x}:{number:02x}.{function}"


def pci_sort_key(address: str) -> tuple[int, int, int, int]:
    """Sort key in bus order; text order is wrong once domains differ in length. Raises ValueError."""
    match = _PCI_ADDRESS.fullmatch(address)
    if match is None:
        raise ValueError(f"not a PCI address: {address!r}")
    domain, bus, device, function = match.groups()
    return int(domain or "0", 16), int(bus, 16), int(device, 16), int(function, 16)


def device_key(pci_address: str | None, partition: str | None, uuid: str | None) -> str:
    """Write the key of a device as text: `0000:41:00.0`, `0000:05:00.0/3`, or a UUID."""
    if pci_address is None:
        return uuid or "?"
    return pci_address if partition is None else f"{pci_address}/{partition}"
