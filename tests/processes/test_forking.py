"""The first instant of a process: one that does not get further holds nobody up for longer than its deadline."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest

from pytest_gpucoexist.host import local_host
from pytest_gpucoexist.processes.forking import Forking
from pytest_gpucoexist.processes.watchdog import Watchdog
from tests.processes.conftest import children

NOTHING = [sys.executable, "-I", "-S", "-c", ""]


def test_a_child_that_is_stopped_before_it_becomes_another_program_is_ended_at_the_deadline() -> None:
    before = children()
    forking = Forking()
    watchdog = Watchdog(local_host())
    watchdog.start(lambda: forking.start(NOTHING, preexec_fn=_stop, start_new_session=True), forking.kill, 0.5)
    ending = watchdog.join(60)
    assert ending is not None
    assert ending.signal == "SIGKILL"
    assert forking.is_killed
    assert children() == before


def test_a_start_that_is_broken_off_by_ctrl_c_ends_the_child_too() -> None:
    before = children()
    forking = Forking()
    watchdog = Watchdog(local_host())
    timer = threading.Timer(0.3, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        watchdog.start(lambda: forking.start(NOTHING, preexec_fn=_stop, start_new_session=True), forking.kill, 600)
    timer.join()
    watchdog.join(60)
    assert children() == before


def switches() -> list[Any]:
    return [getattr(subprocess, name, True) for name in ("_USE_VFORK", "_USE_POSIX_SPAWN")]


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def test_the_caller_does_not_sleep_in_the_kernel_until_the_child_has_become_another_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = switches()
    calls: list[tuple[Any, ...]] = []
    name = "_fork_exec" if hasattr(subprocess, "_fork_exec") else "_posixsubprocess"
    real: Any = getattr(subprocess, name)
    fork_exec = real if name == "_fork_exec" else real.fork_exec

    def watched(*arguments: Any) -> Any:
        calls.append(arguments)
        return fork_exec(*arguments)

    if name == "_fork_exec":
        monkeypatch.setattr(subprocess, name, watched)
    else:
        monkeypatch.setattr(real, "fork_exec", watched)
    assert Forking().start(NOTHING).wait(60) == 0
    if sys.version_info >= (3, 11):
        assert calls[0][-1] is False
    else:
        assert calls[0][-3] == os.geteuid()  # a child that sets its user is never started by vfork
    assert switches() == before


def test_several_that_start_at_once_leave_the_switch_as_it_was() -> None:
    before = switches()
    forkings = [Forking() for _ in range(4)]
    threads = [threading.Thread(target=lambda one=each: one.start(NOTHING).wait(60)) for each in forkings]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert switches() == before


def test_nothing_is_ended_that_did_not_start() -> None:
    forking = Forking()
    forking.kill()
    with pytest.raises(FileNotFoundError):
        forking.start(["/nowhere/python"])
    forking.kill()
    assert not forking.is_killed
