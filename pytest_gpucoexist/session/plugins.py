"""Ask the plugins that implement one of our hooks, one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from pytest_gpucoexist.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

__all__ = ["amend", "implementations"]

T = TypeVar("T")


def implementations(config: pytest.Config, hook: str) -> list[tuple[str, Callable[..., list[Any]]]]:
    """Return name and call of each plugin that implements a hook, in pluggy's order; wrappers stand around each."""
    manager = config.pluginmanager
    found = [
        each.plugin for each in getattr(config.hook, hook).get_hookimpls() if not (each.wrapper or each.hookwrapper)
    ]
    return [
        (
            manager.get_name(plugin) or repr(plugin),
            manager.subset_hook_caller(hook, [o for o in found if o is not plugin]),
        )
        for plugin in reversed(found)
    ]


def amend(config: pytest.Config, hook: str, argument: str, value: T) -> T:
    """Hand a value from plugin to plugin: each is asked about what the one before made of it, so no change is lost.

    Raises UserError when one returns neither None nor such a value.
    """
    for name, call in implementations(config, hook):
        for said in call(config=config, **{argument: value}):
            if said is not None and not isinstance(said, type(value)):
                raise UserError(f"{hook} in {name} returned {said!r}: return a {type(value).__name__} or None")
            value = value if said is None else said
    return value
