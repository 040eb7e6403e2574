"""The slowest hop of a device's path, read from sysfs while copies run: an idle link is slow to save power.

Bridges on the card itself say nothing of the slot: of functions of the card's own vendor only the outermost counts.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["LinkWatch"]

_EVERY_S = 0.02


class LinkWatch:
    """Look while the block runs. `best` is the most that the slowest hop allowed, bytes per second; None if unknown."""

    def __init__(self, pci_address: str | None, devices: str = "/sys/bus/pci/devices") -> None:
        self._hops = _hops(f"{devices}/{pci_address}") if pci_address else []
        self.best: float | None = None
        self.readings = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> LinkWatch:  # noqa: PYI034 - Self is of Python 3.11
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()

    def _look(self) -> None:
        while self._hops:
            rates = [_bytes_per_s(hop) for hop in self._hops]
            known = [rate for rate in rates if rate is not None]
            if known:
                self.best = max(self.best or 0.0, min(known))
                self.readings += 1
            if self._done.wait(_EVERY_S):
                return


def _hops(function: str) -> list[str]:
    """Return the folders of the functions whose link is on the way, from the card to the root port."""
    folder = os.path.realpath(function)
    own, found = _word(f"{folder}/vendor"), []
    while os.path.exists(f"{folder}/vendor"):
        outer = os.path.dirname(folder)
        if not (own is not None and own == _word(f"{folder}/vendor") == _word(f"{outer}/vendor")):
            found.append(folder)
        folder = outer
    return found


def _bytes_per_s(folder: str) -> float | None:
    """Return what a link carries: GT/s times lanes, less the line coding (8b/10b up to 5 GT/s, then 128b/130b)."""
    speed, width = _word(f"{folder}/current_link_speed"), _word(f"{folder}/current_link_width")
    try:
        gts, lanes = float(speed or ""), int(width or "")
    except ValueError:  # "Unknown", or no link at all: a function of the root complex
        return None
    return gts * 1e9 * lanes * (0.8 if gts <= 5 else 128 / 130) / 8 or None


def _word(path: str) -> str | None:
    try:
        with open(path, encoding="ascii") as file:
            words = file.read().split()
            return words[0] if words else None
    except OSError:
        return None
