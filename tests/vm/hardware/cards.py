"""Configuration spaces of cards: what a PCI function says about itself, register by register."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

__all__ = ["RADEON", "RTX", "RTX_AUDIO", "Card", "Configuration"]

SPEEDS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5}
"""Codes of link speeds in GT/s, PCI Express base specification, link capabilities register."""

_POWER, _EXPRESS = 0x60, 0x78
_LINK_STATUS = _EXPRESS + 0x12
_BAR_64BIT = 0x4


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One function of a card. `bars` are pairs of size in bytes (32 MiB at most: firmware stops at more) and flags."""

    vendor: int
    device: int
    class_code: int
    subsystem: tuple[int, int]
    revision: int = 0xA1
    bars: tuple[tuple[int, int], ...]
    speed_gtps: float = 16.0
    width: int = 16
    register: int = 0
    """What the first register of the first BAR holds."""


RTX = Card(
    vendor=0x10DE,
    device=0x2684,
    class_code=0x030000,
    subsystem=(0x10DE, 0x16F4),
    bars=((1 << 24, 0x0), (1 << 25, 0x8)),
    register=0x192000A1,  # NV_PMC_BOOT_0 of an AD102
)
RTX_AUDIO = Card(vendor=0x10DE, device=0x22BA, class_code=0x040300, subsystem=(0x10DE, 0x16F4), bars=((1 << 14, 0x0),))
RADEON = Card(
    vendor=0x1002,
    device=0x744C,
    class_code=0x030000,
    subsystem=(0x1002, 0x0E3B),
    revision=0xC8,
    bars=((1 << 25, 0x8), (1 << 21, 0x8), (256, 0x1), (1 << 20, 0x0)),
)


@dataclass(slots=True)
class Configuration:
    """256 bytes that a guest reads and writes; `writable` has the bits that take what is written."""

    card: Card
    content: bytearray = field(default_factory=lambda: bytearray(256))
    writable: bytearray = field(default_factory=lambda: bytearray(256))

    def __post_init__(self) -> None:
        """Fill in the header and two capabilities: power management, PCI Express."""
        self._header()
        self._power()
        self._express()

    def read(self, offset: int, length: int) -> int:
        """Return bytes as a number, least significant first."""
        return int.from_bytes(self.content[offset : offset + length], "little")

    def write(self, offset: int, length: int, value: int) -> None:
        """Change the bits that can be changed."""
        for index, byte in enumerate(value.to_bytes(8, "little")[:length], offset):
            mask = self.writable[index]
            self.content[index] = self.content[index] & ~mask & 0xFF | byte & mask

    def train(self, speed_gtps: float, width: int) -> None:
        """Say that the link runs at this speed and width now. Raises KeyError on a speed that does not exist."""
        struct.pack_into("<H", self.content, _LINK_STATUS, SPEEDS[speed_gtps] | width << 4)

    def more_functions(self) -> None:
        """Say in the header that the device has other functions."""
        self.content[0x0E] = 0x80

    def _header(self) -> None:
        card = self.card
        capabilities_list = 0x0010
        struct.pack_into("<HHHH", self.content, 0, card.vendor, card.device, 0, capabilities_list)
        struct.pack_into("<I", self.content, 0x08, card.class_code << 8 | card.revision)
        struct.pack_into("<HH", self.content, 0x2C, *card.subsystem)
        self.content[0x34] = _POWER
        self.content[0x3D] = 1  # interrupt pin A
        struct.pack_into("<H", self.writable, 0x04, 0x0547)
        self.writable[0x0C] = self.writable[0x3C] = 0xFF
        offset = 0x10
        for size, flags in card.bars:
            mask = ~(size - 1) & (1 << 64) - 1
            struct.pack_into("<I", self.content, offset, flags)
            struct.pack_into("<I", self.writable, offset, mask & 0xFFFFFFF0)
            offset += 4
            if flags & _BAR_64BIT:
                struct.pack_into("<I", self.writable, offset, mask >> 32)
                offset += 4

    def _power(self) -> None:
        struct.pack_into("<BBHH", self.content, _POWER, 0x01, _EXPRESS, 0x0003, 0x0008)
        self.writable[_POWER + 4] = 0x03

    def _express(self) -> None:
        card, speed = self.card, SPEEDS[self.card.speed_gtps]
        endpoint_version_2, payload_512, error_reporting = 0x0002, 0x2, 0x8000
        struct.pack_into("<BBH", self.content, _EXPRESS, 0x10, 0, endpoint_version_2)
        struct.pack_into("<IH", self.content, _EXPRESS + 0x04, error_reporting | payload_512, 0x2810)
        struct.pack_into("<I", self.content, _EXPRESS + 0x0C, speed | card.width << 4)
        struct.pack_into("<I", self.content, _EXPRESS + 0x2C, ((1 << speed) - 1) << 1)  # every speed up to this one
        struct.pack_into("<H", self.content, _EXPRESS + 0x30, speed)
        struct.pack_into("<H", self.writable, _EXPRESS + 0x08, 0x7FFF)
        struct.pack_into("<H", self.writable, _EXPRESS + 0x10, 0x01FB)
        self.train(card.speed_gtps, card.width)
