"""splitmix64 and its inverse on Python's integers: one word from (seed, epoch, index), and back.

    word = splitmix64(seed ^ (epoch << 48) ^ index)

The step is a bijection of 64-bit integers, so that a word found in the wrong place says where it belongs, and no two
words of one seed are equal: nothing repeats within 2**48 words of each of 65,536 epochs.

Source: G. L. Steele, D. Lea, C. H. Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014, with the
constants of S. Vigna's public-domain `splitmix64.c` (2015), of which this is the first output for a given state.
"""

from __future__ import annotations

__all__ = ["EPOCHS", "GAMMA", "INDEX_BITS", "MASK", "MIXES", "UNMIXES", "origin", "splitmix64", "unsplitmix64", "word"]

MASK = (1 << 64) - 1
INDEX_BITS = 48
EPOCHS = 1 << (64 - INDEX_BITS)
GAMMA = 0x9E3779B97F4A7C15

MIXES = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
UNMIXES = (pow(MIXES[0], -1, 1 << 64), pow(MIXES[1], -1, 1 << 64))


def splitmix64(state: int) -> int:
    """Return the first output of the generator whose state is `state`."""
    value = (state + GAMMA) & MASK
    value = ((value ^ (value >> 30)) * MIXES[0]) & MASK
    value = ((value ^ (value >> 27)) * MIXES[1]) & MASK
    return value ^ (value >> 31)


def unsplitmix64(output: int) -> int:
    """Return the state whose first output is `output`."""
    value = output ^ (output >> 31) ^ (output >> 62)
    value = (value * UNMIXES[1]) & MASK
    value ^= (value >> 27) ^ (value >> 54)
    value = (value * UNMIXES[0]) & MASK
    value ^= (value >> 30) ^ (value >> 60)
    return (value - GAMMA) & MASK


def word(seed: int, epoch: int, index: int) -> int:
    """Return the word at `index` (below 2**48) of `epoch` (below 2**16)."""
    return splitmix64(seed ^ (epoch << INDEX_BITS) ^ index)


def origin(seed: int, found: int) -> tuple[int, int]:
    """Return the (epoch, index) whose word `found` is. Every 64-bit integer has one, likely or not."""
    state = unsplitmix64(found) ^ seed
    return state >> INDEX_BITS, state & ((1 << INDEX_BITS) - 1)
