"""Gates about places: NUMA nodes, CPUs, and how two GPUs are connected."""

from __future__ import annotations

__all__ = ["UNBUILT"]

UNBUILT: dict[str, str] = {
    "topo.relation": "nothing can be wrong with it; gpucoexist doctor --json has the relation of each pair (matrix)",
}
"""Rows of the catalogue that have no gate here, and why."""
