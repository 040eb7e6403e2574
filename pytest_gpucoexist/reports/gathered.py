"""Test ids for people: the parameters of one function, where nothing tells them apart, become one line."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

__all__ = ["function_of", "gathered"]

FEW = 3
"""Tests of one function that are still named one by one."""

T = TypeVar("T")


def function_of(nodeid: str) -> str:
    """Take off the parameters: `a.py::test[x-1]` is `a.py::test`."""
    module, colons, name = nodeid.partition("::")
    return f"{module}{colons}{name.partition('[')[0]}"


def gathered(
    items: Iterable[T], nodeid: Callable[[T], str], alike: Callable[[T], Hashable] = lambda _item: None
) -> list[tuple[str, list[T]]]:
    """Name tests, each with the items that the name stands for, in the order of their first ones.

    More than `FEW` tests of one function that are `alike` share a name: `a.py::test[…] (80 tests)`.
    """
    groups: dict[tuple[str, Hashable], list[T]] = {}
    for item in items:
        groups.setdefault((function_of(nodeid(item)), alike(item)), []).append(item)
    named: list[tuple[str, list[T]]] = []
    for (function, _alike), group in groups.items():
        if len(group) > FEW:
            named.append((f"{function}[…] ({len(group):,} tests)", group))
        else:
            named += [(nodeid(item), [item]) for item in group]
    return named
