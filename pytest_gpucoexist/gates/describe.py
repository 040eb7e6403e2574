"""Gates as plain data, for lists, pages and documentation; and the checks that are not built, with their reasons."""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING, Any

import pytest_gpucoexist.gates as package

if TYPE_CHECKING:
    from pytest_gpucoexist.gates.registry import Gate

__all__ = ["describe", "unbuilt"]

_FIELDS = (
    "id",
    "group",
    "title",
    "level",
    "severity",
    "blocking",
    "reads",
    "criterion",
    "why",
    "action",
    "source",
)


def describe(gate: Gate) -> dict[str, Any]:
    """Return a gate's description as builtins. `built` is False for one that a later level brings."""
    described: dict[str, Any] = {name: getattr(gate, name) for name in _FIELDS}
    described["vendors"] = list(gate.vendors)
    described["limits"] = dict(gate.limits)
    described["built"] = gate.check is not None
    return described


def unbuilt() -> dict[str, str]:
    """Return the checks of the catalogue that are no gates of their own, each with the reason."""
    reasons: dict[str, str] = {}
    for module in pkgutil.iter_modules(package.__path__):
        if module.ispkg:
            reasons.update(getattr(importlib.import_module(f"{package.__name__}.{module.name}"), "UNBUILT", {}))
    return dict(sorted(reasons.items()))
