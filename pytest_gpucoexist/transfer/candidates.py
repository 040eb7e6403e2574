"""What may well be where data belongs, for pieces that are too short to hold a whole word that would say it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.transfer.content import Content
from pytest_gpucoexist.transfer.epochs import (
    DATA,
    ROLES,
    SOURCE_ZONE,
    UNDER_READING,
    UNDER_RING,
    epoch_of,
    meaning,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.transfer.frame import Area, Plan

__all__ = ["candidates"]


def candidates(plan: Plan, area: Area, first: int, found: bytes) -> Iterator[Content]:
    """Yield contents, the likelier first, for the bytes `found` from the area's byte `first` on."""
    if area.under_epoch is not None:
        yield Content(epoch=area.under_epoch, shift=area.under_start - area.start)
    yield from _ring(plan, area, first)
    transfer, role = meaning(area.epoch)
    if transfer and area.part == "payload":
        yield Content(epoch=area.epoch - ROLES, shift=0)
    if area.region == "destination" and area.part != "payload":
        yield Content(epoch=epoch_of(plan.transfer, SOURCE_ZONE), shift=0)
    yield Content(byte=0)
    yield Content(byte=0xFF)
    yield Content(epoch=epoch_of(plan.transfer, UNDER_READING), shift=area.offset_bytes - area.start)
    if len(found) >= 3 and len(set(found)) == 1:
        yield Content(byte=found[0])
    if role == DATA and len(found) >= 3:
        yield Content(epoch=area.epoch, shift=-area.start - first)  # an address that has come round to the beginning
        for shift in range(1, 8):
            yield Content(epoch=area.epoch, shift=shift)
            yield Content(epoch=area.epoch, shift=-shift)


def _ring(plan: Plan, area: Area, first: int) -> Iterator[Content]:
    """Yield what a slot held that was not written in time: its prefill, or the chunk before."""
    if not plan.slots or area.region != "destination" or area.part != "payload":
        return
    chunk = first // plan.slot_bytes
    if chunk >= plan.slots:
        yield Content(epoch=area.epoch, shift=-plan.slots * plan.slot_bytes)
    else:
        yield Content(epoch=epoch_of(plan.transfer, UNDER_RING), shift=0)
