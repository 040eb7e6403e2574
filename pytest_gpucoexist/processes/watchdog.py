"""The thread of a vendor process: it starts it, lives as long, kills it at its deadline, and collects it.

It starts the process because the signal at the parent's death comes when the *thread* that forked ends. It kills by
PID, beside whatever the other threads do: a thread may be blocked in a send that only the process's death ends.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpucoexist.processes.kin import Stuck, descendants, stuck_state

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    from pytest_gpucoexist.host.base import Host

__all__ = ["KILL_WAIT_S", "Ending", "Watchdog"]

KILL_WAIT_S = 3.0
"""How long a killed process may take to go: to free the memory of a large one takes the kernel a while."""
DYING_S = 2.0
"""How long a process may take from the loss of its sockets to its end, before it is killed for the loss."""
_TICK_S = 0.5
_POLL_S = 0.02  # where the kernel has no pidfd

_left_behind: list[subprocess.Popen[bytes]] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a process ended. `code` is its exit status, `signal` the name of the signal that ended it.

    `killed_for` is why this package ended it; None when it ended by itself. `late`: because a deadline passed.
    `stuck`: it has not ended.
    """

    code: int | None = None
    signal: str | None = None
    killed_for: str | None = None
    late: bool = False
    stuck: Stuck | None = None

    def describe(self) -> str:
        """Say it in words that follow "the process"."""
        if self.stuck is not None:
            return f"cannot be ended: {self.stuck.describe()}"
        if self.killed_for is not None:
            return f"was killed: {self.killed_for}"
        return f"was ended by {self.signal}" if self.signal else f"ended with status {self.code}"


