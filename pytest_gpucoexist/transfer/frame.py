"""What lies around and under a transfer: the plan that its endpoints agree on, and what each byte of a region holds.

A region is one piece of memory with red zones: the source and the destination have one before and one after their
payload, the ring one before, between and after its slots. Before a transfer every byte of it is written with words of
an epoch that belongs to this transfer and this region alone; afterwards each byte says what was done to it.

    source        zone │ data                      │ zone          the same before and after
    ring          zone │ prefill │ zone │ … │ zone                 then in each slot the last chunk that passed it
    destination   zone │ prefill                   │ zone          then the data

A `Plan` is a small value; `values()` are builtins that travel over execnet, `Plan.of(values)` is equal on the other
side. Endpoints need nothing else to write and check their own regions.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields
from typing import Any, Literal, get_args

from pytest_gpucoexist.transfer.epochs import (
    AFTER,
    DATA,
    DESTINATION_ZONE,
    RING_ZONE,
    SOURCE_ZONE,
    TRANSFERS,
    UNDER_DESTINATION,
    UNDER_READING,
    UNDER_RING,
    epoch_of,
)
from pytest_gpucoexist.transfer.splitmix import MASK

__all__ = ["REGIONS", "Area", "Contents", "Part", "Plan", "Region"]

Region = Literal["source", "ring", "destination"]
REGIONS: tuple[Region, ...] = get_args(Region)
Part = Literal["before", "payload", "after"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Area:
    """A part of a region that holds one piece of one stream: bytes `start` … of `epoch`.

    `offset_bytes` counts from the region's first byte. `under_epoch` and `under_start` are what lay there before the
    transfer, None where a transfer writes nothing. Areas of a ring have a `slot`: the one that they are in, before or
    after.
    """

    region: Region
    part: Part
    offset_bytes: int
    size_bytes: int
    epoch: int
    start: int
    under_epoch: int | None = None
    under_start: int = 0
    slot: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What every byte of a region holds at some time: its areas, in order and without a hole."""

    plan: Plan
    areas: tuple[Area, ...]

    @property
    def size_bytes(self) -> int:
        """The size of the region."""
        return sum(area.size_bytes for area in self.areas)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One transfer: its number among those of a seed, its sizes, and who has and writes each region.

    `zone_bytes` is the size of the red zones of source and destination. Without a ring `slots` and `slot_bytes` are 0.
    The ring begins with a zone of `first_slot_bytes`; from one slot to the next are `stride_bytes`, and so many for the
    last: what a slot leaves of them is a zone. Both follow from `zone_bytes` where they are None. `owners` are whose
    memory the source, the ring and the destination are, `writers` who writes there: words for people.

    Raises ValueError for what has no meaning.
    """

    seed: int
    transfer: int
    size_bytes: int
    zone_bytes: int = 4096
    slots: int = 0
    slot_bytes: int = 0
    first_slot_bytes: int | None = None
    stride_bytes: int | None = None
    owners: tuple[str, str, str] = ("", "", "")
    writers: tuple[str, str, str] = ("", "", "")

    def __post_init__(self) -> None:
        """Refuse what has no meaning."""
        if not 0 <= self.seed <= MASK:
            raise ValueError(f"a seed has 64 bits; this is {self.seed:#x}")
        if not 0 <= self.transfer < TRANSFERS:
            raise ValueError(f"a seed has {TRANSFERS} transfers; this is number {self.transfer}: take another seed")
        if not 1 <= self.size_bytes < AFTER:
            raise ValueError(f"a transfer moves 1 byte to 1 TiB; this one {self.size_bytes} bytes")
        if self.zone_bytes < 0 or self.slots < 0 or (self.slots > 0) != (self.slot_bytes > 0):
            raise ValueError(
                f"no ring: {self.slots} slots of {self.slot_bytes} bytes, zones of {self.zone_bytes} bytes"
            )
        if self._first < 0 or self._stride < self.slot_bytes:
            raise ValueError(f"no ring: slots of {self.slot_bytes} bytes every {self._stride}, from {self._first} on")

    @classmethod
    def of(cls, values: tuple[Any, ...]) -> Plan:
        """Make the plan whose `values()` came from another process."""
        return cls(**dict(zip((field.name for field in fields(cls)), values, strict=True)))

    def values(self) -> tuple[Any, ...]:
        """Return the plan as a tuple of builtins."""
        return astuple(self)

    def owner(self, region: Region) -> str:
        """Return whose memory a region is."""
        return self.owners[REGIONS.index(region)]

    def writer(self, region: Region) -> str:
        """Return who writes to a region."""
        return self.writers[REGIONS.index(region)]

    def region_bytes(self, region: Region) -> int:
        """Return how much memory a region takes, zones and all."""
        if region == "ring":
            return self.slot_offset(self.slots) if self.slots else 0
        return 2 * self.zone_bytes + self.size_bytes

    def slot_offset(self, slot: int) -> int:
        """Return where in the ring a slot begins, in bytes."""
        return self._first + slot * self._stride

    @property
    def _first(self) -> int:
        return self.zone_bytes if self.first_slot_bytes is None else self.first_slot_bytes

    @property
    def _stride(self) -> int:
        return self.slot_bytes + self.zone_bytes if self.stride_bytes is None else self.stride_bytes

    def before(self, region: Region) -> Contents:
        """Return what a region must hold when the transfer starts."""
        if region == "ring":
            return self._ring(chunks=0)
        if region == "source":
            return self._framed(region, SOURCE_ZONE, DATA, None)
        return self._framed(region, DESTINATION_ZONE, UNDER_DESTINATION, None)

    def after(self, region: Region) -> Contents:
        """Return what a region must hold when everything has arrived."""
        if region == "ring":
            return self._ring(chunks=-(-self.size_bytes // self.slot_bytes) if self.slots else 0)
        if region == "source":
            return self.before(region)
        return self._framed(region, DESTINATION_ZONE, DATA, UNDER_DESTINATION)

    def under_reading(self, region: Region) -> Contents:
        """Return what belongs into the host buffer that a region is going to be read back into.

        Without it a read-back that never arrives leaves what the buffer held, which may be the very data looked for.
        """
        epoch = epoch_of(self.transfer, UNDER_READING)
        size = self.region_bytes(region)
        return self._contents(
            Area(region=region, part="payload", offset_bytes=0, size_bytes=size, epoch=epoch, start=0)
        )

    def _contents(self, *areas: Area) -> Contents:
        return Contents(plan=self, areas=tuple(area for area in areas if area.size_bytes))

    def _framed(self, region: Region, zones: int, role: int, under: int | None) -> Contents:
        epoch, size = epoch_of(self.transfer, zones), self.zone_bytes
        payload = Area(
            region=region,
            part="payload",
            offset_bytes=size,
            size_bytes=self.size_bytes,
            epoch=epoch_of(self.transfer, role),
            start=0,
            under_epoch=None if under is None else epoch_of(self.transfer, under),
        )
        before = Area(region=region, part="before", offset_bytes=0, size_bytes=size, epoch=epoch, start=0)
        end = size + self.size_bytes
        after = Area(region=region, part="after", offset_bytes=end, size_bytes=size, epoch=epoch, start=AFTER)
        return self._contents(before, payload, after)

    def _ring(self, chunks: int) -> Contents:
        """Lay out the ring after so many chunks have passed it."""
        if not self.slots:
            return self._contents()
        zones = epoch_of(self.transfer, RING_ZONE)
        gap = self._stride - self.slot_bytes
        areas = [
            Area(region="ring", part="before", offset_bytes=0, size_bytes=self._first, epoch=zones, start=0, slot=0)
        ]
        for slot in range(self.slots):
            areas += self._slot(slot, chunks)
            end, start = self.slot_offset(slot) + self.slot_bytes, AFTER + slot * gap
            areas.append(
                Area(region="ring", part="after", offset_bytes=end, size_bytes=gap, epoch=zones, start=start, slot=slot)
            )
        return self._contents(*areas)

    def _slot(self, slot: int, chunks: int) -> list[Area]:
        """Lay out a slot: the last chunk that passed it, and where that is short what the one before left."""
        areas: list[Area] = []
        filled = 0
        last = slot + (chunks - 1 - slot) // self.slots * self.slots if slot < chunks else -1
        for chunk in (last, last - self.slots):
            end = min(self.slot_bytes, self.size_bytes - chunk * self.slot_bytes) if chunk >= 0 else 0
            if end > filled:
                start = chunk * self.slot_bytes + filled
                areas.append(self._in_slot(slot, filled, end, epoch_of(self.transfer, DATA), start))
                filled = end
        if filled < self.slot_bytes:
            under = epoch_of(self.transfer, UNDER_RING)
            areas.append(self._in_slot(slot, filled, self.slot_bytes, under, slot * self.slot_bytes + filled))
        return areas

    def _in_slot(self, slot: int, first: int, end: int, epoch: int, start: int) -> Area:
        under = epoch_of(self.transfer, UNDER_RING)
        return Area(
            region="ring",
            part="payload",
            offset_bytes=self.slot_offset(slot) + first,
            size_bytes=end - first,
            epoch=epoch,
            start=start,
            under_epoch=None if epoch == under else under,
            under_start=slot * self.slot_bytes + first,
            slot=slot,
        )
