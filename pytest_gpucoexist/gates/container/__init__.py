"""Gates about containers: what was passed in, and what a container takes away while it runs."""

from __future__ import annotations

__all__ = ["UNBUILT"]

UNBUILT: dict[str, str] = {
    "ctr.kmsg": "dev.kmsg looks at the same file and names the container's options",
}
"""Rows of the catalogue that have no gate here, and why."""
