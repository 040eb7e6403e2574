"""Which device a line of the kernel log is about."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

__all__ = ["address_in", "known_function", "normal_address"]

_ADDRESS = r"(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]|[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}"
# A colon behind is a driver's punctuation ("amdgpu 0000:44:00.0: …") unless more of a longer number follows.
_ANY = re.compile(rf"(?:(?<=PCI:)|(?<![\w:.]))(?:{_ADDRESS})(?!\w|\.\d|:[0-9a-fA-F])")

# The port that reports comes first, the device that had the error last.
_RECEIVED = re.compile(rf"\breceived(?: from|:) (?:{_ADDRESS})")

_PARTS = re.compile(
    r"(?:([0-9a-fA-F]{1,8}):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.([0-7]))?|([0-9a-fA-F]{4}):([0-9a-fA-F]{2})"
)


def normal_address(text: str) -> str | None:
    """Write an address of any form as sysfs does (`0000:44:00.0`): domain and function may be missing.

    >>> normal_address("0000:44:00"), normal_address("44:00"), normal_address("00000000:44:00.1")
    ('0000:44:00.0', '0000:44:00.0', '0000:44:00.1')
    """
    match = _PARTS.fullmatch(text)
    if match is None:
        return None
    domain, bus, device, function, old_bus, old_device = match.groups()
    bus, device = bus or old_bus, device or old_device  # drivers before 2010 wrote "0002:00", bus and device
    return f"{int(domain or '0', 16):04x}:{int(bus, 16):02x}:{int(device, 16):02x}.{function or '0'}"


def address_in(message: str, named: Mapping[str, str | None]) -> str | None:
    """Return the address that a message is about, or None.

    First what the rule named (`named`: its groups), then the sender of a PCIe error (the last address of the line),
    then the first address of the line.
    """
    for group in ("bdf", "bdf_old", "rid"):
        text = named.get(group)
        if text:
            address = normal_address(text)
            if address is not None:
                return address
    found = [
        address for address in map(normal_address, _ANY.findall(message)) if address is not None and _is_one(address)
    ]
    if not found:
        return None
    return found[-1] if ("AER" in message or "DPC" in message) and _RECEIVED.search(message) else found[0]


def _is_one(address: str) -> bool:
    """Tell a PCI address from what only looks like one: a bus has 32 devices."""
    return int(address.rpartition(":")[2].partition(".")[0], 16) < 32


def known_function(address: str, functions: Collection[str]) -> str:
    """Return the known function that an address means: itself, else the card's first one that is known.

    A card's audio and USB functions (.1 to .3) report errors of the whole card; Xids leave the function out.
    """
    if not functions or address in functions:
        return address
    slot = address.rpartition(".")[0]
    return min((known for known in functions if known.rpartition(".")[0] == slot), default=address)
