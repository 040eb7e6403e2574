"""A pytest plugin that prints which modules a session has loaded by its end."""

from __future__ import annotations

import sys


def pytest_unconfigure() -> None:
    """Print each on a line that the benchmark reads."""
    print("\n" + "\n".join(f"IMPORTED {name}" for name in sorted(sys.modules)))
