"""Gates about containers: what was passed in, and what a container takes away while it runs."""

from __future__ import annotations

__all__ = ["UNBUILT"]

UNBUILT: dict[str, str] = {
    "ctr.detect": "nothing can be wrong with it; gpucoexist doctor names the place below its title",
    "ctr.seccomp": "a filter does not tell what it refuses; the fixture numa_node reads back what it got",
    "ctr.kmsg": "dev.kmsg looks at the same file and names the container's options",
}
"""Rows of the catalogue that have no gate here, and why."""
