"""A session beside a process that uses its only device without a lease: NVIDIA's own client tells, on a fake driver."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.conftest import ROOT
from tests.fakes.driver import give_back, take
from tests.leases.test_death import KEY, device

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["device"]

GIB = 2**30

CONFTEST = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from pytest_gpucoexist.session import discovery
from tests.leases.machines import a_machine, used_here

host, _machine = used_here(a_machine().with_gpu("rtx4090", address={KEY!r}))
discovery._host = lambda config, name: host
"""
SUITE = """
import pytest

@pytest.mark.gpu(vendor="nvidia")
def test_gpu(gpu):
    assert gpu.key == "0000:41:00.0"
"""


@pytest.fixture
def stranger(device: Path) -> Iterator[int]:
    """A process that computes on the device, of no session."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        take(device, 6 * GIB, process.pid)
        yield process.pid
        give_back(device, process.pid)
        process.communicate(b"\n")


def run(pytester: pytest.Pytester, *more: str) -> pytest.RunResult:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(SUITE)
    return pytester.runpytest_subprocess("-p", "gpucoexist", "-rs", "--gpu-gates=off", *more)


def test_nobody(pytester: pytest.Pytester, device: Path) -> None:
    assert device.is_dir()
    run(pytester).assert_outcomes(passed=1)


@pytest.mark.parametrize(("busy", "outcome"), [("skip", "skipped"), ("fail", "errors")])
def test_the_stranger_is_named(pytester: pytest.Pytester, stranger: int, busy: str, outcome: str) -> None:
    result = run(pytester, f"--gpu-busy={busy}")
    assert result.parseoutcomes().get(outcome) == 1
    said = re.sub(r"\s+", " ", result.stdout.str())
    assert re.search(rf"{KEY} is used without a lease by process {stranger} \(python\S*\).* with 6 ?GiB", said), said


def test_it_can_be_shared_with(pytester: pytest.Pytester, stranger: int) -> None:
    assert stranger
    run(pytester, "--gpu-busy=share").assert_outcomes(passed=1)


def test_a_wait_ends_with_the_stranger(pytester: pytest.Pytester, stranger: int, device: Path) -> None:
    """It says whom it waits for; then he gives the memory back."""
    import threading

    waits = threading.Event()

    def ends() -> None:
        waits.wait()
        give_back(device, stranger)

    thread = threading.Thread(target=ends)
    thread.start()
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(SUITE)
    argv = [sys.executable, "-m", "pytest", "-p", "gpucoexist", "-v", "--gpu-gates=off"]
    with subprocess.Popen(
        argv, cwd=pytester.path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=dict(os.environ)
    ) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if f"PID {stranger}" in line:
                waits.set()
    waits.set()
    thread.join()
    text = "".join(lines)
    assert process.returncode == 0, text
    assert f"PID {stranger}" in text
    assert "1 passed" in text
