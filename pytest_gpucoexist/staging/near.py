"""On which NUMA node the memory between two devices is best.

Where they are near different nodes, one of them reaches it across the link between the nodes, which then limits that
device. The slower one loses less by that, so the memory is near the one with the faster link.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpucoexist.model.machine import Gpu

__all__ = ["better_node"]


def better_node(gpus: Sequence[Gpu]) -> int | None:
    """Return the node of the device with the fastest link, of equal ones the first; None where none has a node."""
    placed = [gpu for gpu in gpus if gpu.numa_node is not None]
    return max(placed, key=_link).numa_node if placed else None


def _link(gpu: Gpu) -> float:
    """Return what the link can do, in GT/s times lanes; 0 where the kernel does not say. An idle one is slow now."""
    link = gpu.link
    speed = link.max_speed_gtps or link.current_speed_gtps or 0.0
    return speed * (link.max_width or link.current_width or 0)
