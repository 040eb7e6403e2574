"""Nobody waits for ever for a child that is stopped or holds the GIL; no child outlives a parent that was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

import tests.transfer.needs_numpy  # noqa: F401 - above all that imports NumPy
from pytest_gpucoexist.errors import VendorDeadlineError
from tests.conftest import ROOT
from tests.processes.test_deaths import has_ended
from tests.proofs import called
from tests.proofs.orders import THOROUGH

if TYPE_CHECKING:
    from tests.proofs.rig import Rig

SIZE = 8 << 20
PATIENCE_S = 60.0
"""A busy machine may take it; a path without an end would not be through then."""


@pytest.mark.parametrize("number", [0, 1] if THOROUGH else [0])
def test_a_child_that_is_stopped_in_the_middle_of_a_copy(rig: Rig, number: int) -> None:
    from pytest_gpucoexist.staging.service import Staging

    source, target = rig.end("nvidia.0"), rig.end("amd.0")
    victim = rig.pids()[number]
    rig.machine.put({"nvidia.0.d2h_gbps": 0.02})  # 0.4 s for the whole
    before = rig.machine.copied("nvidia.0.d2h")[0]

    def stop() -> None:
        while rig.machine.copied("nvidia.0.d2h")[0] < before + 2:
            time.sleep(0.002)
        os.kill(victim, signal.SIGSTOP)

    stopper = threading.Thread(target=stop)
    with Staging(copy_s=0.3) as staging, source.allocate(SIZE) as given, target.allocate(SIZE) as taken:
        stopper.start()
        with pytest.raises(VendorDeadlineError, match=str(victim)):
            _within(lambda: staging.copy(given, taken, chunk_bytes=1 << 16))
        stopper.join()
    rig.machine.put({"nvidia.0.d2h_gbps": None})
    assert rig.end_all() == []


@pytest.mark.parametrize("number", [0, 1] if THOROUGH else [1])
def test_a_child_that_holds_the_gil(rig: Rig, number: int) -> None:
    from pytest_gpucoexist.staging.service import Staging

    source, target = rig.end("nvidia.0"), rig.end("amd.0")
    victim = (source, target)[number]
    with Staging(copy_s=0.3) as staging, source.allocate(SIZE) as given, target.allocate(SIZE) as taken:

        def copy() -> None:
            victim.run(called.hold_the_gil_soon, 0.2, 600, deadline_s=5.0)
            while True:  # until the thread there has begun to hold it
                staging.copy(given, taken)

        with pytest.raises(VendorDeadlineError, match=str(victim.process.process.pid)):
            _within(copy)
    assert rig.end_all() == []
    with pytest.raises(VendorDeadlineError):
        _within(lambda: rig.end("nvidia.0").run(called.hold_the_gil, 600, deadline_s=0.5))
    assert rig.end_all() == []


@pytest.mark.parametrize("how", ["copies", "holds", "is stopped"])
def test_children_of_a_parent_that_was_killed(rig: Rig, how: str) -> None:
    """They are gone, and with them the memory that all three had mapped."""
    from tests.proofs.inventory import marked

    libraries = [rig.environ[vendor]["LD_LIBRARY_PATH"] for vendor in ("nvidia", "amd")]
    mark = f"{rig.mark}-parent"
    argv = [sys.executable, "-m", "tests.proofs.parent", "holds" if how == "holds" else "copies", mark]
    with subprocess.Popen(
        [*argv, str(rig.machine.path.parent), *libraries],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as parent:
        assert parent.stdout is not None
        *children, inode = map(int, parent.stdout.readline().split())
        try:
            assert len(children) == 2
            assert set(children) <= marked(mark)
            assert _holders(inode) >= {parent.pid, *children}
            if how == "is stopped":
                os.kill(children[0], signal.SIGSTOP)
        finally:
            parent.kill()
        parent.wait()
        assert all(map(has_ended, children))
    assert marked(mark) == set()
    assert _holders(inode) == set()


def _holders(inode: int) -> set[int]:
    """Return the processes that have a memfd mapped."""
    found = set()
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/maps", encoding="utf-8", errors="replace") as file:
                lines = [line.split() for line in file if "/memfd:gpucoexist" in line]
        except OSError:  # it has just ended, or is another's
            continue
        if any(line[4] == str(inode) for line in lines):
            found.add(int(name))
    return found


def _within(work: Any) -> None:
    begun = time.monotonic()
    try:
        work()
    finally:
        assert time.monotonic() - begun < PATIENCE_S
