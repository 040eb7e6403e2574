"""Gates of kernel drivers: which one holds a GPU, and whether its parts agree."""

from __future__ import annotations

UNBUILT: dict[str, str] = {}
