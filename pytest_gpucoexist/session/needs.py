"""What each test needs, by marks, fixtures, ini keys and hooks. Asked for every test, so it looks at little."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucoexist.session.each import EACH, restriction
from pytest_gpucoexist.session.fixture_needs import FIXTURE_NEEDS, implied_marks, our_fixtures
from pytest_gpucoexist.session.marks import MARK_LINES, MarkText, foreign_names, parse_lines, parse_mark_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pytest_gpucoexist.model.requirement import Need

__all__ = ["Needs"]

Spelled = tuple[str, tuple[Any, ...], dict[str, Any]]


class Needs:
    """The rules of one session that lead from a test to its need."""

    def __init__(self, config: pytest.Config) -> None:
        """Read the ini keys. Raises pytest.UsageError."""
        self._config = config
        self._mapped = parse_lines("gpu_marks", config.getini("gpu_marks"))
        self._doctests = parse_lines("gpu_doctests", config.getini("gpu_doctests"))
        self._cache: dict[Any, Need] = {}
        self._names: frozenset[str] = frozenset()
        self.refresh()

    def refresh(self) -> None:
        """Look again which marks are ours: a conftest may have registered some for the project."""
        foreign = foreign_names(self._config)
        names = frozenset(MARK_LINES) - foreign | self._mapped.keys()
        if names != self._names:
            self._names = names
            self._cache.clear()

    def select(self, items: Iterable[pytest.Item]) -> list[pytest.Item]:
        """Return the tests that may need a GPU. Costs about a microsecond for each that does not."""
        names = self._names
        marked_parents: dict[int, bool] = {}
        fixtures = FIXTURE_NEEDS.keys()
        asks_hook = bool(self._config.hook.pytest_gpucoexist_requirement.get_hookimpls())
        if asks_hook or self._doctests:
            return list(items)
        found = []
        parent: Any = None
        inherited = False
        for item in items:
            if item.parent is not parent:
                parent = item.parent
                inherited = self._inherits(parent, marked_parents)
            if inherited:
                found.append(item)
                continue
            for mark in item.own_markers:
                if mark.name in names:
                    found.append(item)
                    break
            else:
                if not fixtures.isdisjoint(getattr(item, "fixturenames", ())):
                    found.append(item)
        return found

    def of(self, item: pytest.Item) -> Need | None:
        """Return what a test needs, or None. Raises RequirementError."""
        spelled = list(self._spelled(item))
        if not spelled:
            return None
        from pytest_gpucoexist.model.requirement import combine, restrict

        narrowed = restriction(item) if not EACH.isdisjoint(getattr(item, "fixturenames", ())) else {}
        closest = "gpu_pair" in getattr(item, "fixturenames", ()) and "gpu_pair" in our_fixtures(item)
        try:
            key = (tuple((n, a, tuple(k.items())) for n, a, k in spelled), tuple(narrowed.items()), closest)
            known = self._cache.get(key)
        except TypeError:  # an argument that cannot be hashed, such as a list
            key, known = None, None
        if known is not None:
            return known
        need = combine(spelled, closest_pair=closest)
        if narrowed:
            need = restrict(need, **narrowed)
        if key is not None:
            self._cache[key] = need
        return need

    def _inherits(self, node: Any, known: dict[int, bool]) -> bool:
        if node is None:
            return False
        answer = known.get(id(node))
        if answer is None:
            names = self._names
            answer = any(mark.name in names for mark in node.own_markers) or self._inherits(node.parent, known)
            known[id(node)] = answer
        return answer

    def _spelled(self, item: pytest.Item) -> Iterator[Spelled]:
        for said in self._config.hook.pytest_gpucoexist_requirement(item=item):
            yield from _from_hook(said)
        for mark in item.iter_markers():
            if mark.name in self._names:
                mapped = self._mapped.get(mark.name)
                if mapped is None or mapped == [(mark.name, {})]:
                    yield mark.name, mark.args, dict(mark.kwargs)
                else:
                    yield from _plain(mapped)
        if self._doctests:
            yield from _plain(self._doctest(item))
        if not FIXTURE_NEEDS.keys().isdisjoint(getattr(item, "fixturenames", ())):
            yield from _plain(implied_marks(item))

    def _doctest(self, item: pytest.Item) -> Iterator[MarkText]:
        from _pytest.doctest import DoctestItem

        if isinstance(item, DoctestItem):
            from fnmatch import fnmatchcase

            path = item.nodeid.split("::")[0]
            for pattern, marks in self._doctests.items():
                if fnmatchcase(path, pattern):
                    yield from marks


def _plain(marks: Iterable[MarkText]) -> Iterator[Spelled]:
    for name, kwargs in marks:
        yield name, (), kwargs


def _from_hook(said: Any) -> Iterator[Spelled]:
    from pytest_gpucoexist.errors import RequirementError

    if isinstance(said, str):
        yield from _plain(parse_mark_text(said))
    elif isinstance(said, (pytest.Mark, pytest.MarkDecorator)):
        yield said.name, said.args, dict(said.kwargs)
    elif isinstance(said, (list, tuple)):
        for each in said:
            yield from _from_hook(each)
    elif said is not None:
        raise RequirementError(
            f"pytest_gpucoexist_requirement returned {said!r}: return a mark, its text such as 'cuda(count=2)', "
            "a list of these, or None"
        )
