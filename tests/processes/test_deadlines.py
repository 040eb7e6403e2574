"""Every wait ends: at its deadline, or with the process, whatever the process does."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucoexist.errors import VendorDeadlineError, VendorEndedError, VendorPayloadError
from tests.processes import called

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpucoexist.processes.process import VendorProcess


def gone(pid: int) -> bool:
    return not os.path.exists(f"/proc/{pid}")


@pytest.mark.parametrize(
    ("function", "arguments", "where"),
    [
        (called.wait, (600,), "in wait"),
        (called.hold_the_gil, (600,), "in hold_the_gil"),
        (called.stop_myself, (), None),
    ],
    ids=["sleeps", "holds the GIL", "is stopped"],
)
def test_a_function_that_does_not_return_is_killed_at_its_deadline(
    process: VendorProcess, function: Any, arguments: tuple[int, ...], where: str | None
) -> None:
    with pytest.raises(VendorDeadlineError, match=r"did not return within 1\.5 s: process \d+ was killed") as caught:
        process.run(function, *arguments, deadline_s=1.5)
    assert gone(process.pid)
    if where is not None:
        assert where in caught.value.trace
        assert where in str(caught.value)
        assert "execnet" not in str(caught.value)
    assert process.ending is not None
    assert (process.ending.late, process.ending.signal, process.ending.stuck) == (True, "SIGKILL", None)
    assert process.records[-1].outcome == "ended"


def test_a_process_that_was_stopped_before_it_was_called(process: VendorProcess) -> None:
    os.kill(process.pid, signal.SIGSTOP)
    with pytest.raises(VendorDeadlineError):
        process.run(called.same, "x" * 1_000_000, deadline_s=0.5)
    assert gone(process.pid)


def test_a_send_that_blocks_ends_with_the_process(process: VendorProcess) -> None:
    """A stopped process reads nothing: a message larger than the socket's buffer blocks the thread that sends it."""
    os.kill(process.pid, signal.SIGSTOP)
    process._watchdog.arm(0.5, "the send blocks")
    control = process._control
    assert control is not None
    with pytest.raises(OSError, match="cannot send"):
        control.send(b"x" * 16 * 2**20)
    assert process.close().killed_for == "the send blocks"


def test_closing_does_not_wait_for_a_thread_that_blocks_in_a_send(process: VendorProcess) -> None:
    os.kill(process.pid, signal.SIGSTOP)
    control = process._control
    assert control is not None
    outcome: list[BaseException] = []

    def send() -> None:
        try:
            control.send(b"x" * 16 * 2**20)
        except OSError as error:
            outcome.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    while _state(thread) != "S":
        time.sleep(0.01)
    assert process.close().stuck is None
    thread.join()
    assert len(outcome) == 1


def _state(thread: threading.Thread) -> str:
    with open(f"/proc/self/task/{thread.native_id}/stat", encoding="ascii") as file:
        return file.read().rpartition(")")[2].split()[0]


def test_a_kernel_without_pidfd(start: Callable[..., VendorProcess], monkeypatch: pytest.MonkeyPatch) -> None:
    from pytest_gpucoexist.processes import watchdog

    monkeypatch.setattr(watchdog, "_pidfd", lambda pid: None)
    late = start()
    assert late.run(called.same, 1) == 1
    with pytest.raises(VendorDeadlineError):
        late.run(called.hold_the_gil, 600, deadline_s=0.5)
    with pytest.raises(VendorEndedError, match="SIGABRT"):
        start().run(called.abort)
    assert start().close().signal == "SIGKILL"


def test_a_crash_names_its_signal_and_where_it_was(process: VendorProcess) -> None:
    with pytest.raises(
        VendorEndedError, match=r"was ended by SIGSEGV during tests\.processes\.called\.crash"
    ) as caught:
        process.run(called.crash)
    error = caught.value
    assert (error.signal, error.code) == ("SIGSEGV", None)
    assert error.stdout == "before the crash\n"
    assert "in crash" in error.trace
    assert "Segmentation fault" in str(error)


def test_an_abort_names_its_signal(process: VendorProcess) -> None:
    with pytest.raises(VendorEndedError, match="SIGABRT"):
        process.run(called.abort)


