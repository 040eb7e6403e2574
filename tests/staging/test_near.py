"""The memory between two devices is near the one that would lose more by distance."""

from __future__ import annotations

import pytest

from pytest_gpucoexist.model.machine import Gpu, Link
from pytest_gpucoexist.staging.near import better_node


def gpu(node: int | None, speed: float | None, width: int | None, now: float | None = None) -> Gpu:
    link = Link(max_speed_gtps=speed, max_width=width, current_speed_gtps=now, current_width=width)
    return Gpu(id="nvidia0", pci_address="0000:01:00.0", numa_node=node, link=link)


@pytest.mark.parametrize(
    ("gpus", "node"),
    [
        ([gpu(0, 16.0, 16), gpu(1, 32.0, 16)], 1),
        ([gpu(0, 32.0, 16), gpu(1, 16.0, 16)], 0),
        ([gpu(0, 32.0, 4), gpu(1, 16.0, 16)], 1),
        ([gpu(0, 16.0, 16, now=2.5), gpu(1, 8.0, 16, now=8.0)], 0),  # an idle link is not a slow one
        ([gpu(1, None, None, now=16.0), gpu(0, 16.0, 16)], 0),
        ([gpu(1, 16.0, 16), gpu(0, 16.0, 16)], 1),
        ([gpu(None, 32.0, 16), gpu(1, 8.0, 1)], 1),
        ([gpu(None, 32.0, 16)], None),
        ([], None),
    ],
)
def test_the_node_of_the_faster_link(gpus: list[Gpu], node: int | None) -> None:
    assert better_node(gpus) == node
