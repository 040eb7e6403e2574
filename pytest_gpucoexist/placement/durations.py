"""How long tests take, remembered from run to run, so that the longest can begin first.

Only what a test does itself counts (its set-up, call and teardown): no wait for a device, and not the set-up of the
unit that it happened to begin, which is kept for the unit. Numbers are smoothed: one slow run does not reorder a suite,
and a test that has become slower is known after a few.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Durations", "cache_key"]

_WEIGHT = 0.5
"""Of the newest measurement; the others have the rest, each half of what the one after it has."""

_LIMIT = 100_000
"""Tests remembered. The ones that were not run for longest are forgotten: nobody says that a test is gone."""


def cache_key(machine: str) -> str:
    """Name the entry of pytest's cache for a machine: the same test takes another time on another one."""
    return f"gpucoexist/durations-{re.sub(r'[^A-Za-z0-9._-]+', '-', machine) or 'unnamed'}"


class Durations:
    """Seconds by test id, and by unit what its set-up takes."""

    def __init__(self, stored: Any = None) -> None:
        """Take what `stored()` gave in an earlier run; what does not look like it is ignored."""
        told = stored if isinstance(stored, dict) else {}
        self._tests = _numbers(told.get("tests"))
        self._units = _numbers(told.get("units"))
        self._new_tests: dict[str, float] = {}
        self._new_units: dict[str, float] = {}

    def of_test(self, nodeid: str) -> float | None:
        """Return the seconds that a test takes; None for one that never ran."""
        return self._tests.get(nodeid)

    def of_unit(self, name: str) -> float | None:
        """Return the seconds that the set-up of a unit takes; None where nobody has measured it."""
        return self._units.get(name)

    def add(self, nodeid: str, seconds: float, *, setup_s: float, unit: str | None = None) -> None:
        """Note a run of a test. With `unit`, it began that unit: its set-up was the unit's."""
        if unit is None:
            self._new_tests[nodeid] = seconds
        else:
            self._new_tests[nodeid] = max(0.0, seconds - setup_s)
            # The shortest of several: some began the unit while others kept the processor busy.
            self._new_units[unit] = min(setup_s, self._new_units.get(unit, setup_s))

    @property
    def is_changed(self) -> bool:
        """Whether there is anything to store."""
        return bool(self._new_tests)

    def stored(self) -> dict[str, dict[str, float]]:
        """Return everything as JSON takes it, the longest unseen first."""
        return {"tests": _merged(self._tests, self._new_tests), "units": _merged(self._units, self._new_units)}


def _merged(old: Mapping[str, float], new: Mapping[str, float]) -> dict[str, float]:
    kept = {name: seconds for name, seconds in old.items() if name not in new}
    for name, seconds in new.items():
        before = old.get(name)
        smoothed = seconds if before is None else _WEIGHT * seconds + (1 - _WEIGHT) * before
        kept[name] = round(smoothed, 6)
    surplus = len(kept) - _LIMIT
    return kept if surplus <= 0 else dict(list(kept.items())[surplus:])


def _numbers(told: Any) -> dict[str, float]:
    if not isinstance(told, dict):
        return {}
    return {
        str(name): float(seconds)
        for name, seconds in told.items()
        if isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and seconds >= 0
    }