class Watchdog:
    """One process and the thread that has charge of it. `start` may be called once; the rest by any thread."""

    def __init__(
        self,
        host: Host,
        *,
        tick: Callable[[], None] = lambda: None,
        ended: Callable[[], None] = lambda: None,
        send_signal: Callable[[int, int], None] = os.kill,
    ) -> None:
        """`tick` is called now and then while the process lives, `ended` once, in the thread, when it does not."""
        self._host = host
        self._tick = tick
        self._ended = ended
        self._send_signal = send_signal
        self._lock = threading.Lock()
        self._deadline: tuple[float, str] | None = None
        self._condemned: str | None = None
        self._wake = -1
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self.ending: Ending | None = None

    def start(
        self, launch: Callable[[], subprocess.Popen[bytes]], break_off: Callable[[], None], patience_s: float
    ) -> int:
        """Start the process in a thread of its own and return its PID. Raises what `launch` raises.

        When it takes longer than `patience_s` seconds, `break_off` is called to make it return.
        """
        _reap_left_behind()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._run, args=(launch,), name="gpucoexist-process", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            os.close(self._wake)
            self._wake = -1
            raise
        try:
            self._await_start(break_off, patience_s)
        except BaseException:  # Ctrl-C: the thread sees it when the launch is over
            self.kill("the launch was broken off")
            self._await_start(break_off, DYING_S)
            self._thread.join()
            raise
        if self._failure is not None:
            self._thread.join()
            raise self._failure
        assert self._process is not None
        return self._process.pid

    def _await_start(self, break_off: Callable[[], None], patience_s: float) -> None:
        while not self._started.wait(patience_s):
            break_off()  # again, should there have been nothing to end yet
            patience_s = _TICK_S

    def arm(self, deadline_s: float, reason: str) -> None:
        """Kill the process in `deadline_s` seconds, unless `disarm` is called before."""
        with self._lock:
            self._deadline = (time.monotonic() + deadline_s, reason)
        self._notify()

    def disarm(self) -> None:
        """Take the deadline back."""
        with self._lock:
            self._deadline = None

    def kill(self, reason: str) -> None:
        """End the process and what it started, soon; the first reason stays."""
        with self._lock:
            self._condemned = self._condemned or reason
        self._notify()

    @property
    def is_condemned(self) -> bool:
        """Whether its end was asked for, or has come: it is of no use any more."""
        return self._condemned is not None or self.ending is not None

    def join(self, timeout_s: float) -> Ending | None:
        """Wait for the end; None when it has not come."""
        if self._thread is not None:
            self._thread.join(timeout_s)
        return self.ending

    def end(self, reason: str, slack_s: float) -> Ending | None:
        """Wait for the end of a process that is cut off; kill it when it does not come by itself."""
        # The kernel closes what a dying process had open before it can say how the process ended: to kill it at
        # once would hide that.
        ending = self.join(DYING_S)
        if ending is not None:
            return ending
        self.kill(reason)
        return self.join(KILL_WAIT_S + slack_s)

    def _notify(self) -> None:
        with self._lock:
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)

    def _run(self, launch: Callable[[], subprocess.Popen[bytes]]) -> None:
        try:
            self._process = launch()
        except BaseException as error:  # noqa: BLE001 - it is raised by `start`, in the thread that waits
            self._failure = error
            self._close_wake()
            self._started.set()
            return
        pidfd = _pidfd(self._process.pid)
        self._started.set()
        try:
            reason, late = self._watch(self._process, pidfd)
            self.ending = self._end(self._process, pidfd, reason, late=late)
        finally:
            if pidfd is not None:
                os.close(pidfd)
            self._close_wake()
            self._ended()

    def _close_wake(self) -> None:
        with self._lock:
            os.close(self._wake)
            self._wake = -1

    def _watch(self, process: subprocess.Popen[bytes], pidfd: int | None) -> tuple[str | None, bool]:
        """Wait until the process has ended (None), or has to end: why, and whether it is too late."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        if pidfd is not None:
            poll.register(pidfd, select.POLLIN)
        while True:
            with self._lock:
                if self._condemned is not None:
                    return self._condemned, False
                left = _TICK_S
                if self._deadline is not None:
                    left = min(left, self._deadline[0] - time.monotonic())
                    if left <= 0:
                        return self._deadline[1], True
            events = poll.poll(1000 * (left if pidfd is not None else min(left, _POLL_S)))
            if any(fd == pidfd for fd, _ in events) or (pidfd is None and _has_exited(process.pid)):
                return None, False
            if any(fd == self._wake for fd, _ in events):
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._wake)
            self._tick()

    def _end(self, process: subprocess.Popen[bytes], pidfd: int | None, reason: str | None, *, late: bool) -> Ending:
        """Kill what is left of it and collect it. The PID is its own until it has been collected."""
        others = descendants(self._host, process.pid)
        if reason is not None:
            # Stopped first, so that it starts nothing while its children are looked up.
            self._signal(process.pid, signal.SIGSTOP)
            others = descendants(self._host, process.pid)
            self._signal(process.pid, signal.SIGKILL)
        for pid in (-process.pid, *others):  # a negative number is the group (kill(2))
            self._signal(pid, signal.SIGKILL)
        if not _wait(process.pid, pidfd, KILL_WAIT_S):
            _left_behind.append(process)
            return Ending(killed_for=reason, late=late, stuck=stuck_state(self._host, process.pid))
        code = process.wait()
        by_us = reason if code == -signal.SIGKILL else None
        name = _signal_name(-code) if code < 0 else None
        late = late and by_us is not None
        return Ending(code=code if code >= 0 else None, signal=name, killed_for=by_us, late=late)

    def _signal(self, pid: int, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            self._send_signal(pid, number)


def _wait(pid: int, pidfd: int | None, patience_s: float) -> bool:
    if pidfd is not None:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        return bool(poll.poll(1000 * patience_s))
    end = time.monotonic() + patience_s
    while not _has_exited(pid):
        if time.monotonic() > end:
            return False
        time.sleep(_POLL_S)
    return True


def _has_exited(pid: int) -> bool:
    # WNOWAIT leaves the zombie, so that its group can still be killed by number.
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except OSError:  # older kernels, gVisor
        return None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _reap_left_behind() -> None:
    """Collect those that were left and have died since."""
    _left_behind[:] = [process for process in _left_behind if process.poll() is None]
