"""Runtime libraries: what is mapped, what loaders' manifests name, what variables override, what pip mixed."""

from __future__ import annotations

__all__ = ["UNBUILT"]

UNBUILT: dict[str, str] = {}
"""Rows of the catalogue that are not built, and why."""
