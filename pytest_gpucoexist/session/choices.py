"""Devices that the wider fixtures of this process have settled on, and the scopes that they belong to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucoexist.session.fixture_needs import WIDER_SCOPES, is_ours

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Choice", "Choices", "choices_of", "scope_id", "wider_fixtures"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A device that a wider fixture settled on, and the test that was first."""

    key: str
    first: str


class Choices:
    """Choices that are alive in this process: (fixture, id of the scope's node) → device."""

    def __init__(self) -> None:
        """Nothing is chosen yet."""
        self.alive: dict[tuple[str, str], Choice] = {}
        self._peers: dict[tuple[str, str], list[pytest.Item]] | None = None

    def peers(self, session: pytest.Session, scope: tuple[str, str]) -> Sequence[pytest.Item]:
        """Return all tests of this run that use the same wider fixture of the same scope."""
        if self._peers is None:
            self._peers = {}
            for item in session.items:
                for name in wider_fixtures(item):
                    self._peers.setdefault((name, scope_id(item, name)), []).append(item)
        return self._peers.get(scope, ())

    def ending(self, item: pytest.Item, nextitem: pytest.Item | None) -> tuple[str, ...]:
        """Return devices whose scope ends in the teardown of `item`."""
        return tuple(
            choice.key
            for (name, node), choice in self.alive.items()
            if scope_id(item, name) == node and (nextitem is None or scope_id(nextitem, name) != node)
        )


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
