"""Who else uses the GPUs, and processes that hang in a driver. Who cannot be matched is unknown, never foreign."""

from __future__ import annotations

__all__ = ["UNBUILT"]

UNBUILT: dict[str, str] = {}
"""Rows of the catalogue that are not built, and why."""
