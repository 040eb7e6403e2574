"""Devices that the wider fixtures of this process have settled on, and the tests that belong to their scopes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucoexist.session.fixture_needs import WIDER_SCOPES, is_ours

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpucoexist.session.joined import Scope

__all__ = ["OVER", "Choice", "Choices", "choices_of", "scope_id", "wider_fixtures"]

OVER = pytest.StashKey[bool]()
"""On an item: whether this process has run it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A device that a wider fixture settled on, and the test that was first."""

    key: str
    first: str


class Choices:
    """Choices that are alive in this process: (fixture, id of the scope's node) → device."""

    def __init__(self) -> None:
        """Nothing is chosen yet."""
        self.alive: dict[Scope, Choice] = {}
        self._peers: dict[Scope, list[pytest.Item]] | None = None
        self._members: dict[Scope, list[pytest.Item]] | None = None

    def peers(self, session: pytest.Session, scope: Scope) -> Sequence[pytest.Item]:
        """Return all tests of this run that use the same wider fixture of the same scope."""
        if self._peers is None:
            self._peers = {}
            for item in session.items:
                for name in wider_fixtures(item):
                    self._peers.setdefault((name, scope_id(item, name)), []).append(item)
        return self._peers.get(scope, ())

    def companions(self, item: pytest.Item, items: Sequence[pytest.Item]) -> Sequence[pytest.Item]:
        """Return the tests out of `items` that this process may run while a wider fixture of `item` lives.

        All that belong to its scope, whether they use the fixture or not, and where one of them begins a scope of its
        own, those of that scope too. None that is over.
        """
        if self._members is None:
            self._members = {}
            for each in items:
                for name in WIDER_SCOPES:
                    self._members.setdefault((name, scope_id(each, name)), []).append(each)
        begun = [(name, scope_id(item, name)) for name in wider_fixtures(item)]
        known = set(begun)
        found: dict[int, pytest.Item] = {}
        while begun:
            for each in self._members.get(begun.pop(), ()):
                if id(each) in found or each is item or each.stash.get(OVER, False):
                    continue
                found[id(each)] = each
                further = {(name, scope_id(each, name)) for name in wider_fixtures(each)} - known
                begun += further
                known |= further
        return tuple(found.values())


CHOICES = pytest.StashKey[Choices]()


def choices_of(config: pytest.Config) -> Choices:
    """Return the choices of this process."""
    return config.stash.setdefault(CHOICES, Choices())


def wider_fixtures(item: pytest.Item) -> tuple[str, ...]:
    """Return the wider fixtures that a test uses, narrowest scope first."""
    names = getattr(item, "fixturenames", ())
    return tuple(name for name in WIDER_SCOPES if name in names and is_ours(item, name))


def scope_id(item: pytest.Item, name: str) -> str:
    """Id of the node that a wider fixture of this test belongs to, as `request.node.nodeid` gives it there."""
    node: Any
    if name == "class_gpu":
        node = item.getparent(pytest.Class) or item
    elif name == "module_gpu":
        node = item.getparent(pytest.Module)
    else:
        node = item.session
    return "" if node is None else str(node.nodeid)
