"""What is discovered is what lspci and lstopo see, on the same kernel at the same time."""

from __future__ import annotations

import os


def test_two_numa_nodes() -> None:
    assert os.path.isdir("/sys/devices/system/node/node1")
