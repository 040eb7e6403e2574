"""What the proofs call in vendor processes. Standard library only."""

from __future__ import annotations

import ctypes
import threading
import time

__all__ = ["hold_the_gil", "hold_the_gil_soon"]


def hold_the_gil(seconds: int) -> None:
    """Let no other thread of this process run."""
    ctypes.PyDLL(None).sleep(seconds)


def hold_the_gil_soon(after_s: float, seconds: int) -> None:
    """Return, and let no thread of this process run some time later."""

    def hold() -> None:
        time.sleep(after_s)
        hold_the_gil(seconds)

    threading.Thread(target=hold, daemon=True).start()
