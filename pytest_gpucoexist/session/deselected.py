"""Tests that this session was told not to run: nobody may miss them. Registered with a file of expected skips."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Deselected"]

_KEY = "gpucoexist_deselected"


class Deselected:
    """Ids that `-k`, `-m`, `--sw`, `--deselect` or a plugin took out, in this process or in xdist workers."""

    def __init__(self, config: pytest.Config) -> None:
        """Nothing is taken out yet."""
        self._config = config
        self._ids: set[str] = set()

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """Note what was taken out here."""
        self._ids.update(item.nodeid for item in items)

    def pytest_sessionfinish(self) -> None:
        """Tell the controller, which collects nothing itself."""
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput[_KEY] = sorted(self._ids)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Hear it from a worker. All workers collect the same, so one that died may stay silent."""
        self._ids.update(getattr(node, "workeroutput", {}).get(_KEY, ()))

    def without(self, expected: Mapping[str, str | None], ran: set[str]) -> dict[str, str | None]:
        """Return the expected skips of tests that ran or should have run.

        `--lf` leaves tests out without telling anybody: with it, a test that did not run is not missed.
        """
        narrowed = getattr(self._config.option, "lf", False)
        return {
            nodeid: reason
            for nodeid, reason in expected.items()
            if nodeid in ran or not (narrowed or nodeid in self._ids)
        }
