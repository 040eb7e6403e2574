"""Run processes with a deadline and leave nothing behind: no zombie, no descriptor, no thread.

Each child is the leader of a session of its own; when it ended, or has to, its whole process group is killed. A child
that does not die (blocked in the kernel by a wedged driver) is not waited for: it is named and left.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_gpucoexist.host.base import Completed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Child", "Sink", "drive", "end", "reap_left_behind", "run_program", "start"]

KILL_WAIT_S = 0.5
"""How long a killed child may take to go. The kernel needs microseconds, unless the child hangs in a driver."""
EXIT_GRACE_S = 0.5
"""How long a child that has closed its answer may take to end: unloading a driver library can hang too."""
_POLL_S = 0.02  # where the kernel has no pidfd
_DRAIN_READS = 16  # times the size of a pipe
_PROGRAM_OUTPUT_BYTES = 4 * 2**20

_left_behind: list[subprocess.Popen[bytes]] = []


@dataclass(slots=True, kw_only=True)
class Sink:
    """The reading end of a pipe: keeps `limit` bytes, drains what comes after, and knows that there was more."""

    fd: int
    limit: int
    data: bytearray = field(default_factory=bytearray)
    overflow: bool = False
    open: bool = True

    def drain(self) -> None:
        """Take what is there without waiting, but not forever: an endless writer must not keep us here."""
        for _ in range(_DRAIN_READS):
            try:
                part = os.read(self.fd, 65536)
            except BlockingIOError:
                return
            except OSError:
                part = b""
            if not part:
                self.open = False
                return
            room = self.limit - len(self.data)
            self.data += part[:room]
            self.overflow = self.overflow or len(part) > room


@dataclass(slots=True, kw_only=True)
class Child:
    """A running child and its pipes.

    The end of the pipe `answer` means that the child has said all it has to say; `cut_off` that it was ended before.
    """

    process: subprocess.Popen[bytes]
    stdout: Sink
    stderr: Sink
    answer: Sink | None
    pidfd: int | None
    started: float
    exited: bool = False
    timed_out: bool = False
    cut_off: bool = False
    left_behind: bool = False
    returncode: int | None = None
    duration_s: float = 0.0
    grace_until: float | None = None

    @property
    def sinks(self) -> tuple[Sink, ...]:
        """All pipes."""
        return tuple(sink for sink in (self.stdout, self.stderr, self.answer) if sink is not None)


def start(
    argv: Sequence[str],
    environ: Mapping[str, str],
    *,
    output_bytes: int,
    answer_bytes: int | None = None,
) -> Child:
    """Start a child. With `answer_bytes`, `{fd}` in `argv` becomes the descriptor of an extra pipe. Raises OSError."""
    owned: list[int] = []
    try:
        out_read, out_write = _pipe(owned)
        err_read, err_write = _pipe(owned)
        answer_read = answer_write = -1
        if answer_bytes is not None:
            answer_read, answer_write = _pipe(owned)
        started = time.monotonic()
        process = subprocess.Popen(
            [part.replace("{fd}", str(answer_write)) if answer_bytes is not None else part for part in argv],
            stdin=subprocess.DEVNULL,
            stdout=out_write,
            stderr=err_write,
            env=dict(environ),
            pass_fds=(answer_write,) if answer_bytes is not None else (),
            start_new_session=True,
        )
    except ValueError as exc:  # a NUL in an argument
        _close(owned)
        raise OSError(22, str(exc)) from exc
    except BaseException:
        _close(owned)
        raise
    _close([out_write, err_write] + ([answer_write] if answer_bytes is not None else []))
    return Child(
        process=process,
        stdout=Sink(fd=out_read, limit=output_bytes),
        stderr=Sink(fd=err_read, limit=output_bytes),
        answer=None if answer_bytes is None else Sink(fd=answer_read, limit=answer_bytes),
        pidfd=_pidfd(process.pid),
        started=started,
    )


def drive(children: Sequence[Child], deadline_s: float) -> None:
    """Read from all children until each has ended or the deadline passed, then end what is left.

    Returns within `deadline_s` + KILL_WAIT_S; on an exception (Ctrl-C) the children are ended too.
    """
    deadline = time.monotonic() + deadline_s
    try:
        with selectors.DefaultSelector() as selector:
            _watch(children, selector, deadline)
    finally:
        end(children)


def reap_left_behind() -> None:
    """Collect children that were left and have died since; called before each new round."""
    _left_behind[:] = [process for process in _left_behind if process.poll() is None]


def run_program(argv: Sequence[str], environ: Mapping[str, str], timeout_s: float) -> Completed:
    """Run a program. Raises OSError when it cannot be started."""
    reap_left_behind()
    child = start(argv, environ, output_bytes=_PROGRAM_OUTPUT_BYTES)
    drive([child], timeout_s)
    return Completed(
        returncode=None if child.timed_out else child.returncode,
        stdout=bytes(child.stdout.data),
        stderr=bytes(child.stderr.data),
        timed_out=child.timed_out,
    )


def _watch(children: Sequence[Child], selector: selectors.BaseSelector, deadline: float) -> None:
    polled = False
    for child in children:
        for sink in child.sinks:
            selector.register(sink.fd, selectors.EVENT_READ, sink)
        if child.pidfd is not None:
            selector.register(child.pidfd, selectors.EVENT_READ, child)
        else:
            polled = True
    while True:
        now = time.monotonic()
        waiting = [child for child in children if not _finished(child, now)]
        if not waiting or now >= deadline:
            break
        wake = min([deadline, *(child.grace_until for child in waiting if child.grace_until is not None)])
        timeout = max(0.0, wake - now)
        for key, _events in selector.select(min(timeout, _POLL_S) if polled else timeout):
            if isinstance(key.data, Sink):
                key.data.drain()
                if not key.data.open:
                    selector.unregister(key.fd)
            else:
                key.data.exited = True
                selector.unregister(key.fd)
        if polled:
            for child in waiting:
                child.exited = child.exited or _has_exited(child.process.pid)
    for child in children:
        child.timed_out = not _finished(child, time.monotonic())


def _finished(child: Child, now: float) -> bool:
    if child.exited:
        return True
    answer = child.answer
    if answer is not None and (answer.overflow or (answer.data and not answer.open)):
        # It has answered. Give it a moment to end by itself, whatever its deadline is.
        if child.grace_until is None:
            child.grace_until = now + EXIT_GRACE_S
        return answer.overflow or now >= child.grace_until
    return False


def end(children: Sequence[Child]) -> None:
    """End every child and its group, collect it, close its pipes. Takes at most KILL_WAIT_S."""
    # The group first, while its leader is a zombie at most: nobody else can have that number yet.
    for child in children:
        child.cut_off = not child.exited and child.answer is not None and child.answer.open
        _kill_group(child.process.pid)
    patience = time.monotonic() + KILL_WAIT_S
    for child in children:
        child.left_behind = not _reap(child.process, max(0.0, patience - time.monotonic()))
        child.returncode = child.process.returncode
        child.duration_s = time.monotonic() - child.started
        if child.left_behind:
            _left_behind.append(child.process)
        for sink in child.sinks:
            sink.drain()
        _close([sink.fd for sink in child.sinks] + ([child.pidfd] if child.pidfd is not None else []))


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _reap(process: subprocess.Popen[bytes], patience_s: float) -> bool:
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def _has_exited(pid: int) -> bool:
    # WNOWAIT leaves the zombie, so that its group can still be killed by number.
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):  # older kernels, gVisor, other systems
        return None


def _pipe(owned: list[int]) -> tuple[int, int]:
    read, write = os.pipe()
    owned += [read, write]
    os.set_blocking(read, False)
    return read, write


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)
