"""Faults of a transfer, done to the memory of a destination, each with what a check must say of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pytest_gpucoexist.transfer.diagnosis import write
from pytest_gpucoexist.transfer.epochs import (
    AFTER,
    DATA,
    SOURCE_ZONE,
    UNDER_DESTINATION,
    UNDER_RING,
    epoch_of,
)
from pytest_gpucoexist.transfer.frame import Part
from pytest_gpucoexist.transfer.plans import Plans
from pytest_gpucoexist.transfer.words import Words

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from numpy.typing import NDArray

    from pytest_gpucoexist.transfer.frame import Plan

    Fault = Callable[[Random, "Scene"], "Told | None"]

__all__ = ["FAULTS", "Scene", "Told", "scene"]

PAGE = 4096


@dataclass(frozen=True, kw_only=True)
class Told:
    """The kind and the range that a check must name; `shift` where it is displaced, `bits` where they are flipped."""

    kind: str
    first: int
    end: int
    part: Part = "payload"
    shift: int | None = None
    bits: int | None = None


class Scene:
    """A destination into which everything has arrived, and what else there is to be written to it."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.memory = np.empty(plan.region_bytes("destination"), np.uint8)
        write(plan.after("destination"), self.memory)
        self.good = self.memory.copy()
        self.words = Words(plan.seed)
        zone = plan.zone_bytes
        self.before, self.after = self.memory[:zone], self.memory[zone + plan.size_bytes :]
        self.payload = self.memory[zone : zone + plan.size_bytes]
        self.size, self.slot, self.slots = plan.size_bytes, plan.slot_bytes, plan.slots

    def stream(self, role: int, first: int, end: int, transfer: int | None = None) -> NDArray[np.uint8]:
        number = self.plan.transfer if transfer is None else transfer
        return self.words.read(epoch_of(number, role), first, end - first)

    def data(self, first: int, end: int, transfer: int | None = None) -> NDArray[np.uint8]:
        return self.stream(DATA, first, end, transfer)

    def wrong(self, part: Part) -> list[int]:
        """Return the first and the last byte of a part that is not as it was."""
        zone, size = self.plan.zone_bytes, self.size
        first = {"before": 0, "payload": zone, "after": zone + size}[part]
        now = self.part(part)
        wrong = np.flatnonzero(now != self.good[first : first + len(now)])
        return [int(wrong[0]), int(wrong[-1])]

    def is_wrong(self, byte: int) -> bool:
        """Whether a byte of the payload is not as it was."""
        return bool(self.payload[byte] != self.good[self.plan.zone_bytes + byte])

    def part(self, part: Part) -> NDArray[np.uint8]:
        return {"before": self.before, "payload": self.payload, "after": self.after}[part]


def scene(rng: Random, size: int, zone: int = PAGE, slot: int = 0, slots: int = 0) -> Scene:
    plans = Plans(rng.getrandbits(64), first=rng.randrange(3, 8000))
    return Scene(plans.next(size, zone_bytes=zone, slot_bytes=slot, slots=slots))


def _range(rng: Random, size: int, least: int) -> tuple[int, int]:
    length = rng.choice([least, least + 1, rng.randint(least, size)])
    first = rng.randint(0, size - min(size, length))
    return first, min(size, first + length)


