"""Gates about places: NUMA nodes, CPUs, and how two GPUs are connected."""

from __future__ import annotations

__all__ = ["UNBUILT"]

UNBUILT: dict[str, str] = {}
"""Rows of the catalogue that have no gate here, and why."""
