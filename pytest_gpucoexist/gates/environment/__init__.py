"""Gates about the environment: variables that hide devices, or change how runtimes work."""

from __future__ import annotations

__all__ = ["UNBUILT"]

UNBUILT: dict[str, str] = {
    "env.xdist": "gates run once in the controller, which does not see what its workers set for themselves; leases keep"
    " workers apart, whatever their masks are",
}
"""Rows of the catalogue that have no gate here, and why."""
