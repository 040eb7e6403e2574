"""Findings in words: one sentence that says where, how much, what was expected and what is there instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.transfer.epochs import AFTER, DATA, DESTINATION_ZONE, RING_ZONE, SOURCE_ZONE, epoch_of, meaning
from pytest_gpucoexist.transfer.kinds import PAGE_BYTES

if TYPE_CHECKING:
    from pytest_gpucoexist.transfer.content import Content, Run
    from pytest_gpucoexist.transfer.finding import Finding
    from pytest_gpucoexist.transfer.frame import Area, Plan

__all__ = ["tell"]

_ROLES = (
    "the data",
    "the prefill of the destination",
    "the prefill of the ring",
    "the prefill of the buffer for reading back",
    "source",
    "destination",
    "slots",
    "nothing known",
)


def tell(plan: Plan, area: Area, run: Run, finding: Finding) -> str:
    """Return the sentence of a finding whose other fields are set."""
    where = f"{_place(plan, area)}, {_range(finding)}: {_what(plan, area, run, finding)}"
    word = f"word at byte {finding.word_offset_bytes:,}: expected {finding.expected:#018x}, found {finding.found:#018x}"
    return f"{where} ({word})"


def _place(plan: Plan, area: Area) -> str:
    """Name a part of a region, whose memory it is and who writes there."""
    name: str = area.region
    if area.part != "payload":
        name = f"red zone {'before' if area.part == 'before' else 'after'} the {area.region}"
        if area.region == "ring" and area.part == "after":
            name = f"red zone of the ring after slot {area.slot}"
    elif area.slot is not None:
        name = f"slot {area.slot} of the ring"
    owner, writer = plan.owner(area.region), plan.writer(area.region)
    said = [f"memory of {owner}"] if owner else []
    said += [f"written by {writer}"] if writer else []
    return f"{name} ({', '.join(said)})" if said else name


def _range(finding: Finding) -> str:
    first, end = finding.offset_bytes, finding.end_bytes
    bytes_ = f"byte {first:,}" if end == first + 1 else f"bytes {first:,} to {end - 1:,}"
    return bytes_ if finding.places == 1 else f"{finding.places:,} places in {bytes_}"


def _what(plan: Plan, area: Area, run: Run, finding: Finding) -> str:
    content = run.content
    kind = finding.kind
    if kind == "flipped":
        inside = f" of {_content(run.within, run, area)}, which is itself wrong here" if run.within is not None else ""
        return f"{_count(finding.bits, 'bit')} flipped{inside}"
    if kind in {"overrun", "underrun"}:
        return f"{_how_far(area, run)}; what was written is {_content(content, run, area)}"
    told = {
        "untouched": "nothing arrived, the prefill is still there",
        "unread": "the region was not read back, what is here lay in the buffer for that before",
        "truncated": "the copy ended here, the rest is still the prefill",
        "stale": f"stale, {_content(content, run, area)}",
        "unwritten_slot": f"the slot of the ring was copied on before it was written, {_content(content, run, area)}",
        "misplaced": f"of another place, {_content(content, run, area)}{_chunk(plan, area, run)}",
        "foreign": f"of another transfer, {_content(content, run, area)}",
        "zeros": "zeros",
        "constant": f"every byte is {finding.byte or 0:#04x}{_gone(finding.byte)}",
        "garbage": "bytes of no known origin",
    }
    if kind in told:
        return told[kind] + (_slots(plan, area, run) if kind in {"untouched", "stale"} else "")
    if kind == "torn":
        return f"torn {_boundaries(area, run)}: new data around, here {_content(content, run, area)}"
    if kind == "stale_slot":
        turns = _count(-(finding.displaced_bytes or 0) // (plan.slots * plan.slot_bytes), "turn")
        return f"a stale slot, with what passed it {turns} of the ring earlier"
    return f"shifted, here is data that belongs {_distance(finding.displaced_bytes or 0)}"


def _content(content: Content | None, run: Run, area: Area) -> str:
    """Say whose a content is."""
    if content is None:
        return "of no known origin"
    if content.byte is not None:
        return f"{content.byte:#04x} in every byte"
    transfer, role = meaning(content.epoch)
    place = area.start + run.first + content.shift
    whose = _ROLES[role]
    if role in {SOURCE_ZONE, DESTINATION_ZONE, RING_ZONE}:
        whose = f"the red zone {'after' if place >= AFTER else 'before'} the {whose}"
    return f"{whose} of transfer {transfer:,} from byte {place % AFTER:,} on (epoch {content.epoch:,})"


def _how_far(area: Area, run: Run) -> str:
    whose = f"slot {area.slot}" if area.region == "ring" else f"the {area.region}"
    if area.part == "before":
        return f"written as far as {_count(area.size_bytes - run.first, 'byte')} before {whose}"
    return f"written as far as {_count(run.end, 'byte')} beyond the end of {whose}"


def _gone(byte: int | None) -> str:
    return ", which is what a device that has fallen off its bus reads as" if byte == 0xFF else ""


def _chunk(plan: Plan, area: Area, run: Run) -> str:
    """Name the chunk that data of this transfer is of, where there is a ring; of a later turn, say how that came."""
    content = run.content
    if content is None or content.epoch != epoch_of(plan.transfer, DATA) or not plan.slots:
        return ""
    turn = plan.slots * plan.slot_bytes
    again = content.epoch == area.epoch and content.shift > 0 and content.shift % turn == 0
    late = ": its slot was written again before it was copied on" if again else ""
    return f", chunk {(area.start + run.first + content.shift) // plan.slot_bytes:,}{late}"


def _slots(plan: Plan, area: Area, run: Run) -> str:
    """Name whole chunks, where there is a ring and it is not all of the payload."""
    if not plan.slots or area.region != "destination" or run.end - run.first == area.size_bytes:
        return ""
    first, last = run.first // plan.slot_bytes, (run.end - 1) // plan.slot_bytes
    return f"; chunk {first:,}" if first == last else f"; chunks {first:,} to {last:,}"


def _boundaries(area: Area, run: Run) -> str:
    inner = [at for at in (run.first, run.end) if at not in {0, area.size_bytes}]
    return " and ".join(
        f"at the boundary of pages {at // PAGE_BYTES - 1:,} and {at // PAGE_BYTES:,}"
        if at % PAGE_BYTES == 0
        else f"at byte {at:,}, inside page {at // PAGE_BYTES:,}"
        for at in inner
    )


def _distance(shift: int) -> str:
    for unit, size in (("page", PAGE_BYTES), ("word", 8), ("byte", 1)):
        if shift % size == 0:
            return f"{_count(abs(shift) // size, unit)} {'later' if shift > 0 else 'earlier'}"
    raise AssertionError


def _count(number: int, unit: str) -> str:
    return f"{number:,} {unit}{'' if number == 1 else 's'}"
