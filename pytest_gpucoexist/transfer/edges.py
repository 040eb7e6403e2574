"""Where a wrong content begins and ends, to the byte: runs of words with one label, and what is at their edges.

Faults begin inside words. What explains a run is therefore followed beyond its whole words for as long as it predicts
the bytes that are there; what then remains at an edge is explained by its neighbours, or by what may well be there.
"""

from __future__ import annotations

from bisect import bisect
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from pytest_gpucoexist.transfer.candidates import candidates
from pytest_gpucoexist.transfer.content import NEAR, Content, Run
from pytest_gpucoexist.transfer.labels import CONSTANT, FLIPPED, FLIPPED_BITS, TAGGED, UNKNOWN, label, popcounts
from pytest_gpucoexist.transfer.words import STREAM_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from pytest_gpucoexist.transfer.frame import Area, Plan
    from pytest_gpucoexist.transfer.labels import Labels, Window
    from pytest_gpucoexist.transfer.words import Words

__all__ = ["Reading"]

_KEYS = 64  # different contents of a block that are told apart when it has very many runs
_PAGE = 4096


class Reading:
    """One window while its runs are found. Bytes are counted from the window's first; runs come out in the area's."""

    def __init__(self, words: Words, plan: Plan, area: Area, window: Window) -> None:
        self.words, self.plan, self.area, self.window = words, plan, area, window
        self.found, self.expected = window.found.view(np.uint8), window.expected.view(np.uint8)
        self.open = self.found != self.expected  # wrong, and not yet explained
        self.base = 8 * window.first - area.start  # the area's byte that is byte 0 here

    def all_of(self, content: Content) -> Run | None:
        """Return the run of a content that is found in the whole window."""
        first, end = self.window.real_first, self.window.real_end
        return (
            self._outside(self._followed(content, first, end)) if self._predicted(content, first, end).all() else None
        )

    def runs(self, many: int) -> list[Run]:
        """Return the runs in order; when there are more than `many`, one of all that are alike."""
        labels = label(self.window, self.plan)
        edges = [0, *labels.breaks().tolist(), len(labels.places)]
        if len(edges) - 1 > many:
            return [self._outside(run) for run in self._alike(labels)]
        spans = [self._span(labels, one, after - 1) for one, after in pairwise(edges)]
        explained = [self._followed(content, low, high) for content, low, high in spans if content is not None]
        for run in explained:
            self.open[run.low : run.high] = False
        runs = [*explained, *self._left(labels.places, explained)]
        return sorted((self._outside(run) for run in runs), key=lambda run: run.first)

    def _span(self, labels: Labels, one: int, last: int) -> tuple[Content | None, int, int]:
        content = self._content(labels, one)
        first, end = int(labels.places[one]), int(labels.places[last]) + 1
        return content, 8 * first + int(labels.inner[one]), 8 * end + int(labels.inner[last])

    def _content(self, labels: Labels, one: int) -> Content | None:
        if labels.label[one] == TAGGED:
            return Content(epoch=int(labels.epoch[one]), shift=int(labels.shift[one]))
        return Content(byte=int(labels.byte[one])) if labels.label[one] == CONSTANT else None

    def _alike(self, labels: Labels) -> Iterator[Run]:
        """Make one run of all that are the same, wherever they are; of an epoch, if its words are scattered."""
        groups = (labels.label << 32) | (labels.epoch << 8) | labels.byte
        displaced = groups * (1 << 20 | 1) + labels.shift
        if len(np.unique(displaced)) <= _KEYS:
            groups = displaced
        begins = np.ones(len(groups), np.bool_)
        begins[1:] = (np.diff(labels.places) != 1) | (np.diff(groups) != 0)
        for group in np.unique(groups):
            own = np.flatnonzero(groups == group)
            words = labels.places[own]
            run = self._trimmed(8 * int(words[0]), 8 * int(words[-1]) + 8)
            kind = int(labels.label[own[0]])
            bits = int(popcounts(self.window.found[words] ^ self.window.expected[words]).sum())
            yield replace(
                run,
                label=kind,
                content=self._content(labels, int(own[0])),
                bits=bits if kind == FLIPPED else 0,
                places=int(begins[own].sum()),
            )

    def _trimmed(self, low: int, high: int) -> Run:
        """Make a run of the wrong bytes between two places, of which nothing is known."""
        wrong = np.flatnonzero(self.found[low:high] != self.expected[low:high])
        first, end = low + int(wrong[0]), low + int(wrong[-1]) + 1
        return Run(first=first, end=end, low=first, high=end, label=UNKNOWN)

    def _predicted(self, content: Content, low: int, high: int) -> NDArray[np.bool_]:
        """Whether a content is what is found, for each byte from `low` to `high`."""
        found = self.found[low:high]
        if content.byte is not None:
            return np.asarray(found == content.byte)
        place = 8 * self.window.first + low + content.shift
        first, end = max(0, -place), min(high - low, STREAM_BYTES - place)
        same = np.zeros(high - low, np.bool_)
        if first < end:
            same[first:end] = self.words.read(content.epoch, place + first, end - first) == found[first:end]
        return same

    def _followed(self, content: Content, low: int, high: int) -> Run:
        """Follow a content beyond the bytes from `low` to `high`, which are it."""
        low, high = max(low, self.window.real_first), min(high, self.window.real_end)
        before = self._predicted(content, max(self.window.real_first, low - NEAR), low)
        after = self._predicted(content, high, min(self.window.real_end, high + NEAR))
        low -= len(before) if before.all() else int(np.argmin(before[::-1]))
        high += len(after) if after.all() else int(np.argmin(after))
        run = self._trimmed(low, high)
        return replace(run, low=low, high=high, label=TAGGED if content.byte is None else CONSTANT, content=content)

    def _left(self, places: NDArray[np.int64], explained: list[Run]) -> Iterator[Run]:
        """Explain what no whole word told: bits flipped, ends of what is beside them, what is too short for a word.

        Wrong words in a row are one: what has few wrong bits beside what has many is its edge.
        """
        bits = popcounts((self.found * self.open).view(np.uint64) ^ (self.expected * self.open).view(np.uint64))
        places = places[bits[places] > 0]
        firsts = [run.first for run in explained]
        for group in np.split(places, np.flatnonzero(np.diff(places) != 1) + 1) if len(places) else ():
            few = bool((bits[group] <= FLIPPED_BITS).all())
            low, high = 8 * int(group[0]), 8 * int(group[-1]) + 8
            wrong = np.flatnonzero(self.open[low:high])
            first, end = low + int(wrong[0]), low + int(wrong[-1]) + 1
            run = Run(first=first, end=end, low=first, high=end, label=FLIPPED if few else UNKNOWN)
            if few:
                run = replace(run, bits=int(bits[group].sum()))
            if end - first > NEAR:
                yield run
                continue
            run = replace(run, bytes_found=self.found[first:end].tobytes())
            at = bisect(firsts, first)
            yield from self._within(run, explained[max(0, at - 1) : at + 1]) or [self._short(run) or run]

    def _within(self, run: Run, explained: list[Run]) -> list[Run]:
        """Take a run for what is beside it with flipped bits, where it is nearer to that than to what is expected.

        Returns both, the content and the flipped bits in it; nothing when it is not so.
        """
        low, high = run.first // 8 * 8, -(-run.end // 8) * 8
        low, high = max(low, self.window.real_first), min(high, self.window.real_end)
        wrong = _ones(self.found[low:high] ^ self.expected[low:high])
        for other in explained:
            if other.content is None or other.high < low - 8 or other.low > high + 8:
                continue
            place = 8 * self.window.first + low + other.content.shift
            if not 0 <= place < STREAM_BYTES - NEAR - 8:
                continue
            there = np.full(high - low, other.content.byte or 0, np.uint8)
            if other.content.byte is None:
                there = self.words.read(other.content.epoch, place, high - low)
            bits = _ones(there ^ self.found[low:high])
            if not 0 < bits <= min(wrong - 1, FLIPPED_BITS):
                continue
            on = replace(run, label=other.label, content=other.content, bits=0, bytes_found=b"")
            at = low + np.flatnonzero((there != self.found[low:high]) & (self.found != self.expected)[low:high])
            if not len(at):
                return [on]  # the flip has made it right
            first, end = int(at[0]), int(at[-1]) + 1
            flipped = Run(first=first, end=end, low=first, high=end, label=FLIPPED, within=other.content, bits=bits)
            return [on, flipped]
        return []

    def _short(self, run: Run) -> Run | None:
        """Take a short run for what may well be in its place, if that is just what is there and not there by chance."""
        for content in candidates(self.plan, self.area, run.first + self.base, run.bytes_found):
            if self._predicted(content, run.first, run.end).all():
                told = self._followed(content, run.first, run.end)
                if self._likely(run, told):
                    return told
        return None

    def _likely(self, run: Run, told: Run) -> bool:
        """Whether three bytes or an edge, where copies begin and end, make it likely that a content is what it seems.

        One or two wrong bits are flipped bits, unless they are a whole chunk, end a prefill, or are next to a payload.
        """
        low, high = told.low + self.base, told.high + self.base
        if run.bits in {1, 2}:
            prefill = told.content is not None and told.content.epoch == self.area.under_epoch
            beside = {"before": high == self.area.size_bytes, "payload": False, "after": low == 0}[self.area.part]
            return beside or (self._is_edge(high) and (prefill or self._is_edge(low)))
        return run.end - run.first >= 3 or any(
            self._is_edge(at) for at in (low, high, told.first + self.base, told.end + self.base)
        )

    def _is_edge(self, at: int) -> bool:
        return at in {0, self.area.size_bytes} or at % _PAGE == 0

    def _outside(self, run: Run) -> Run:
        at = run.first // 8
        return replace(
            run,
            first=run.first + self.base,
            end=run.end + self.base,
            low=run.low + self.base,
            high=run.high + self.base,
            word_at=8 * at + self.base,
            expected=int(self.window.expected[at]),
            found=int(self.window.found[at]),
        )


def _ones(different: NDArray[np.uint8]) -> int:
    return int.from_bytes(different.tobytes(), "little").bit_count()
