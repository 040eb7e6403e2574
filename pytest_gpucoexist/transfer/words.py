"""Streams of words in memory: written and compared at the speed of a core, from any byte of a stream, of any length.

A stream is the words of one (seed, epoch), little-endian, one after the other; a place in it is a byte, so that a
buffer may begin and end inside a word. Words are made in blocks that stay in the cache, in place, with scratch of
three blocks that is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pytest_gpucoexist.transfer.splitmix import EPOCHS, GAMMA, INDEX_BITS, MASK, MIXES, UNMIXES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

__all__ = ["BLOCK_BYTES", "STREAM_BYTES", "Words", "as_bytes", "invert"]

BLOCK_BYTES = 1 << 16  # two blocks of scratch and one of the buffer stay in a second-level cache; a first one is tight
STREAM_BYTES = 8 << INDEX_BITS
_WORD = np.dtype("<u8")
_BLOCK_WORDS = BLOCK_BYTES // 8


def as_bytes(buffer: Any) -> NDArray[np.uint8]:
    """Show the memory of a contiguous buffer (an array, a bytearray, an mmap, a ctypes array) as bytes, uncopied."""
    view = memoryview(buffer)
    if not view.contiguous:
        raise ValueError("words lie in contiguous memory; this buffer has strides")
    return np.frombuffer(view, np.uint8) if view.nbytes else np.empty(0, np.uint8)


def invert(seed: int, found: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return of each word the epoch and the index that it belongs to."""
    value = found ^ (found >> np.uint64(31)) ^ (found >> np.uint64(62))
    value *= np.uint64(UNMIXES[1])
    value ^= (value >> np.uint64(27)) ^ (value >> np.uint64(54))
    value *= np.uint64(UNMIXES[0])
    value ^= (value >> np.uint64(30)) ^ (value >> np.uint64(60))
    value -= np.uint64(GAMMA)
    value ^= np.uint64(seed)
    epochs = (value >> np.uint64(INDEX_BITS)).astype(np.int64)
    return epochs, (value & np.uint64((1 << INDEX_BITS) - 1)).astype(np.int64)


class Words:
    """The words of one seed. It keeps scratch of 192 KiB: one thread uses it at a time."""

    def __init__(self, seed: int) -> None:
        """Take a seed of 64 bits."""
        if not 0 <= seed <= MASK:
            raise ValueError(f"a seed has 64 bits; this is {seed:#x}")
        self.seed = seed
        self._low = np.arange(_BLOCK_WORDS, dtype=np.uint64) ^ np.uint64(seed % _BLOCK_WORDS)
        self._words = np.empty(_BLOCK_WORDS, _WORD)
        self._shifted = np.empty(_BLOCK_WORDS, np.uint64)

    def fill(self, buffer: Any, epoch: int, start: int = 0) -> None:
        """Write the bytes of `epoch`'s stream from byte `start` on into a writable buffer, to its end."""
        out = as_bytes(buffer)
        for at, end in _blocks(start, len(out), epoch):
            part, place = out[at:end], start + at
            if place % 8 or len(part) % 8:
                part[:] = self._block(epoch, place, len(part))
            else:
                self._make(epoch, place // 8, part.view(_WORD))

    def read(self, epoch: int, start: int, length: int) -> NDArray[np.uint8]:
        """Return bytes of a stream in new memory."""
        out = np.empty(length, np.uint8)
        self.fill(out, epoch, start)
        return out

    def differing(self, buffer: Any, epoch: int, start: int = 0) -> Iterator[tuple[int, int]]:
        """Yield (first byte, end) of each block of a buffer that does not hold the stream from byte `start` on.

        Blocks begin at multiples of 64 KiB of the stream, save the first. It can be left early.
        """
        found = as_bytes(buffer)
        for at, end in _blocks(start, len(found), epoch):
            if not np.array_equal(self._block(epoch, start + at, end - at), found[at:end]):
                yield at, end

    def _block(self, epoch: int, place: int, length: int) -> NDArray[np.uint8]:
        """Make bytes that lie in one block of the stream; they last until the next call."""
        first = place // 8
        words = self._words[: (place + length + 7) // 8 - first]
        self._make(epoch, first, words)
        skip = place - 8 * first
        return words.view(np.uint8)[skip : skip + length]

    def _make(self, epoch: int, first: int, out: NDArray[np.uint64]) -> None:
        """Make the words from `first` on, all of one block, into `out`.

        With the block's own number taken out, state ^ index is a sum: low[j] + high. Its upper 34 bits are the same for
        the whole block, unless the sum carries into them: then x >> 30 is one number, and a pass over the block less.
        """
        inside = first % _BLOCK_WORDS
        count = len(out)
        high = self.seed ^ (epoch << INDEX_BITS) ^ (first - inside)
        high = (high - high % _BLOCK_WORDS + GAMMA) & MASK
        value, shifted = self._words[:count], self._shifted[:count]
        np.add(self._low[inside : inside + count], np.uint64(high), out=value)
        if high % (1 << 30) + _BLOCK_WORDS <= 1 << 30:
            np.bitwise_xor(value, np.uint64(high >> 30), out=value)
        else:
            np.right_shift(value, np.uint64(30), out=shifted)
            np.bitwise_xor(value, shifted, out=value)
        np.multiply(value, np.uint64(MIXES[0]), out=value)
        np.right_shift(value, np.uint64(27), out=shifted)
        np.bitwise_xor(value, shifted, out=value)
        np.multiply(value, np.uint64(MIXES[1]), out=value)
        np.right_shift(value, np.uint64(31), out=shifted)
        np.bitwise_xor(value, shifted, out=out)


def _blocks(start: int, length: int, epoch: int) -> Iterator[tuple[int, int]]:
    """Cut `length` bytes of a stream where its blocks begin, as places in the buffer."""
    if not 0 <= epoch < EPOCHS:
        raise ValueError(f"an epoch has 16 bits; this is {epoch}")
    if start < 0 or start + length > STREAM_BYTES:
        raise ValueError(f"a stream has bytes 0 to {STREAM_BYTES}; asked for {length} from {start} on")
    at = 0
    while at < length:
        end = min(length, at + BLOCK_BYTES - (start + at) % BLOCK_BYTES)
        yield at, end
        at = end
