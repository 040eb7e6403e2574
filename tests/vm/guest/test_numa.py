"""`numa_node` binds a test to its card's node: the kernel really places its memory there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.vm.guest.drivers import load
from tests.vm.guest.sessions import session

if TYPE_CHECKING:
    from pathlib import Path

PAGES = '''
import collections
import ctypes
import mmap
import os

import pytest

PAGES, MOVE_PAGES = 2048, 279


def placed():
    """Touch 8 MiB and ask the kernel on which nodes the pages lie: move_pages(2) that moves none."""
    area = mmap.mmap(-1, PAGES * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    start = ctypes.addressof(ctypes.c_char.from_buffer(area))
    for offset in range(0, len(area), 4096):
        area[offset] = 1
    pages = (ctypes.c_void_p * PAGES)(*range(start, start + PAGES * 4096, 4096))
    nodes = (ctypes.c_int * PAGES)()
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.syscall(MOVE_PAGES, 0, PAGES, pages, None, nodes, 0) == 0, ctypes.get_errno()
    return dict(collections.Counter(nodes))


@pytest.mark.gpu(vendor="amd")
def test_beside_radeon(gpu, numa_node):
    assert gpu.numa_node == 1
    assert os.sched_getaffinity(0) == {2, 3}
    assert placed() == {1: 2048}


@pytest.mark.gpu(vendor="nvidia")
def test_beside_rtx(gpu, numa_node):
    assert gpu.numa_node == 0
    assert os.sched_getaffinity(0) == {0, 1}
    assert placed() == {0: 2048}


def test_given_back():
    assert os.sched_getaffinity(0) == {0, 1, 2, 3}
'''


def test_pages_lie_on_the_node_of_the_card(tmp_path: Path) -> None:
    load()
    done = session(tmp_path, PAGES, "-rA", "--gpu-gates=off")
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    assert "3 passed" in done.stdout
