"""What a test needs, by marks, fixtures, ini keys and hooks. Asked for tests that may need a GPU, see `selecting`."""

from __future__ import annotations

from operator import is_
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucoexist.session.each import restriction
from pytest_gpucoexist.session.fixture_needs import FIXTURE_NEEDS, implied_marks, our_fixtures
from pytest_gpucoexist.session.marks import MARK_LINES, foreign_names
from pytest_gpucoexist.session.marktext import MarkText, parse_lines, parse_mark_text
from pytest_gpucoexist.session.selecting import marked

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pytest_gpucoexist.model.requirement import Need

__all__ = ["Needs"]

Spelled = tuple[str, tuple[Any, ...], "Mapping[str, Any]"]


class Needs:
    """The rules of one session that lead from a test to its need."""

    def __init__(self, config: pytest.Config) -> None:
        """Read the ini keys. Raises pytest.UsageError."""
        self._config = config
        self._mapped = parse_lines("gpu_marks", config.getini("gpu_marks"))
        self._doctests = parse_lines("gpu_doctests", config.getini("gpu_doctests"))
        self._cache: dict[Any, Need] = {}
        self._names: frozenset[str] = frozenset()
        self._asks_hook = False
        # By id: hashing a node hashes its id text. The session keeps every collector alive.
        self._parents: dict[int, list[Spelled]] = {}
        self._last: tuple[tuple[Any, ...], Need | None] = ((), None)
        self.refresh()

    def refresh(self) -> None:
        """Look again which marks are ours: a conftest may have registered some for the project."""
        foreign = foreign_names(self._config)
        names = frozenset(MARK_LINES) - foreign | self._mapped.keys()
        self._asks_hook = bool(self._config.hook.pytest_gpucoexist_requirement.get_hookimpls())
        self._parents.clear()
        self._last = ((), None)
        if names != self._names:
            self._names = names
            self._cache.clear()

    def select(self, items: Iterable[pytest.Item]) -> list[pytest.Item]:
        """Return the tests that may need a GPU."""
        if self._asks_hook or self._doctests:
            return list(items)
        return marked(items, self._names)

    def of(self, item: pytest.Item) -> Need | None:
        """Return what a test needs, or None. Raises RequirementError."""
        names = getattr(item, "fixturenames", ())
        # The runs of a parametrized test share these objects; comparing them costs a fifth of reading their marks.
        shared = (item.parent, names, *item.own_markers)
        before, need = self._last
        if len(before) == len(shared) and all(map(is_, before, shared)):
            return need
        plain = not self._asks_hook and not self._doctests and FIXTURE_NEEDS.keys().isdisjoint(names)
        need = self._of(item, names)
        if plain:
            self._last = (shared, need)
        return need

    def _of(self, item: pytest.Item, names: Iterable[str]) -> Need | None:
        spelled = self._own(item.own_markers) + self._inherited(item.parent)
        if self._asks_hook:
            said = item.ihook.pytest_gpucoexist_requirement(item=item)
            spelled = list(_from_hook(said)) + spelled
        if self._doctests:
            spelled += _plain(self._doctest(item))
        narrowed: Mapping[str, Any] = {}
        closest = False
        if not FIXTURE_NEEDS.keys().isdisjoint(names):
            spelled += _plain(implied_marks(item))
            narrowed = restriction(item)
            closest = "gpu_pair" in our_fixtures(item)
        if not spelled:
            return None
        try:
            key = (*[(name, args, *kwargs.items()) for name, args, kwargs in spelled], *narrowed.items(), closest)
            known = self._cache.get(key)
        except TypeError:  # an argument that cannot be hashed, such as a list
            key, known = (), None
        if known is not None:
            return known
        from pytest_gpucoexist.model.requirement import combine, restrict

        need = combine(spelled, closest_pair=closest)
        if narrowed:
            need = restrict(need, **narrowed)
        if key:
            self._cache[key] = need
        return need

    def _own(self, marks: Iterable[pytest.Mark]) -> list[Spelled]:
        """Translate what stands on one node into our marks."""
        found: list[Spelled] = []
        for mark in marks:
            if mark.name in self._names:
                mapped = self._mapped.get(mark.name)
                if mapped is None or mapped == [(mark.name, {})]:
                    found.append((mark.name, mark.args, mark.kwargs))
                else:
                    found += _plain(mapped)
        return found

    def _inherited(self, node: Any) -> list[Spelled]:
        """Return the marks on a node and above it, the closest first. Asked once per parent, not per test."""
        if node is None:
            return []
        known = self._parents.get(id(node))
        if known is None:
            known = self._own(node.own_markers) + self._inherited(node.parent)
            self._parents[id(node)] = known
        return known

    def _doctest(self, item: pytest.Item) -> Iterator[MarkText]:
        from _pytest.doctest import DoctestItem

        if isinstance(item, DoctestItem):
            from fnmatch import fnmatchcase

            path = item.nodeid.split("::")[0]
            for pattern, marks in self._doctests.items():
                if fnmatchcase(path, pattern):
                    yield from marks


def _plain(marks: Iterable[MarkText]) -> list[Spelled]:
    return [(name, (), kwargs) for name, kwargs in marks]


def _from_hook(said: Any) -> Iterator[Spelled]:
    from pytest_gpucoexist.errors import RequirementError

    if isinstance(said, str):
        yield from _plain(parse_mark_text(said))
    elif isinstance(said, (pytest.Mark, pytest.MarkDecorator)):
        yield said.name, said.args, said.kwargs
    elif isinstance(said, (list, tuple)):
        for each in said:
            yield from _from_hook(each)
    elif said is not None:
        raise RequirementError(
            f"pytest_gpucoexist_requirement returned {said!r}: return a mark, its text such as 'cuda(count=2)', "
            "a list of these, or None"
        )
