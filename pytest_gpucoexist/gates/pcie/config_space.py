"""Decode the bytes of a PCI function's configuration space: capabilities, their status and control registers.

Layout: PCI Local Bus 3.0, 6.7 (list of capabilities), PCI Express Base 4.0, 7.5.3 (the PCI Express capability), 7.6.3
(extended capabilities), 7.7.8 (Access Control Services), 7.8.4 (Advanced Error Reporting); names of registers as in
include/uapi/linux/pci_regs.h. Anybody may read the first 64 bytes, which hold no capability; the rest needs root.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Literal

__all__ = ["HEADER_BYTES", "Acs", "Aer", "Configuration", "Express", "PortType", "bits_named", "decode", "no_answer"]

HEADER_BYTES = 64

PortType = Literal["endpoint", "root", "upstream", "downstream", "bridge", "other"]

_CAP_EXPRESS, _EXT_AER, _EXT_ACS = 0x10, 0x0001, 0x000D
_EXTENDED_START = 0x100
_TYPES: dict[int, PortType] = {
    0x0: "endpoint",
    0x1: "endpoint",
    0x4: "root",
    0x5: "upstream",
    0x6: "downstream",
    0x7: "bridge",
    0x8: "bridge",
}

UNCORRECTABLE = {
    4: "DLP",
    5: "SDES",
    12: "TLP",
    13: "FCP",
    14: "CmpltTO",
    15: "CmpltAbrt",
    16: "UnxCmplt",
    17: "RxOF",
    18: "MalfTLP",
    19: "ECRC",
    20: "UnsupReq",
    21: "ACSViol",
    22: "UncorrIntErr",
    23: "BlockedTLP",
    24: "AtomicOpBlocked",
    25: "TLPBlockedErr",
    26: "PoisonTLPBlocked",
}
"""Bits of the uncorrectable error status, by the names that the kernel's counters have (drivers/pci/pcie/aer.c)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Express:
    """The PCI Express capability. Sizes are in bytes; `None`: this device has no second set of registers (v1)."""

    port_type: PortType
    payload_supported: int
    payload: int
    read_request: int
    correctable: bool
    nonfatal: bool
    fatal: bool
    unsupported_request: bool
    atomic_routing: bool | None = None
    atomic_32: bool | None = None
    atomic_64: bool | None = None
    atomic_requester: bool | None = None
    atomic_egress_blocked: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Aer:
    """Errors that the hardware has latched, as registers."""

    uncorrectable_status: int
    uncorrectable_mask: int
    correctable_status: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Acs:
    """Which peer traffic is redirected to the root complex."""

    request_redirect: bool
    completion_redirect: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """What could be decoded. `complete` is False when only the header was readable, so that None means nothing."""

    vendor: int
    device: int
    complete: bool
    express: Express | None = None
    aer: Aer | None = None
    acs: Acs | None = None


def no_answer(data: bytes) -> bool:
    """Whether these bytes are what a bus gives for a function that does not answer: all ones.

    The ids alone do not tell: those of an SR-IOV virtual function read as all ones, too (SR-IOV 1.1, 3.4.1.1).
    """
    return len(data) >= 4 and not data[:HEADER_BYTES].strip(b"\xff")


def decode(data: bytes) -> Configuration | None:
    """Decode what was read; None when it is no configuration space (too short, all ones, all zeros)."""
    if len(data) < HEADER_BYTES or no_answer(data) or not data[:HEADER_BYTES].strip(b"\0"):
        return None
    vendor, device = struct.unpack_from("<HH", data)
    if len(data) < _EXTENDED_START or _cut_off(data):
        return Configuration(vendor=vendor, device=device, complete=False)
    return Configuration(
        vendor=vendor,
        device=device,
        complete=True,
        express=_express(data),
        aer=_aer(data),
        acs=_acs(data),
    )


def bits_named(value: int) -> list[str]:
    """Name the bits of an uncorrectable error status."""
    return [UNCORRECTABLE.get(bit, f"bit {bit}") for bit in range(32) if value >> bit & 1]


def _express(data: bytes) -> Express | None:
    at = _capability(data, _CAP_EXPRESS)
    if at is None or at + 0x14 > len(data):
        return None
    flags = _word(data, at + 0x02)
    capabilities, control, status = _long(data, at + 0x04), _word(data, at + 0x08), _word(data, at + 0x0A)
    second: dict[str, bool] = {}
    if flags & 0xF >= 2 and at + 0x2A <= len(data):
        cap2, ctl2 = _long(data, at + 0x24), _word(data, at + 0x28)
        second = {
            "atomic_routing": bool(cap2 & 0x40),
            "atomic_32": bool(cap2 & 0x80),
            "atomic_64": bool(cap2 & 0x100),
            "atomic_requester": bool(ctl2 & 0x40),
            "atomic_egress_blocked": bool(ctl2 & 0x80),
        }
    return Express(
        port_type=_TYPES.get(flags >> 4 & 0xF, "other"),
        payload_supported=128 << (capabilities & 7),
        payload=128 << (control >> 5 & 7),
        read_request=128 << (control >> 12 & 7),
        correctable=bool(status & 1),
        nonfatal=bool(status & 2),
        fatal=bool(status & 4),
        unsupported_request=bool(status & 8),
        **second,
    )


def _aer(data: bytes) -> Aer | None:
    at = _extended(data, _EXT_AER)
    if at is None or at + 0x14 > len(data):
        return None
    return Aer(
        uncorrectable_status=_long(data, at + 0x04),
        uncorrectable_mask=_long(data, at + 0x08),
        correctable_status=_long(data, at + 0x10),
    )


def _acs(data: bytes) -> Acs | None:
    at = _extended(data, _EXT_ACS)
    if at is None or at + 0x08 > len(data):
        return None
    control = _word(data, at + 0x06)
    return Acs(request_redirect=bool(control & 0x4), completion_redirect=bool(control & 0x8))


def _capability(data: bytes, wanted: int) -> int | None:
    """Find a capability in the list; a list that loops or leads nowhere ends the search."""
    if not _word(data, 0x06) & 0x10:
        return None
    at, seen = data[0x34] & 0xFC, set()
    while at >= HEADER_BYTES and at not in seen and data[at] != 0xFF:
        if data[at] == wanted:
            return at
        seen.add(at)
        at = data[at + 1] & 0xFC
    return None


def _extended(data: bytes, wanted: int) -> int | None:
    at, seen = _EXTENDED_START, set()
    while at >= _EXTENDED_START and at not in seen and at + 4 <= len(data):
        header = _long(data, at)
        if header in {0, 0xFFFFFFFF}:
            return None
        if header & 0xFFFF == wanted:
            return at
        seen.add(at)
        at = header >> 20 & 0xFFC
    return None


def _cut_off(data: bytes) -> bool:
    """Whether the list of capabilities leads into zeros: a header that a recorder has padded to a page."""
    first = data[0x34] & 0xFC
    return bool(_word(data, 0x06) & 0x10) and first >= HEADER_BYTES and not data[first]


def _word(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 2], "little")


def _long(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "little")
