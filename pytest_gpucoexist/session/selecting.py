"""Which of the collected tests may need a GPU. Looks at every test of every session, so it looks at little."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.session.fixture_needs import FIXTURE_NEEDS
from pytest_gpucoexist.session.marks import MARK_LINES, foreign_names

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    import pytest

    from pytest_gpucoexist.session.state import GpuSession

__all__ = ["marked", "select"]


def select(session: GpuSession, items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Return the collected tests that may need a GPU. Rules of the project's own are for `Needs` to know."""
    config = session.config
    rules = config.getini("gpu_marks") or config.getini("gpu_doctests")
    if rules or config.hook.pytest_gpucoexist_requirement.get_hookimpls():
        session.needs.refresh()
        return session.needs.select(items)
    # Asked now and not earlier: a conftest may have registered some of the names for the project.
    return marked(items, MARK_LINES.keys() - foreign_names(config))


def marked(items: Iterable[pytest.Item], names: Collection[str]) -> list[pytest.Item]:
    """Return tests with one of these marks, on them or inherited, or with a fixture that is named as one of ours.

    Costs about a microsecond for each that has none: what a parent passes on is looked up once per parent.
    """
    fixtures = FIXTURE_NEEDS.keys()
    passed_on: dict[int, bool] = {}  # by id: hashing a node hashes its id text

    def passes_on(node: Any) -> bool:
        if node is None:
            return False
        known = passed_on.get(id(node))
        if known is None:
            known = any(mark.name in names for mark in node.own_markers) or passes_on(node.parent)
            passed_on[id(node)] = known
        return known

    found = []
    parent: Any = None
    inherits = False
    for item in items:
        if item.parent is not parent:
            parent = item.parent
            inherits = passes_on(parent)
        if inherits:
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
