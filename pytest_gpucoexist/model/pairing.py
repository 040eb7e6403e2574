"""Giving each of several wishes a place of its own, by augmenting paths (Kuhn)."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

__all__ = ["paired"]

Place = TypeVar("Place", bound="Hashable")


def paired(wishes: Sequence[Sequence[Place]]) -> dict[Place, int]:
    """Return the index of the wish that each place goes to; `wishes` are the places that would do, preferred first.

    As many wishes as possible get one, so a choice made early never blocks a later one. A wish that has a place keeps
    one, if perhaps another.
    """
    holder: dict[Place, int] = {}

    def place(which: int, seen: set[Place]) -> bool:
        for at in wishes[which]:
            if at not in seen:
                seen.add(at)
                if at not in holder or place(holder[at], seen):
                    holder[at] = which
                    return True
        return False

    for which in range(len(wishes)):
        place(which, set())
    return holder