def test_an_exit_names_its_status(process: VendorProcess) -> None:
    with pytest.raises(VendorEndedError, match="ended with status 7") as caught:
        process.run(called.end_at_once, 7)
    assert caught.value.code == 7
    assert caught.value.stderr == "last words\n"
    assert "last words" in str(caught.value)


def test_somebody_else_kills_it(process: VendorProcess) -> None:
    thread = threading.Timer(0.2, os.kill, (process.pid, signal.SIGKILL))
    thread.start()
    with pytest.raises(VendorEndedError, match="was ended by SIGKILL during") as caught:
        process.run(called.wait, 600)
    assert caught.value.signal == "SIGKILL"
    thread.join()


def test_what_closes_its_sockets_before_it_ends_is_not_killed_for_that(process: VendorProcess) -> None:
    with pytest.raises(VendorEndedError, match="was ended by SIGABRT during"):
        process.run(called.cut_off_and, "abort")


def test_what_closes_its_sockets_and_stays_is_killed_for_that(process: VendorProcess) -> None:
    with pytest.raises(VendorEndedError, match=r"it was cut off: .*: process \d+ was killed"):
        process.run(called.cut_off_and, "stay")
    assert gone(process.pid)


def test_it_dies_between_two_calls(process: VendorProcess) -> None:
    assert process.run(called.same, 1) == 1
    os.kill(process.pid, signal.SIGTERM)
    process._watchdog.join(30)
    with pytest.raises(VendorEndedError, match=r"was not asked: process \d+ was ended by SIGTERM") as caught:
        process.run(called.same, 1)
    assert caught.value.signal == "SIGTERM"


def test_it_dies_after_it_was_looked_at_and_before_its_arguments_go(
    process: VendorProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = process._alive

    def look(what: str) -> None:
        looked(what)
        os.kill(process.pid, signal.SIGKILL)
        process._watchdog.join(60)

    monkeypatch.setattr(process, "_alive", look)
    with pytest.raises(VendorEndedError, match="was ended by SIGKILL during"):
        process.run(called.same, "x" * 100_000)


def test_without_a_memfd_nothing_is_called_and_the_process_serves_on(
    process: VendorProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str, flags: int = 0) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(os, "memfd_create", refuse)
        with pytest.raises(VendorPayloadError, match=r"there is no memfd for its arguments: .*Too many open files"):
            process.run(called.same, "x" * 100_000)
    assert process.run(called.same, "x" * 100_000) == "x" * 100_000


def test_an_interrupted_call_ends_the_process(process: VendorProcess) -> None:
    class Interrupt(BaseException):
        """What a test's own timeout raises."""

    def strike(number: int, frame: object) -> None:
        raise Interrupt

    before = signal.signal(signal.SIGALRM, strike)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        with pytest.raises(Interrupt):
            process.run(called.wait, 600)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    with pytest.raises(VendorEndedError, match="broken off by Interrupt"):
        process.run(called.same, 1)
    assert process.close().killed_for == "the call was broken off by Interrupt"


def test_what_the_kernel_cannot_end_is_reported_and_collected_later(
    start: Callable[..., VendorProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Signals are lost, as they are on a process that a driver blocks in the kernel."""
    from pytest_gpucoexist.processes import watchdog

    monkeypatch.setattr(watchdog, "KILL_WAIT_S", 0.2)
    lost: list[tuple[int, int]] = []
    process = start(send_signal=lambda pid, number: lost.append((pid, number)))
    with pytest.raises(
        VendorDeadlineError, match=r"was killed; process \d+ was killed and does not end \(state"
    ) as caught:
        process.run(called.wait, 600, deadline_s=0.3)
    assert str(process.pid) in str(caught.value)
    stuck = process.ending.stuck if process.ending is not None else None
    assert stuck is not None
    assert (stuck.pid, stuck.state) == (process.pid, "S")
    assert (process.pid, signal.SIGKILL) in lost
    assert (-process.pid, signal.SIGKILL) in lost
    assert "does not end" in stuck.describe()
    os.kill(process.pid, signal.SIGKILL)
    other = start()  # collects those that died since
    while not gone(process.pid):
        watchdog._reap_left_behind()
    assert other.run(called.same, 1) == 1
