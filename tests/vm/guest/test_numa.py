"""`numa_node` binds a test to its card's node: the kernel really places its memory there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.vm.guest.drivers import load
from tests.vm.guest.sessions import session

if TYPE_CHECKING:
    from pathlib import Path

PAGES = '''
import mmap
import os
import re

import pytest


def placed():
    """Touch 8 MiB and return on which nodes the kernel put them."""
    area = mmap.mmap(-1, 8 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for offset in range(0, len(area), 4096):
        area[offset] = 1
    lines = open("/proc/self/numa_maps").read().splitlines()
    counts = [re.findall(r"N(\\d+)=(\\d+)", line) for line in lines if "anon=2048" in line]
    assert len(counts) == 1, lines
    return {int(node): int(pages) for node, pages in counts[0]}


@pytest.mark.gpu(vendor="amd")
def test_beside_radeon(gpu, numa_node):
    assert gpu.numa_node == 1
    assert os.sched_getaffinity(0) == {2, 3}
    assert placed() == {1: 2048}


@pytest.mark.gpu(vendor="nvidia", numa_node=0)
def test_beside_rtx(gpu, numa_node):
    assert os.sched_getaffinity(0) == {0, 1}
    assert placed() == {0: 2048}


def test_given_back():
    assert os.sched_getaffinity(0) == {0, 1, 2, 3}
'''


def test_pages_lie_on_the_node_of_the_card(tmp_path: Path) -> None:
    load("nvidia", "amdgpu")
    done = session(tmp_path, PAGES, "-p", "no:randomly", "-rA", "--gpu-gates=off")
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    assert "3 passed" in done.stdout
