"""What each wrong word is: nearly the right one, one byte over and over, a word of a known stream, or unknown.

Words of a stream are recognised by inverting them, as they stand and then realigned by 1 to 7 bytes. Any 64-bit integer
is the word of some epoch and index, so a word counts as recognised only where chance is out of the question: it belongs
to this very transfer (7 epochs in 65,536) within the transfer's size, it stands at its own index, or its neighbour
continues it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pytest_gpucoexist.transfer.epochs import AFTER, ROLES
from pytest_gpucoexist.transfer.words import invert

if TYPE_CHECKING:
    from pytest_gpucoexist.transfer.frame import Plan

__all__ = ["CONSTANT", "FLIPPED", "FLIPPED_BITS", "TAGGED", "UNKNOWN", "Labels", "Window", "label", "popcounts"]

UNKNOWN, FLIPPED, CONSTANT, TAGGED = range(4)

FLIPPED_BITS = 8
"""So many wrong bits in a word are flipped bits. A random word is that close once in 3.5e9 (sum of C(64, k), k ≤ 8)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Whole words of a stream, as they should be and as found, and the bytes around them.

    `first` is the index of the first in its stream. Bytes from `real_first` to `real_end` are of the buffer `raw`,
    whose byte `origin` (negative when it lies before) is byte 0 of the window; the others were made right.
    """

    expected: NDArray[np.uint64]
    found: NDArray[np.uint64]
    first: int
    real_first: int
    real_end: int
    raw: NDArray[np.uint8]
    origin: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """Of each wrong word: its place in the window, its label and, by label, what of.

    A tagged word's 8 bytes begin `inner` bytes into it, and are the stream `epoch` at `shift` bytes from their place.
    """

    places: NDArray[np.int64]
    label: NDArray[np.int64]
    epoch: NDArray[np.int64]
    shift: NDArray[np.int64]
    inner: NDArray[np.int64]
    byte: NDArray[np.int64]

    def breaks(self) -> NDArray[np.int64]:
        """Return where a word does not continue the one before it."""
        changed = np.diff(self.places) != 1
        for column in (self.label, self.epoch, self.shift, self.byte):
            changed |= np.diff(column) != 0
        return np.flatnonzero(changed) + 1


def popcounts(words: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Count the ones of each word: in pairs of bits, in fours, in bytes, and these summed by a product.

    Source: H. S. Warren, "Hacker's Delight", 5-1. NumPy has a function for it from 2.0 on.
    """
    value = words - ((words >> np.uint64(1)) & np.uint64(0x5555555555555555))
    value = (value & np.uint64(0x3333333333333333)) + ((value >> np.uint64(2)) & np.uint64(0x3333333333333333))
    value = (value + (value >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    ones: NDArray[np.int64] = ((value * np.uint64(0x0101010101010101)) >> np.uint64(56)).astype(np.int64)
    return ones


def label(window: Window, plan: Plan) -> Labels:
    """Label the wrong words of a window."""
    places = np.flatnonzero(window.expected != window.found)
    found = window.found[places]
    count = len(places)
    labels = Labels(places=places, **{name: np.zeros(count, np.int64) for name in Labels.__slots__[1:]})
    whole = (8 * places >= window.real_first) & (8 * places + 8 <= window.real_end)
    repeated = found == (found & np.uint64(0xFF)) * np.uint64(0x0101010101010101)
    constant = whole & repeated
    labels.label[constant] = CONSTANT
    labels.byte[constant] = (found[constant] & np.uint64(0xFF)).astype(np.int64)
    labels.label[~constant & (popcounts(found ^ window.expected[places]) <= FLIPPED_BITS)] = FLIPPED
    for inner in range(8):
        _recognise(window, plan, labels, inner)
    return labels


def _recognise(window: Window, plan: Plan, labels: Labels, inner: int) -> None:
    """Label those of the unknown words that are words of a stream when their bytes are taken `inner` bytes later."""
    at = window.origin + 8 * labels.places + inner
    rest = np.flatnonzero((labels.label == UNKNOWN) & (at >= 0) & (at + 8 <= len(window.raw)))
    if not len(rest):
        return
    first, last = at[rest[0]], at[rest[-1]]
    here = np.array(window.raw[first : last + 8]).view("<u8")[(at[rest] - first) // 8]
    epochs, indices = invert(plan.seed, here)
    places = labels.places[rest]
    shifts = 8 * indices - (8 * (window.first + places) + inner)
    same = (np.diff(places) == 1) & (np.diff(epochs) == 0) & (np.diff(shifts) == 0)
    known = (shifts == 0) | _own(plan, epochs, indices)
    known[1:] |= same
    known[:-1] |= same
    taken = rest[known]
    labels.label[taken] = TAGGED
    labels.epoch[taken] = epochs[known]
    labels.shift[taken] = shifts[known]
    labels.inner[taken] = inner


def _own(plan: Plan, epochs: NDArray[np.int64], indices: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether words are of this transfer and its sizes."""
    longest = max(plan.size_bytes, plan.region_bytes("ring"), plan.region_bytes("destination"))
    places = 8 * indices
    inside = (places & (AFTER - 1) <= longest) & (places < 2 * AFTER)
    return np.asarray(inside & (epochs >> 3 == plan.transfer) & (epochs & (ROLES - 1) != ROLES - 1))
