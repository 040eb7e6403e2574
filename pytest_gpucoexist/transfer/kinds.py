"""Which kind of fault a run is: whose content it is, how far that is displaced, and where it begins and ends."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_gpucoexist.transfer.epochs import DATA, UNDER_READING, UNDER_RING, meaning
from pytest_gpucoexist.transfer.labels import CONSTANT, FLIPPED, UNKNOWN

if TYPE_CHECKING:
    from pytest_gpucoexist.transfer.content import Content, Run
    from pytest_gpucoexist.transfer.finding import Kind
    from pytest_gpucoexist.transfer.frame import Area, Plan

__all__ = ["PAGE_BYTES", "kind_of", "settled"]

PAGE_BYTES = 4096

_SHIFT_BYTES = 16 * PAGE_BYTES  # what is displaced by no more is shifted; by more it is of another place


def settled(plan: Plan, area: Area, run: Run) -> Run:
    """Set the ends of a run where copies begin and end, if bytes at its edge would be the same on either side."""
    if run.content is None:
        return run
    first = max(range(run.low, run.first + 1), key=lambda at: (_roundness(plan, area, at), at))
    end = max(range(run.end, run.high + 1), key=lambda at: (_roundness(plan, area, at), -at))
    return replace(run, first=first, end=end)


def _roundness(plan: Plan, area: Area, at: int) -> int:
    if at in {0, area.size_bytes}:
        return 1 << 62
    if _of_slots(plan, area, at):
        return 1 << 61
    return min(at & -at, PAGE_BYTES)


def _of_slots(plan: Plan, area: Area, at: int) -> bool:
    """Whether a byte of a payload is where a slot begins or ends."""
    whole = at == area.size_bytes if area.region != "ring" else False
    return plan.slot_bytes > 0 and (whole or (area.start + at) % plan.slot_bytes == 0)


def kind_of(plan: Plan, area: Area, run: Run) -> Kind:
    """Name what a run is."""
    if run.label == FLIPPED and not _from_the_edge(area, run):
        return "flipped"
    if area.part != "payload":
        return _in_zone(plan, area, run)
    if run.label == UNKNOWN:
        return "garbage"
    if run.label == CONSTANT and run.content is not None:
        return "zeros" if run.content.byte == 0 else "constant"
    return _tagged(plan, area, run, run.content) if run.content is not None else "flipped"


def _from_the_edge(area: Area, run: Run) -> bool:
    """Whether wrong bits in a red zone are rather a byte or two of a copy that went on: more than two, at its edge.

    The byte next to the edge may be right by chance.
    """
    beside = min(run.first, area.size_bytes - run.end) <= 1
    return area.part != "payload" and run.bits > 2 and run.places == 1 and beside


def _in_zone(plan: Plan, area: Area, run: Run) -> Kind:
    content = run.content
    if content is not None and content.byte is None and content.shift == 0:
        transfer, role = meaning(content.epoch)
        if role == meaning(area.epoch)[1] and transfer != plan.transfer:
            return "stale"
        if role == UNDER_READING:
            return "unread"
    if _read_back(plan, area, content):
        return "unread"
    ends_there = run.end == area.size_bytes and run.first > 0
    return "underrun" if area.part == "before" or (area.region == "ring" and ends_there) else "overrun"


def _read_back(plan: Plan, area: Area, content: Content | None) -> bool:
    """Whether a content is what lay, at this very place, in the buffer into which the region was read."""
    if content is None or content.byte is not None:
        return False
    return meaning(content.epoch) == (plan.transfer, UNDER_READING) and area.start + content.shift == area.offset_bytes


def _tagged(plan: Plan, area: Area, run: Run, content: Content) -> Kind:
    transfer, role = meaning(content.epoch)
    if _read_back(plan, area, content):
        return "unread"
    if content.epoch == area.under_epoch and content.shift == area.under_start - area.start:
        return _old(plan, area, run, "untouched")
    if transfer != plan.transfer:
        if role != DATA or transfer > plan.transfer:
            return "foreign"
        return _old(plan, area, run, "stale") if content.shift == 0 else "stale"
    if role == UNDER_RING and area.region == "destination":
        return "unwritten_slot"
    return _displaced(plan, content.shift) if content.epoch == area.epoch else "misplaced"


def _old(plan: Plan, area: Area, run: Run, kind: Kind) -> Kind:
    """Tell a fault of the whole, or of whole slots, from one that leaves old and new in one piece."""
    if run.first == 0 and run.end == area.size_bytes:
        return kind
    if run.end == area.size_bytes and kind == "untouched":
        return "truncated"
    if _of_slots(plan, area, run.first) and _of_slots(plan, area, run.end):
        return kind
    if kind == "untouched":
        return "torn"
    inner = [at for at in (run.first, run.end) if at not in {0, area.size_bytes}]
    return "torn" if any(at % PAGE_BYTES == 0 for at in inner) else kind


def _displaced(plan: Plan, shift: int) -> Kind:
    if plan.slots and shift < 0 and shift % (plan.slots * plan.slot_bytes) == 0:
        return "stale_slot"
    if plan.slots and shift % plan.slot_bytes == 0:
        return "misplaced"
    if shift % 8:
        return "shifted_bytes"
    return "shifted" if abs(shift) <= _SHIFT_BYTES else "misplaced"
