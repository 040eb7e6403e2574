"""Check what a region holds after a transfer, and name what is wrong.

    write(plan.before("destination"), memory)
    ...
    for finding in check(plan.after("destination"), memory): ...

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
from pytest_gpucoexist.transfer.runs import read
from pytest_gpucoexist.transfer.telling import tell
from pytest_gpucoexist.transfer.words import Words, as_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.transfer.content import Run
    from pytest_gpucoexist.transfer.finding import Kind
    from pytest_gpucoexist.transfer.frame import Area, Contents

__all__ = ["Check", "check", "write"]


def write(contents: Contents, memory: Any, at: int = 0) -> None:
    """Write what a region must hold from its byte `at` on into memory that is all or a piece of it."""
    out = as_bytes(memory)
    _fits(contents, at + len(out))
    words = Words(contents.plan.seed)
    for area, first, end in _pieces(contents, at, at + len(out)):
        words.fill(out[first - at : end - at], area.epoch, area.start + first - area.offset_bytes)


def check(contents: Contents, memory: Any) -> tuple[Finding, ...]:
    """Compare memory with what a region must hold; return what is wrong, in order, and nothing when all is right."""
    checking = Check(contents)
    checking.feed(memory)
    return checking.findings()


class Check:
    """Checks a region piece by piece, for one that is read back through a smaller buffer. One thread uses it."""

    def __init__(self, contents: Contents) -> None:
        """Expect a region from its first byte on."""
        self._contents, self._plan = contents, contents.plan
        self._words = Words(self._plan.seed)
        self._runs: dict[Area, list[Run]] = {area: [] for area in contents.areas}
        self._at = 0

    def feed(self, piece: Any) -> None:
        """Compare the next bytes of the region. Raises ValueError when there are more than it has."""
        found, at = as_bytes(piece), self._at
        _fits(self._contents, at + len(found))
        for area, first, end in _pieces(self._contents, at, at + len(found)):
            read(
                self._words, self._plan, area, found[first - at : end - at], first - area.offset_bytes, self._runs[area]
            )
        self._at += len(found)

    def findings(self) -> tuple[Finding, ...]:
        """Return what is wrong. Raises ValueError when a part of the region was not fed: it is not known to be good."""
        if self._at != self._contents.size_bytes:
            raise ValueError(f"the region has {self._contents.size_bytes} bytes, of which {self._at} were compared")
        return tuple(finding for area in self._contents.areas for finding in self._of(area))

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
            region_offset_bytes=area.offset_bytes + run.first,
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


def _pieces(contents: Contents, at: int, to: int) -> Iterator[tuple[Area, int, int]]:
    """Yield the areas between two bytes of a region, with where in the region each piece begins and ends."""
    for area in contents.areas:
        first, end = max(area.offset_bytes, at), min(area.offset_bytes + area.size_bytes, to)
        if first < end:
            yield area, first, end


def _fits(contents: Contents, end: int) -> None:
    if end > contents.size_bytes:
        raise ValueError(f"the region has {contents.size_bytes} bytes; this memory would end at {end}")
