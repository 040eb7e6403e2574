"""Where a process may run and where its memory lies, on a machine with two nodes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.vm.guest.drivers import load
from tests.vm.guest.judging import said_of
from tests.vm.guest.sessions import session
from tests.vm.guest.system import BUS, RADEON0, RTX0, write

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


@pytest.mark.proves("numa.affinity", "PASS", on="vm")
@pytest.mark.proves("numa.affinity", "WARN", on="vm")
def test_a_process_that_may_not_run_near_a_card() -> None:
    load()
    everywhere = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {0, 1})
    try:
        far, near = said_of("numa.affinity", RADEON0), said_of("numa.affinity", RTX0)
    finally:
        os.sched_setaffinity(0, everywhere)
    assert (far.status, near.status) == ("WARN", "PASS")
    assert "may run on CPUs 0-1 alone, none of them near the GPU" in far.reason


@pytest.mark.proves("numa.node_known", "PASS", on="vm")
@pytest.mark.proves("numa.node_known", "SKIP", on="vm")
def test_firmware_that_does_not_say_the_node() -> None:
    """The kernel lets root write what firmware left out, and so also take it away."""
    load()
    write(f"{BUS}/{RADEON0}/numa_node", "-1")
    try:
        verdict = said_of("numa.node_known", RADEON0)
    finally:
        write(f"{BUS}/{RADEON0}/numa_node", "1")
    assert verdict.status == "SKIP"
    assert "in a virtual machine that is the host's to say" in verdict.reason
    assert said_of("numa.node_known", RADEON0).status == "PASS"
