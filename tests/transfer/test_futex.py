"""Counters in shared memory: who waits is woken, whoever posts, and nobody waits for longer than told."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import signal
import threading
import time
from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist.transfer import syscalls
from pytest_gpucoexist.transfer.futex import EventCounter, FutexCounter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_gpucoexist.transfer.futex import SharedCounter

LONG_S = 60.0

# A child of a fork touches the counter and ends, whatever threads the test's process has.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")


@pytest.fixture
def word() -> Iterator[int]:
    """The address of a word that a forked child shares."""
    memory = mmap.mmap(-1, mmap.PAGESIZE)
    yield ctypes.addressof(ctypes.c_char.from_buffer(memory))
    memory.close()


@pytest.fixture(params=["futex", "eventfd"])
def counter(request: pytest.FixtureRequest, word: int) -> Iterator[SharedCounter]:
    """A counter of either kind."""
    if request.param == "futex":
        yield FutexCounter(word)
        return
    descriptor = os.eventfd(0, os.EFD_CLOEXEC)
    yield EventCounter(word, descriptor)
    os.close(descriptor)


def _in_child(work: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return pid


def test_a_counter_that_has_changed_is_not_waited_for(counter: SharedCounter) -> None:
    counter.post(7)
    assert counter.value == 7
    assert counter.wait(3, LONG_S) == 7


def test_a_post_of_another_process_wakes(counter: SharedCounter) -> None:
    pid = _in_child(lambda: counter.post(1))
    assert counter.wait(0, LONG_S) == 1
    assert os.waitpid(pid, 0)[1] == 0


def test_a_process_is_woken_each_time(counter: SharedCounter, word: int) -> None:
    """A thousand times there and back: not one wake-up is lost."""
    back = FutexCounter(word + 64)

    def echo() -> None:
        for number in range(1, 1001):
            while counter.wait(number - 1, LONG_S) == number - 1:
                pass
            back.post(number)

    pid = _in_child(echo)
    for number in range(1, 1001):
        counter.post(number)
        while (got := back.wait(number - 1, LONG_S)) == number - 1:
            pass
        assert got == number
    assert os.waitpid(pid, 0)[1] == 0


def test_the_time_is_over_with_the_old_value(counter: SharedCounter) -> None:
    begun = time.monotonic()
    assert counter.wait(0, 0.03) == 0
    assert time.monotonic() - begun >= 0.03
    assert counter.wait(0, 0.0) == 0
    assert counter.wait(0, -1.0) == 0


def test_the_whole_range_of_a_word(counter: SharedCounter) -> None:
    counter.post(0xFFFFFFFF)
    assert counter.wait(0, LONG_S) == 0xFFFFFFFF
    counter.post(0)
    assert counter.wait(0xFFFFFFFF, LONG_S) == 0


def test_the_interpreter_runs_on_while_one_thread_waits(counter: SharedCounter) -> None:
    got: list[int] = []
    thread = threading.Thread(target=lambda: got.append(counter.wait(0, LONG_S)))
    thread.start()
    counter.post(5)
    thread.join()
    assert got == [5]


def test_a_signal_s_handler_runs_while_one_waits(word: int) -> None:
    counter = FutexCounter(word)

    def handler(number: int, frame: object) -> None:
        raise InterruptedError

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)  # again and again: the first may come before the wait
        with pytest.raises(InterruptedError):
            counter.wait(0, LONG_S)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_wake_without_a_change_lets_look_around(counter: SharedCounter) -> None:
    done = threading.Event()
    got: list[int] = []

    def wait() -> None:
        got.append(counter.wait(0, LONG_S))
        done.set()

    thread = threading.Thread(target=wait)
    thread.start()
    while not done.wait(0.01):
        counter.wake()
    thread.join()
    assert got == [0]


def test_an_address_that_no_futex_can_have(word: int) -> None:
    with pytest.raises(ValueError, match="multiple of 4"):
        FutexCounter(word + 2)


def test_a_machine_whose_numbers_are_not_known(word: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "m68k")
    with pytest.raises(OSError, match="no number of futex for linux m68k"):
        FutexCounter(word)


def test_what_the_kernel_refuses_is_an_error_with_its_reason() -> None:
    with pytest.raises(OSError, match=r"mbind: (Bad address|Invalid argument)"):
        syscalls.syscall("mbind", *[ctypes.c_void_p(1)] * 6)