def flip(rng: Random, to: Scene) -> Told | None:
    """One or two bits of a small payload, up to six bits of one word of a larger."""
    count = rng.randint(1, 2 if to.size < 8 else 6)
    first = rng.randrange(to.size) // 8 * 8
    end = min(first + 8, to.size)
    bits = rng.sample(range(8 * first, 8 * end), min(count, 8 * (end - first)))
    for bit in bits:
        to.payload[bit // 8] ^= 1 << bit % 8
    return Told(kind="flipped", first=min(bits) // 8, end=max(bits) // 8 + 1, bits=len(bits))


def stuck_bit(rng: Random, to: Scene) -> Told | None:
    """One bit that is always one, in every 64 bytes."""
    if to.size < 4095:
        return None
    place = rng.randrange(64)
    before = to.payload.copy()
    to.payload[place::64] |= 1 << rng.randrange(8)
    wrong = np.flatnonzero(before != to.payload)
    return Told(kind="flipped", first=int(wrong[0]), end=int(wrong[-1]) + 1, bits=len(wrong))


def dropped(rng: Random, to: Scene) -> Told | None:
    to.payload[:] = to.stream(UNDER_DESTINATION, 0, to.size)
    return Told(kind="untouched", first=0, end=to.size)


def truncated(rng: Random, to: Scene) -> Told | None:
    if to.size < 2:
        return None
    end = rng.choice([rng.randrange(1, to.size), to.size - 1, max(1, to.size - 1 - rng.randrange(12))])
    to.payload[end:] = to.stream(UNDER_DESTINATION, end, to.size)
    return Told(kind="truncated", first=end, end=to.size)


def torn_pages(rng: Random, to: Scene) -> Told | None:
    pages = to.size // PAGE
    if pages < 3 or to.slot == PAGE:
        return None
    first = rng.randrange(pages - 1)
    end = rng.randint(first + 1, pages - 1)
    first, end = PAGE * first, PAGE * end
    to.payload[first:end] = to.stream(UNDER_DESTINATION, first, end)
    return Told(kind="torn", first=first, end=end)


def torn_anywhere(rng: Random, to: Scene) -> Told | None:
    if to.size < 64:
        return None
    first, end = _range(rng, to.size - 2, 4)
    to.payload[first:end] = to.stream(UNDER_DESTINATION, first, end)
    return Told(kind="torn", first=first, end=end)


def torn_stale(rng: Random, to: Scene) -> Told | None:
    if to.size < 3 * PAGE or to.slot == PAGE:
        return None
    first = PAGE * rng.randrange(1, to.size // PAGE)
    if to.slot and first % to.slot == 0:
        return None
    to.payload[first:] = to.data(first, to.size, to.plan.transfer - 1)
    return Told(kind="torn", first=first, end=to.size)


def stale(rng: Random, to: Scene) -> Told | None:
    earlier = to.plan.transfer - (1 if to.size < 8 else rng.randint(1, 3))
    to.payload[:] = to.data(0, to.size, earlier)
    return Told(kind="stale", first=0, end=to.size, shift=None)


def stale_piece(rng: Random, to: Scene) -> Told | None:
    if to.size < 64:
        return None
    first, end = _range(rng, to.size, 16)
    first, end = first + (first % PAGE == 0), end - (end % PAGE == 0)
    to.payload[first:end] = to.data(first, end, to.plan.transfer - rng.randint(1, 3))
    return Told(kind="stale", first=first, end=end)


def stale_displaced(rng: Random, to: Scene) -> Told | None:
    if to.size < 64:
        return None
    first, end = _range(rng, to.size, 32)
    away = rng.randrange(1, 1 << 20)
    to.payload[first:end] = to.data(first + away, end + away, to.plan.transfer - 1)
    return Told(kind="stale", first=first, end=end)


def _chunk(to: Scene, number: int) -> tuple[int, int]:
    return number * to.slot, min(to.size, (number + 1) * to.slot)


def stale_slot(rng: Random, to: Scene) -> Told | None:
    chunks = -(-to.size // to.slot) if to.slots else 0
    if chunks <= to.slots:
        return None
    first, end = _chunk(to, rng.randrange(to.slots, chunks))
    away = to.slots * to.slot * (rng.randint(1, first // to.slot // to.slots) if end - first >= 16 else 1)
    to.payload[first:end] = to.data(first - away, end - away)
    return Told(kind="stale_slot", first=first, end=end, shift=-away)


def unwritten_slot(rng: Random, to: Scene) -> Told | None:
    chunks = -(-to.size // to.slot) if to.slots else 0
    if not chunks:
        return None
    first, end = _chunk(to, rng.randrange(min(to.slots, chunks)))
    to.payload[first:end] = to.stream(UNDER_RING, first, end)
    return Told(kind="unwritten_slot", first=first, end=end)


def lost_chunk(rng: Random, to: Scene) -> Told | None:
    chunks = -(-to.size // to.slot) if to.slots else 0
    if chunks < 2:
        return None
    first, end = _chunk(to, rng.randrange(chunks - 1))
    to.payload[first:end] = to.stream(UNDER_DESTINATION, first, end)
    return Told(kind="untouched", first=first, end=end)


def wrong_chunk(rng: Random, to: Scene) -> Told | None:
    chunks = -(-to.size // to.slot) if to.slots else 0
    pairs = [(at, other) for at in range(chunks) for other in range(chunks) if (other - at) % to.slots]
    if not pairs:
        return None
    at, other = rng.choice(pairs)
    first, end = _chunk(to, at)
    away = (other - at) * to.slot
    end = min(end, to.size - away)
    if end - first < 16:
        return None
    to.payload[first:end] = to.data(first + away, end + away)
    return Told(kind="misplaced", first=first, end=end, shift=away)


def _shift(rng: Random, to: Scene, away: int, kind: str) -> Told | None:
    """Copy from the wrong place from some byte on, as far as there is data."""
    if to.size < 3 * abs(away) + 32:
        return None
    first = rng.choice([max(0, -away), rng.randrange(max(0, -away), to.size - max(0, away) - 16)])
    end = to.size - max(0, away)
    to.payload[first:end] = to.data(first + away, end + away)
    return Told(kind=kind, first=first, end=end, shift=away)


def shifted_bytes(rng: Random, to: Scene) -> Told | None:
    return _shift(rng, to, rng.choice([-1, 1]) * rng.randint(1, 7), "shifted_bytes")


def shifted_words(rng: Random, to: Scene) -> Told | None:
    return _shift(rng, to, rng.choice([-8, 8]) * rng.randint(1, 9), "shifted")


def shifted_page(rng: Random, to: Scene) -> Told | None:
    return None if to.slots else _shift(rng, to, rng.choice([-PAGE, PAGE]), "shifted")


def wrong_place(rng: Random, to: Scene) -> Told | None:
    if to.size < 5 * PAGE * 16 or to.slots:
        return None
    first = PAGE * rng.randrange(8)
    away = PAGE * rng.randint(17, 32)
    to.payload[first : first + 3 * PAGE] = to.data(first + away, first + away + 3 * PAGE)
    return Told(kind="misplaced", first=first, end=first + 3 * PAGE, shift=away)


def source_zone(rng: Random, to: Scene) -> Told | None:
    """What lies before the source, where data belongs."""
    if to.size < 64:
        return None
    first, end = _range(rng, min(to.size, to.plan.zone_bytes), 16)
    to.payload[first:end] = to.stream(SOURCE_ZONE, first, end)
    return Told(kind="misplaced", first=first, end=end)


def foreign(rng: Random, to: Scene) -> Told | None:
    """What belongs to another transfer: data of a later one, or prefill of an earlier one."""
    if to.size < 64:
        return None
    first, end = _range(rng, to.size, 16)
    role, other = rng.choice([(DATA, 1), (UNDER_DESTINATION, -1), (UNDER_RING, 2), (SOURCE_ZONE, -2)])
    to.payload[first:end] = to.stream(role, first, end, to.plan.transfer + other)
    return Told(kind="foreign", first=first, end=end)


def zeros(rng: Random, to: Scene) -> Told | None:
    first, end = (0, to.size) if to.size < 8 else _range(rng, to.size, 5)
    to.payload[first:end] = 0
    return Told(kind="zeros", first=first, end=end)


def ones(rng: Random, to: Scene) -> Told | None:
    first, end = (0, to.size) if to.size < 8 else _range(rng, to.size, 5)
    to.payload[first:end] = 0xFF
    return Told(kind="constant", first=first, end=end)


def one_byte(rng: Random, to: Scene) -> Told | None:
    if to.size < 64:
        return None
    first, end = _range(rng, to.size, 9)
    to.payload[first:end] = rng.randrange(1, 256)
    return Told(kind="constant", first=first, end=end)


def garbage(rng: Random, to: Scene) -> Told | None:
    if to.size < 64:
        return None
    first, end = _range(rng, to.size, 12)
    to.payload[first:end] = np.frombuffer(rng.randbytes(end - first), np.uint8)
    return Told(kind="garbage", first=first, end=end)


def too_long(rng: Random, to: Scene) -> Told | None:
    """A copy that went on beyond the end of both buffers."""
    count = rng.choice([1, 2, 3, rng.randint(1, to.plan.zone_bytes)])
    beyond = to.stream(SOURCE_ZONE, AFTER, AFTER + count)
    if count < 3 and (beyond == to.after[:count]).any():
        return None  # a byte that is right by chance was not written beyond, for all that anybody can tell
    to.after[:count] = beyond
    return Told(kind="overrun", first=0, end=count, part="after")


def zeroed_beyond(rng: Random, to: Scene) -> Told | None:
    count = rng.choice([3, rng.randint(3, to.plan.zone_bytes)])
    to.after[:count] = 0
    return Told(kind="overrun", first=0, end=count, part="after")


def too_early(rng: Random, to: Scene) -> Told | None:
    """Data that begins before the payload."""
    zone = to.plan.zone_bytes
    count = rng.randint(3, min(zone, to.size)) if to.size > 3 else 0
    if not count:
        return None
    to.before[zone - count :] = to.data(0, count)
    return Told(kind="underrun", first=zone - count, end=zone, part="before")


def zone_flip(rng: Random, to: Scene) -> Told | None:
    part: Part = "before" if rng.random() < 0.5 else "after"
    byte = rng.randrange(to.plan.zone_bytes)
    to.part(part)[byte] ^= 1 << rng.randrange(8)
    return Told(kind="flipped", first=byte, end=byte + 1, part=part, bits=1)


FAULTS: dict[str, Fault] = {
    fault.__name__: fault
    for fault in (
        *(
            flip,
            stuck_bit,
            dropped,
            truncated,
            torn_pages,
            torn_anywhere,
            torn_stale,
            stale,
            stale_piece,
            stale_displaced,
        ),
        *(stale_slot, unwritten_slot, lost_chunk, wrong_chunk, shifted_bytes, shifted_words, shifted_page, wrong_place),
        *(source_zone, foreign, zeros, ones, one_byte, garbage, too_long, zeroed_beyond, too_early, zone_flip),
    )
}
