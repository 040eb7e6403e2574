"""Gates about device nodes: there, of the right driver, and open to this process."""

from __future__ import annotations

__all__ = ["UNBUILT"]

UNBUILT: dict[str, str] = {}
"""Rows of the catalogue that have no gate here, and why."""
