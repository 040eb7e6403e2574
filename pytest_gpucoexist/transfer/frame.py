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

from dataclasses import astuple, dataclass
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

__all__ = ["REGIONS", "Area", "Part", "Plan", "Region"]

Region = Literal["source", "ring", "destination"]
REGIONS: tuple[Region, ...] = get_args(Region)
Part = Literal["before", "payload", "after"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Area:
    """A part of a region that holds one piece of one stream: bytes `start` … of `epoch`.

    `offset_bytes` counts from the region's first byte. `under_epoch` and `under_start` are what lay there before the
    transfer, None where a transfer writes nothing. Of a ring's areas `slot` is the slot, or the one behind a zone.
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
class Plan:
    """One transfer: its number among those of a seed, its sizes, and who has and writes each region.

    `zone_bytes` is the size of every red zone. Without a ring `slots` and `slot_bytes` are 0. `owners` are whose memory
    the source, the ring and the destination are, `writers` who writes there: words for people. Raises ValueError.
    """

    seed: int
    transfer: int
    size_bytes: int
    zone_bytes: int = 4096
    slots: int = 0
    slot_bytes: int = 0
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

    @classmethod
    def of(cls, values: tuple[Any, ...]) -> Plan:
        """Make the plan whose `values()` came from another process."""
        names = ("seed", "transfer", "size_bytes", "zone_bytes", "slots", "slot_bytes", "owners", "writers")
        return cls(**dict(zip(names, values, strict=True)))

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
            return self.slots * (self.zone_bytes + self.slot_bytes) + (self.zone_bytes if self.slots else 0)
        return 2 * self.zone_bytes + self.size_bytes

    def slot_offset(self, slot: int) -> int:
        """Return where in the ring a slot begins, in bytes."""
        return self.zone_bytes + slot * (self.zone_bytes + self.slot_bytes)

    def before(self, region: Region) -> tuple[Area, ...]:
        """Return what a region must hold when the transfer starts, in order and without a hole."""
        if region == "ring":
            return self._ring(chunks=0)
        if region == "source":
            return self._framed(region, SOURCE_ZONE, DATA, None)
        return self._framed(region, DESTINATION_ZONE, UNDER_DESTINATION, None)

    def after(self, region: Region) -> tuple[Area, ...]:
        """Return what a region must hold when everything has arrived, in order and without a hole."""
        if region == "ring":
            return self._ring(chunks=-(-self.size_bytes // self.slot_bytes) if self.slots else 0)
        if region == "source":
            return self._framed(region, SOURCE_ZONE, DATA, None)
        return self._framed(region, DESTINATION_ZONE, DATA, UNDER_DESTINATION)

    def under_reading(self, region: Region) -> tuple[Area, ...]:
        """Return what belongs into the host buffer that a region is going to be read back into.

        Without it a read-back that never arrives leaves what the buffer held, which may be the very data looked for.
        """
        size = self.region_bytes(region)
        epoch = epoch_of(self.transfer, UNDER_READING)
        return (Area(region=region, part="payload", offset_bytes=0, size_bytes=size, epoch=epoch, start=0),)

    def _framed(self, region: Region, zone: int, role: int, under: int | None) -> tuple[Area, ...]:
        size, zones = self.size_bytes, self.zone_bytes
        payload = Area(
            region=region,
            part="payload",
            offset_bytes=zones,
            size_bytes=size,
            epoch=epoch_of(self.transfer, role),
            start=0,
            under_epoch=None if under is None else epoch_of(self.transfer, under),
        )
        before, after = self._zone(region, "before", zone, 0, 0), self._zone(region, "after", zone, zones + size, AFTER)
        return tuple(area for area in (before, payload, after) if area.size_bytes)

    def _zone(self, region: Region, part: Part, role: int, offset: int, start: int, slot: int | None = None) -> Area:
        return Area(
            region=region,
            part=part,
            offset_bytes=offset,
            size_bytes=self.zone_bytes,
            epoch=epoch_of(self.transfer, role),
            start=start,
            slot=slot,
        )

    def _ring(self, chunks: int) -> tuple[Area, ...]:
        """Lay out the ring after so many chunks have passed it."""
        areas = []
        for slot in range(self.slots):
            offset = self.slot_offset(slot)
            part: Part = "before" if slot == 0 else "after"
            areas.append(self._zone("ring", part, RING_ZONE, offset - self.zone_bytes, slot * self.zone_bytes, slot))
            areas += self._slot(slot, chunks)
        if self.slots:
            end = self.region_bytes("ring") - self.zone_bytes
            areas.append(self._zone("ring", "after", RING_ZONE, end, self.slots * self.zone_bytes, self.slots))
        return tuple(area for area in areas if area.size_bytes)

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
