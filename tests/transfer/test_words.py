"""The words: known answers of the published algorithm, there and back, streams of any place and length."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given, strategies as st

import tests.transfer.needs_numpy  # noqa: F401 - first: the others import NumPy
from pytest_gpucoexist.transfer import splitmix
from pytest_gpucoexist.transfer.labels import popcounts
from pytest_gpucoexist.transfer.words import BLOCK_BYTES, STREAM_BYTES, Words, as_bytes, invert

SEEDS = st.integers(0, splitmix.MASK)
EPOCHS = st.integers(0, splitmix.EPOCHS - 1)
INDICES = st.integers(0, (1 << splitmix.INDEX_BITS) - 1)

# Outputs 1 to 5 of the generator whose state is 1234567 (Rosetta Code, "Pseudo-random numbers/Splitmix64", which gives
# them as the algorithm's test), and 1 to 3 of state 0, as S. Vigna's splitmix64.c prints them.
PUBLISHED = {
    1234567: (
        *(6457827717110365317, 3203168211198807973, 9817491932198370423),
        *(4593380528125082431, 16408922859458223821),
    ),
    0: (0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F),
}


@pytest.mark.parametrize(("state", "outputs"), PUBLISHED.items())
def test_known_answers(state: int, outputs: tuple[int, ...]) -> None:
    states = [(state + number * splitmix.GAMMA) & splitmix.MASK for number in range(len(outputs))]
    assert tuple(map(splitmix.splitmix64, states)) == outputs
    assert [splitmix.unsplitmix64(output) for output in outputs] == states


def test_a_word_is_the_output_of_seed_epoch_and_index() -> None:
    assert splitmix.word(1234567, 0, 0) == PUBLISHED[1234567][0]
    assert splitmix.word(1234567 ^ (9 << 48) ^ 77, 9, 77) == PUBLISHED[1234567][0]


@given(SEEDS, EPOCHS, INDICES)
def test_a_word_says_where_it_belongs(seed: int, epoch: int, index: int) -> None:
    assert splitmix.origin(seed, splitmix.word(seed, epoch, index)) == (epoch, index)


def bytes_of(seed: int, epoch: int, start: int, length: int) -> bytes:
    """Make a piece of a stream word by word, as the definition says."""
    words = range(start // 8, (start + length + 7) // 8)
    whole = b"".join(splitmix.word(seed, epoch, index).to_bytes(8, "little") for index in words)
    return whole[start % 8 : start % 8 + length]


# Where blocks begin and end, and high up in the stream.
PLACES = st.one_of(
    st.integers(0, 40),
    st.integers(BLOCK_BYTES - 40, BLOCK_BYTES + 40),
    st.integers(0, STREAM_BYTES - 400),
    st.just(STREAM_BYTES - 300),
)


@given(SEEDS, EPOCHS, PLACES, st.integers(0, 300), st.integers(0, 9))
@example(5, 1, BLOCK_BYTES - 3, 7, 1)
def test_a_stream_is_its_words_from_any_byte_for_any_length(
    seed: int, epoch: int, start: int, length: int, offset: int
) -> None:
    memory = bytearray(b"\xa5" * (offset + length + 9))
    Words(seed).fill(memoryview(memory)[offset : offset + length], epoch, start)
    assert memory == b"\xa5" * offset + bytes_of(seed, epoch, start, length) + b"\xa5" * 9
    assert list(Words(seed).differing(memoryview(memory)[offset : offset + length], epoch, start)) == []


@pytest.mark.parametrize("low", [0, 5, 8191])
@pytest.mark.parametrize("top", [1, 2, 0xABCDEF])
def test_words_are_right_where_the_sum_carries_into_the_bits_that_a_block_has_in_common(top: int, low: int) -> None:
    """A block where (state + gamma) >> 30 is not the same for all its words: about one in 131,072 is so."""
    seed = ((top << 30) - 8192 - splitmix.GAMMA // 8192 * 8192) & splitmix.MASK | low
    sums = {((seed ^ index) + splitmix.GAMMA & splitmix.MASK) >> 30 for index in range(8192)}
    assert len(sums) == 2
    assert Words(seed).read(0, 0, BLOCK_BYTES).tobytes() == bytes_of(seed, 0, 0, BLOCK_BYTES)


@given(SEEDS, EPOCHS, st.integers(0, 1 << 40))
def test_words_in_arrays_are_inverted_like_single_ones(seed: int, epoch: int, index: int) -> None:
    found = Words(seed).read(epoch, 8 * index, 80).view("<u8")
    epochs, indices = invert(seed, found)
    assert epochs.tolist() == [epoch] * 10
    assert indices.tolist() == list(range(index, index + 10))


def test_blocks_that_differ_are_named_and_no_others() -> None:
    words = Words(77)
    start = 8 * 1000 + 3
    memory = words.read(4, start, 5 * BLOCK_BYTES + 9)
    for at in (0, BLOCK_BYTES - start - 1, 2 * BLOCK_BYTES, 5 * BLOCK_BYTES + 8):
        memory[at] ^= 1
    cuts = [0, *(number * BLOCK_BYTES - start for number in range(1, 6)), 5 * BLOCK_BYTES + 9]
    blocks = [(a, b) for a, b in pairwise(cuts) if (memory[a:b] != words.read(4, start + a, b - a)).any()]
    assert list(words.differing(memory, 4, start)) == blocks
    assert len(blocks) == 3  # two of the four are in the first


def test_nothing_repeats_at_two_mebibytes() -> None:
    words = Words(1)
    assert (words.read(0, 0, 1 << 16).view("<u8") != words.read(0, 2 << 20, 1 << 16).view("<u8")).all()


def test_what_has_no_meaning_is_refused() -> None:
    with pytest.raises(ValueError, match="64 bits"):
        Words(1 << 64)
    words = Words(0)
    with pytest.raises(ValueError, match="16 bits"):
        words.read(1 << 16, 0, 8)
    with pytest.raises(ValueError, match="asked for 8 from -1"):
        words.read(0, -1, 8)
    with pytest.raises(ValueError, match="strides"):
        as_bytes(words.read(0, 0, 64)[::2])
    assert len(as_bytes(b"")) == 0


@given(st.lists(st.integers(0, splitmix.MASK), min_size=1, max_size=20))
@example([0, splitmix.MASK, 1, 1 << 63])
def test_ones_are_counted(values: list[int]) -> None:
    words = as_bytes(b"".join(value.to_bytes(8, "little") for value in values)).view("<u8")
    assert popcounts(words).tolist() == [value.bit_count() for value in values]
