"""Where each device has its place among the 2^63 offsets of a file that is locked and never written that far.

    0                 …  2^61    slots: one of 2^24 bytes for each device, a byte for each MiB of its memory
    2^61              …  2^62    queues: one of 2^36 bytes for each device, a byte for each ticket
    2^62              …  2^62+2^42   pulses: 64 bytes for each ticket, which its owner moves over while it lives
    2^62+2^60         …  2^62+2^61   heirs, and what they inherit: one of 2^24 bytes each for each device (`heirs.py`)
    2^62+2^61         …          what is neither: presence of instances, the numbers of record keepers

A device is placed by a hash of its key. Two devices that fall together (64 devices: less than one machine in 10^7 for
slots, one in 10^4 for queues) exclude each other needlessly, and never share.
"""

from __future__ import annotations

import functools
import hashlib

__all__ = [
    "KEEPERS",
    "MIB",
    "PRESENCE",
    "PULSE_BYTES",
    "SLOT_BYTES",
    "TICKETS",
    "heirs",
    "lent",
    "mark",
    "number_in_slot",
    "pulse",
    "queue",
    "slot",
]

MIB = 1 << 20
SLOT_BYTES = 1 << 24  # 16 TiB of memory
TICKETS = 1 << 36
PULSE_BYTES = 64
PRESENCE = (1 << 62) + (1 << 61)
KEEPERS = PRESENCE + (1 << 32)

_QUEUES = 1 << 61
_PULSES = 1 << 62
_HEIRS = (1 << 62) + (1 << 60)
_LENT = _HEIRS + (1 << 59)


@functools.lru_cache(maxsize=1024)
def _number(key: str) -> int:
    return int.from_bytes(hashlib.blake2b(key.encode("utf-8", "surrogateescape"), digest_size=8).digest(), "big")


def slot(key: str) -> int:
    """Return where the slot of a device begins; it has `SLOT_BYTES`."""
    return (_number(key) & ((1 << 37) - 1)) * SLOT_BYTES


def queue(key: str) -> int:
    """Return where the queue of a device begins; it has `TICKETS` bytes."""
    return _QUEUES + (_number(key) & ((1 << 25) - 1)) * TICKETS


def pulse(ticket: int) -> int:
    """Return where the pulse of a ticket begins; it has `PULSE_BYTES`."""
    return _PULSES + ticket * PULSE_BYTES


def heirs(key: str) -> int:
    """Return where the heirs of a device are announced; `SLOT_BYTES` of them."""
    return _HEIRS + (_number(key) & ((1 << 35) - 1)) * SLOT_BYTES


def lent(key: str) -> int:
    """Return where the leases of a device are announced that can be inherited; `SLOT_BYTES` of them."""
    return _LENT + (_number(key) & ((1 << 35) - 1)) * SLOT_BYTES


def number_in_slot(text: str) -> int:
    """Return which of the `SLOT_BYTES` stands for a lease."""
    return _number(text) % SLOT_BYTES


def mark(key: str) -> bytes:
    """Return the eight bytes, never all zero, that stand for a device on the board of the table."""
    return (_number(key) | 1).to_bytes(8, "big")
