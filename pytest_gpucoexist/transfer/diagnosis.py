"""Check what a region holds after a transfer, and name what is wrong.

    for finding in check(plan, plan.after("destination"), memory): ...

A region that is good is compared as fast as its words can be made. What cannot be told: which of the hops flipped a bit
or wrote garbage, when only the destination is looked at (of the last chunks the ring still has a copy: check that too);
a fault that leaves the very bytes that should be there; where to the byte a fault begins when bytes at its edge happen
to be right; flipped bits from random bytes where less than two bytes are wrong; what lies beyond the red zones.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.transfer.finding import Finding
from pytest_gpucoexist.transfer.joining import together
from pytest_gpucoexist.transfer.kinds import kind_of, settled
from pytest_gpucoexist.transfer.labels import TAGGED
from pytest_gpucoexist.transfer.runs import Run, read
from pytest_gpucoexist.transfer.telling import tell
from pytest_gpucoexist.transfer.words import Words, as_bytes

if TYPE_CHECKING:
    from pytest_gpucoexist.transfer.finding import Kind
    from pytest_gpucoexist.transfer.frame import Area, Plan

__all__ = ["Check", "check", "write"]


def write(plan: Plan, areas: tuple[Area, ...], memory: Any) -> None:
    """Write what areas hold, as `plan.before(region)` names it, into memory of exactly the size of the region."""
    words, out = Words(plan.seed), as_bytes(memory)
    _fits(areas, len(out))
    for area in areas:
        words.fill(out[area.offset_bytes : area.offset_bytes + area.size_bytes], area.epoch, area.start)


def check(plan: Plan, areas: tuple[Area, ...], memory: Any) -> tuple[Finding, ...]:
    """Compare memory with what areas should hold, and return what is wrong, in order; nothing when all is right."""
    checking = Check(plan, areas)
    checking.feed(memory)
    return checking.findings()


class Check:
    """Checks a region piece by piece, for one that is read back through a smaller buffer. One thread uses it."""

    def __init__(self, plan: Plan, areas: tuple[Area, ...]) -> None:
        """Expect the areas of one region, from its first byte on."""
        self._plan, self._areas = plan, areas
        self._words = Words(plan.seed)
        self._runs: dict[Area, list[Run]] = {area: [] for area in areas}
        self._at = 0

    def feed(self, piece: Any) -> None:
        """Compare the next bytes of the region. Raises ValueError when there are more than it has."""
        found = as_bytes(piece)
        end = self._at + len(found)
        if end > _size(self._areas):
            raise ValueError(f"the region has {_size(self._areas)} bytes; fed with {end}")
        for area in self._areas:
            first, last = max(area.offset_bytes, self._at), min(area.offset_bytes + area.size_bytes, end)
            if first < last:
                part = found[first - self._at : last - self._at]
                read(self._words, self._plan, area, part, first - area.offset_bytes, self._runs[area])
        self._at = end

    def findings(self) -> tuple[Finding, ...]:
        """Return what is wrong. Raises ValueError when a part of the region was not fed: it is not known to be good."""
        _fits(self._areas, self._at)
        return tuple(finding for area in self._areas for finding in self._of(area))

    def _of(self, area: Area) -> list[Finding]:
        def kind(run: Run) -> Kind:
            return kind_of(self._plan, area, settled(self._plan, area, run))

        return [self._finding(area, run) for run in together(self._words, area, self._runs[area], kind)]

    def _finding(self, area: Area, run: Run) -> Finding:
        run = settled(self._plan, area, run)
        kind = kind_of(self._plan, area, run)
        content = run.content if run.label == TAGGED else None
        offset = (
            0 if area.slot is None or area.part != "payload" else area.offset_bytes - self._plan.slot_offset(area.slot)
        )
        finding = Finding(
            kind=kind,
            region=area.region,
            part=area.part,
            slot=area.slot,
            offset_bytes=offset + run.first,
            size_bytes=run.end - run.first,
            word_offset_bytes=offset + run.word_at,
            expected=run.expected,
            found=run.found,
            found_epoch=content.epoch if content is not None else None,
            found_byte=area.start + run.first + content.shift if content is not None else None,
            displaced_bytes=content.shift if content is not None and content.epoch == area.epoch else None,
            bits=run.bits,
            byte=run.content.byte if run.content is not None else None,
            places=run.places,
            text="",
        )
        return replace(finding, text=tell(self._plan, area, run, finding))


def _size(areas: tuple[Area, ...]) -> int:
    return areas[-1].offset_bytes + areas[-1].size_bytes if areas else 0


def _fits(areas: tuple[Area, ...], size: int) -> None:
    if size != _size(areas):
        raise ValueError(f"the region has {_size(areas)} bytes; these are {size}")
