"""Bytes of the configuration space, so that lspci reads a built machine as it reads a real one.

Offsets: PCI Local Bus 3.0, chapter 6 (header), PCI-to-PCI Bridge 1.2 (bridge header), PCI Express Base 4.0, 7.5.3
(the PCI Express capability).
"""

from __future__ import annotations

import struct

__all__ = ["LOST", "SPEED_CODES", "bridge_config", "endpoint_config"]

LOST = b"\xff" * 256
"""What reads return from a function that does not answer."""

SPEED_CODES = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}

_CAPABILITY = 0x40
_EXPRESS = 0x10
_ENDPOINT, _LEGACY_ENDPOINT, _ROOT_PORT, _UPSTREAM, _DOWNSTREAM, _TO_PCI = 0, 1, 4, 5, 6, 7
_ATOMICS = {_ROOT_PORT: 0x180, _UPSTREAM: 0x40, _DOWNSTREAM: 0x40}
PORT_TYPES = {"root": _ROOT_PORT, "up": _UPSTREAM, "down": _DOWNSTREAM, "pci": _TO_PCI}


def endpoint_config(
    ids: tuple[int, int], subsystem: tuple[int, int], class_code: int, link: tuple[int, int, int, int] | None
) -> bytes:
    """Return 256 bytes of an endpoint. `link` is (speed code, width, highest speed code, highest width)."""
    space = _header(ids, class_code, 0)
    struct.pack_into("<HH", space, 0x2C, *subsystem)
    if link is not None:
        _express(space, _ENDPOINT, link)
    return bytes(space)


def bridge_config(
    ids: tuple[int, int], port: str, buses: tuple[int, int, int], link: tuple[int, int, int, int] | None
) -> bytes:
    """Return 256 bytes of a bridge: `port` is `root`, `up`, `down` or `pci`; buses primary, secondary, subordinate."""
    space = _header(ids, 0x060400, 1)
    struct.pack_into("<BBB", space, 0x18, *buses)
    # An empty window: base above limit, for I/O, memory and prefetchable memory.
    struct.pack_into("<BB", space, 0x1C, 0xF0, 0x00)
    struct.pack_into("<HHHH", space, 0x20, 0xFFF0, 0x0000, 0xFFF0, 0x0000)
    _express(space, PORT_TYPES[port], link or (1, 1, 1, 1))
    return bytes(space)


def _header(ids: tuple[int, int], class_code: int, header_type: int) -> bytearray:
    space = bytearray(256)
    # Command: memory and bus master enabled. Status: a capability list.
    struct.pack_into("<HHHH", space, 0, *ids, 0x0006, 0x0010)
    space[0x08] = 0xA1
    struct.pack_into("<I", space, 0x09, class_code)  # three bytes; the fourth, the cache line size, is zero
    space[0x0E] = header_type
    space[0x34] = _CAPABILITY
    return space


def _express(space: bytearray, kind: int, link: tuple[int, int, int, int]) -> None:
    speed, width, max_speed, max_width = link
    struct.pack_into("<BBH", space, _CAPABILITY, _EXPRESS, 0, kind << 4 | 2)
    struct.pack_into("<I", space, _CAPABILITY + 0x0C, max_speed | max_width << 4)
    struct.pack_into("<H", space, _CAPABILITY + 0x12, speed | width << 4)
    # Atomic operations, as on a desktop: root ports complete them, switches route them, amdgpu lets its GPUs send them
    # (pci_enable_atomic_ops_to_root).
    struct.pack_into("<I", space, _CAPABILITY + 0x24, _ATOMICS.get(kind, 0))
    if kind == _ENDPOINT and space[:2] == b"\x02\x10":
        struct.pack_into("<H", space, _CAPABILITY + 0x28, 0x40)
    # Link Capabilities 2: one bit for each supported speed.
    struct.pack_into("<I", space, _CAPABILITY + 0x2C, ((1 << max_speed) - 1) << 1)
