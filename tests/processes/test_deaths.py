"""Nothing outlives its reason: the process's parent, the process, what it started."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucoexist.errors import VendorDeadlineError, VendorEndedError
from pytest_gpucoexist.host import local_host
from pytest_gpucoexist.processes.kin import Stuck, descendants, stuck_state
from pytest_gpucoexist.testing.builder import a_machine
from tests.conftest import ROOT
from tests.processes import called

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpucoexist.processes.process import VendorProcess

PATIENCE_MS = 60_000


def has_ended(pid: int) -> bool:
    """Wait until a process has ended, whoever is to collect it."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    except OSError as error:
        pytest.skip(f"needs pidfd: {error}")
    try:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        return bool(poll.poll(PATIENCE_MS))
    finally:
        os.close(handle)


PARENT = """
    import os, sys, threading
    from pytest_gpucoexist.host import local_host
    from pytest_gpucoexist.processes.launch import LaunchOrder
    from pytest_gpucoexist.processes.process import VendorProcess
    from tests.processes import called

    made = []
    def make():
        made.append(VendorProcess(LaunchOrder(python=sys.executable, environment=os.environ), local_host()))
    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    # The thread that asked for it is gone, and the process is there.
    assert made[0].run(called.same, 1) == 1
    print(made[0].pid, flush=True)
    if sys.argv[1] == "ends":
        sys.exit()
    if sys.argv[1] == "waits":
        sys.stdin.read()
    made[0].run(called.hold_the_gil, 600)
"""


@pytest.mark.parametrize("state", ["holds the GIL", "is stopped", "waits"])
def test_a_process_dies_with_its_parent(state: str) -> None:
    pytest.importorskip("execnet", reason="needs execnet")
    with _parent("waits" if state == "waits" else "calls") as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        if state == "is stopped":
            os.kill(pid, signal.SIGSTOP)
        parent.kill()
        parent.wait()
        assert has_ended(pid)


def test_a_process_ends_with_a_parent_that_forgot_it() -> None:
    pytest.importorskip("execnet", reason="needs execnet")
    with _parent("ends") as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert parent.wait(60) == 0
        assert has_ended(pid)


def _parent(how: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PARENT), how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def test_what_it_started_ends_with_it(process: VendorProcess) -> None:
    pids = process.run(called.start_others)
    assert set(descendants(local_host(), process.pid)) >= set(pids)
    process.close()
    assert all(map(has_ended, pids))


def test_what_it_started_ends_with_its_deadline_too(process: VendorProcess) -> None:
    pids = process.run(called.start_others)
    with pytest.raises(VendorDeadlineError):
        process.run(called.hold_the_gil, 600, deadline_s=0.5)
    assert all(map(has_ended, pids))


def test_the_group_of_a_process_that_crashed_ends(process: VendorProcess) -> None:
    near, *others = process.run(called.start_others)
    try:
        with pytest.raises(VendorEndedError, match="SIGSEGV"):
            process.run(called.crash)
        assert has_ended(near)
    finally:
        for pid in others:  # they have left its group, and nobody else knows them any more
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("how", ["close", "crash", "deadline", "error", "large"])
def test_nothing_is_left_behind(start: Callable[..., VendorProcess], how: str) -> None:
    """The fixture compares children, descriptors, threads, environment, folder and path."""
    for _ in range(3):
        process = start()
        if how == "crash":
            with pytest.raises(VendorEndedError):
                process.run(called.abort)
        elif how == "deadline":
            with pytest.raises(Exception, match="did not return"):
                process.run(called.wait, 600, deadline_s=0.2)
        elif how == "error":
            with pytest.raises(Exception, match="cannot travel"):
                process.run(called.same, ["x" * 100_000, object()])
            with pytest.raises(Exception, match="cannot come back"):
                process.run(called.return_an_object)
        elif how == "large":
            assert len(process.run(called.same, "x" * 1_000_000)) == 1_000_000
        process.close()


def test_descriptors_are_gone_even_where_a_grandchild_has_inherited_them(process: VendorProcess) -> None:
    """A fork of the process, in a session of its own, holds its end of the sockets."""
    pid = process.run(fork_away)
    os.kill(process.pid, signal.SIGKILL)
    try:
        with pytest.raises(VendorEndedError):
            process.run(called.same, 1)
    finally:
        os.kill(pid, signal.SIGKILL)


def fork_away() -> int:
    import time

    pid = os.fork()
    if pid == 0:
        os.setsid()
        time.sleep(600)
    return pid


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            {"stat": "77 (a) b) D 1 77 77 0 -1\n", "wchan": "amdgpu_fence_wait"},
            Stuck(pid=77, state="D", wchan="amdgpu_fence_wait"),
        ),
        ({"stat": "77 (python) D 1 77 77 0 -1\n", "wchan": "0"}, Stuck(pid=77, state="D")),
        ({"stat": "77 (python) Z 1 77 77 0 -1\n"}, Stuck(pid=77, state="Z")),
        ({"stat": ""}, Stuck(pid=77, detail="its line is empty")),
    ],
)
def test_what_is_known_of_a_process_that_does_not_end(files: dict[str, str], expected: Any) -> None:
    machine = a_machine()
    for name, text in files.items():
        machine = machine.with_file(f"/proc/77/{name}", text)
    found = stuck_state(machine.host(), 77)
    if expected.detail is None:
        assert found == expected
    else:
        assert (found.state, found.wchan) == (None, None)
        assert found.detail
    assert "process 77 was killed and does not end" in found.describe()


def test_a_process_that_is_gone_has_no_state() -> None:
    found = stuck_state(a_machine().host(), 77)
    assert found.state is None
    assert found.detail
