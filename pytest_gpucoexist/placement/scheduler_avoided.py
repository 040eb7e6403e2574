"""Devices that another session was found to hold: left alone for a while, then asked for again."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_gpucoexist.placement.engine import Engine

__all__ = ["AVOIDED_S", "Avoided"]

AVOIDED_S = 1.0
"""How long: a round of short tests, and no busy loop."""


class Avoided:
    """What the engine was told to be held elsewhere, and since when. False when there is nothing."""

    def __init__(self, engine: Engine) -> None:
        """Begin with nothing."""
        self._engine = engine
        self._since_s: dict[tuple[str, str], float] = {}

    def __bool__(self) -> bool:
        """Say whether any device is avoided."""
        return bool(self._since_s)

    def note(self, site: str, keys: Iterable[str], now_s: float) -> None:
        """Remember when these were refused; the engine knows it already."""
        for key in keys:
            self._since_s[site, key] = now_s

    def ask_again(self, now_s: float, *, at_once: bool = False) -> None:
        """Have the engine count on those that were avoided for long enough, or on all."""
        due = [each for each, since_s in self._since_s.items() if at_once or now_s - since_s >= AVOIDED_S]
        for site, key in due:
            del self._since_s[site, key]
            self._engine.freed(site, [key], now_s)
