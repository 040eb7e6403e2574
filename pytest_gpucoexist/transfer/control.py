"""The first page of a segment: what both processes know of each other, each word on cache lines of its own.

    0x000  magic, version, size, slots, slot bytes, guard bytes          written once, by who made the segment
    0x080  the sender:   counter (u32), failed (u32); at 0x10: pid (u32), bytes to send (u64), bytes of a chunk (u64);
                         at 0x40: when it posted the last four counts (u64, ns)
    0x100  the receiver: the same
    0x180  the owner:    (unused), failed
    0x400  why the sender failed; 0x800 the receiver; 0xC00 the owner: length (u32) and text

Every word has one writer. The counters count slots that were handed over, 31 bits; the highest bit says that their
writer has stopped, so that who sleeps on the counter is woken by the same change that tells it why.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Literal, get_args

from pytest_gpucoexist.transfer.futex import EventCounter, FutexCounter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucoexist.transfer.futex import SharedCounter

__all__ = ["COUNT_MASK", "HEADER_BYTES", "STOPPED", "Control", "Party", "Role"]

Role = Literal["sender", "receiver"]
Party = Literal["sender", "receiver", "owner"]

HEADER_BYTES = 4096
STOPPED = 1 << 31
COUNT_MASK = STOPPED - 1

_LINES: dict[str, int] = {"sender": 0x080, "receiver": 0x100, "owner": 0x180}
_TEXTS: dict[str, int] = {"sender": 0x400, "receiver": 0x800, "owner": 0xC00}
_TEXT_BYTES = 0x400 - 4
_FAILED, _PID, _TOTAL, _CHUNK, _STAMPS = 4, 16, 24, 32, 64
_STAMP_COUNT = 4


class Control:
    """The control words of a mapping that begins at `address` and stays mapped meanwhile."""

    def __init__(self, address: int) -> None:
        self._address = address
        self._counters: dict[str, SharedCounter] = {
            name: FutexCounter(address + _LINES[name]) for name in get_args(Role)
        }
        stamps = ctypes.c_uint64 * _STAMP_COUNT
        self._stamps = {name: stamps.from_address(address + _LINES[name] + _STAMPS) for name in get_args(Role)}
        self._failed = {name: ctypes.c_uint32.from_address(address + _LINES[name] + _FAILED) for name in _LINES}

    def counter(self, role: Role) -> SharedCounter:
        """Return the counter that a role raises."""
        return self._counters[role]

    def use_events(self, descriptors: Mapping[Role, int]) -> None:
        """Hand over by eventfds instead of futexes: one for each counter, the same in all processes, before a ring."""
        for role, descriptor in descriptors.items():
            self._counters[role] = EventCounter(self._address + _LINES[role], descriptor)

    def stamp(self, role: Role, count: int, when_ns: int) -> None:
        """Note when a role posts a count, before it does: ns of CLOCK_MONOTONIC, which processes share."""
        self._stamps[role][count % _STAMP_COUNT] = when_ns

    def stamped(self, role: Role, count: int) -> int:
        """Return when a role posted a count; it is kept until the role is four posts further."""
        return int(self._stamps[role][count % _STAMP_COUNT])

    def announce(self, role: Role, pid: int, size_bytes: int, chunk_bytes: int) -> None:
        """Say who has a role, how much it will move and in which parts; a pid of 0 says that it is nobody's now."""
        line = self._address + _LINES[role]
        ctypes.c_uint64.from_address(line + _TOTAL).value = size_bytes
        ctypes.c_uint64.from_address(line + _CHUNK).value = chunk_bytes
        ctypes.c_uint32.from_address(line + _PID).value = pid

    def announced(self, role: Role) -> tuple[int, int, int]:
        """Return what a role announced: its pid, 0 when nobody has it now, its bytes, and the bytes of a chunk."""
        line = self._address + _LINES[role]
        pid = ctypes.c_uint32.from_address(line + _PID).value
        size, chunk = (ctypes.c_uint64.from_address(line + at).value for at in (_TOTAL, _CHUNK))
        return pid, size, chunk

    def fail(self, party: Party, reason: str) -> None:
        """Stop a ring: leave the reason, then wake who waits. The owner may do so for a side that cannot."""
        text = reason.encode(errors="replace")[:_TEXT_BYTES]
        at = self._address + _TEXTS[party]
        ctypes.memmove(at + 4, text, len(text))
        ctypes.c_uint32.from_address(at).value = len(text)
        self._failed[party].value = 1
        if party == "owner":
            for counter in self._counters.values():
                counter.wake()
        else:
            self._counters[party].post(self._counters[party].value | STOPPED)

    def failure(self, *parties: Party) -> tuple[Party, str] | None:
        """Return the first of these parties that has stopped the ring, and why."""
        for party in parties:
            if self._failed[party].value:
                at = self._address + _TEXTS[party]
                length = min(ctypes.c_uint32.from_address(at).value, _TEXT_BYTES)
                return party, ctypes.string_at(at + 4, length).decode(errors="replace")
        return None

    def reset(self) -> None:
        """Make a ring of a failed one; for the owner, while neither side is at work."""
        for name in get_args(Role):
            self.announce(name, 0, 0, 0)
            self._counters[name].post(0)
        for word in self._failed.values():
            word.value = 0
