"""Which tests of a collection stay together on a worker: those that share what would have to be set up once more.

That is, by rank: an `xdist_group`, which is never split; a device that is held for a scope (`class_gpu` and its like,
`--gpu-lease`); any fixture of a class, a module or a package, autouse and xunit's own included. Fixtures of the whole
session make no unit: each worker sets them up once in any case.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucoexist.session.choices import scope_id, wider_fixtures
from pytest_gpucoexist.session.fixture_needs import WIDER_SCOPES

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["UnitNames", "unit_names"]

_RANKS = {"function": 0, "class": 1, "module": 2, "package": 3}
_LEASED = {"class": "class_gpu", "module": "module_gpu", "session": "session_gpu", "worker": "session_gpu"}

UnitNames = tuple["str | None", bool, bool]
"""Of a test: its unit, whether that may be split, and whether devices are held for it between its tests."""


def unit_names(items: Sequence[pytest.Item], gpu_items: Sequence[pytest.Item], lease: str) -> list[UnitNames]:
    """Name the unit of each test. `lease` is `--gpu-lease`, which is about the tests that need a GPU."""
    found = _Finder()
    needing = {id(item) for item in gpu_items}
    return [
        found.unit(item, _LEASED.get(lease) if id(item) in needing else None, id(item) in needing) for item in items
    ]


class _Finder:
    """Looks up once what many tests share: marks of a parent, fixtures of the runs of a parametrized test."""

    def __init__(self) -> None:
        self._groups: dict[int, frozenset[str]] = {}
        self._widest: dict[int, str] = {}

    def unit(self, item: pytest.Item, leased: str | None, needs_gpu: bool) -> UnitNames:
        if groups := self._group_names(item):
            return f"group {'_'.join(sorted(groups))}", False, False
        ours = wider_fixtures(item) if needs_gpu else ()
        if ours or leased is not None:
            widest = max((*ours, *([leased] if leased is not None else [])), key=WIDER_SCOPES.index)
            return f"{widest.removesuffix('_gpu')} {scope_id(item, widest)}", True, True
        scope = self._widest_scope(item)
        if scope == "function":
            return None, True, False
        node = _node(item, scope)
        return (None if node is None else f"{scope} {node.nodeid}"), True, False

    def _group_names(self, node: Any) -> frozenset[str]:
        """Return the groups that stand on a node and above it. Asked once per parent, not per test."""
        own = [_group_name(mark) for mark in node.own_markers if mark.name == "xdist_group"]
        parent = node.parent
        if parent is None:
            return frozenset(own)
        above = self._groups.get(id(parent))
        if above is None:
            above = self._groups[id(parent)] = self._group_names(parent)
        return above.union(own) if own else above

    def _widest_scope(self, item: pytest.Item) -> str:
        info = getattr(item, "_fixtureinfo", None)
        if info is None:
            return "function"
        known = self._widest.get(id(info))
        if known is None:
            scopes = [definitions[-1].scope for definitions in info.name2fixturedefs.values() if definitions]
            known = max((each for each in scopes if each in _RANKS), key=_RANKS.__getitem__, default="function")
            self._widest[id(info)] = known
        return known


def _group_name(mark: pytest.Mark) -> str:
    """Read the mark as pytest-xdist does."""
    return str(mark.args[0] if mark.args else mark.kwargs.get("name", "default"))


def _node(item: pytest.Item, scope: str) -> Any:
    # A fixture of a class is one of the test where there is no class, and one of a package of all where there is none.
    return item.getparent({"class": pytest.Class, "module": pytest.Module, "package": pytest.Package}[scope])
