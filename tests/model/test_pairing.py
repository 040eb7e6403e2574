"""Places for wishes: held against trying everything."""

from __future__ import annotations

import itertools

from hypothesis import given, strategies as st

from pytest_gpucoexist.model.pairing import paired

WISHES = st.lists(st.lists(st.integers(0, 4), max_size=4, unique=True), max_size=5)


def most(wishes: list[list[int]]) -> int:
    """Count how many wishes can be met at once, by trying every way."""
    ways = itertools.product(*([*each, None] for each in wishes))
    given_ = ([place for place in way if place is not None] for way in ways)
    return max(len(places) for places in given_ if len(set(places)) == len(places))


@given(WISHES)
def test_as_many_as_possible_have_one_that_they_wished_for(wishes: list[list[int]]) -> None:
    holder = paired(wishes)
    assert all(place in wishes[which] for place, which in holder.items())
    assert len(set(holder.values())) == len(holder) == most(wishes)


@given(WISHES, st.lists(st.integers(0, 4), max_size=4, unique=True))
def test_a_later_wish_takes_no_place_away(wishes: list[list[int]], later: list[int]) -> None:
    assert set(paired(wishes).values()) <= set(paired([*wishes, later]).values())


def test_an_early_choice_does_not_block_a_later_one() -> None:
    assert paired([["a", "b"], ["a"]]) == {"b": 0, "a": 1}
