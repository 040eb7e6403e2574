"""A running child of one vendor: call functions in it, ask what it is, end it.

Every wait has a deadline, at which the watchdog kills the process by PID; the thread that waits is woken by that.
Nothing is left: `close` ends the process and what it started, and closes every descriptor.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.errors import (
    VendorCallError,
    VendorEndedError,
    VendorFunctionError,
    VendorLaunchError,
    VendorPayloadError,
    VendorProcessError,
)
from pytest_gpucoexist.processes.child.carrier import receive_value, send_value
from pytest_gpucoexist.processes.child.payload import PayloadError
from pytest_gpucoexist.processes.control import Control, require_execnet
from pytest_gpucoexist.processes.endings import after_the_end
from pytest_gpucoexist.processes.kin import stuck_state
from pytest_gpucoexist.processes.launch import Launch, LaunchOrder
from pytest_gpucoexist.processes.records import CallRecord, CallResult, Inside
from pytest_gpucoexist.processes.references import Reference, project_folders, reference_of
from pytest_gpucoexist.processes.watchdog import KILL_WAIT_S, Ending, Watchdog

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    from pytest_gpucoexist.host.base import Host

__all__ = ["VendorProcess"]

_CUT_OFF = {errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.ESHUTDOWN, errno.EBADF}
_SLACK_S = 10.0
"""How much later than the deadline a wait gives up that the watchdog did not end: it never should."""


class VendorProcess:
    """One child. Calls of several threads wait for each other; a fork of the caller's process has no say in it."""

    def __init__(self, order: LaunchOrder, host: Host, *, send_signal: Callable[[int, int], None] = os.kill) -> None:
        """Start it and wait until it serves. `host` is this machine. Raises VendorLaunchError."""
        require_execnet()
        self.order = order
        self.records: list[CallRecord] = []
        self._host = host
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._control: Control | None = None
        self._closed = False
        self._launch = Launch(order, host.environ)
        self._watchdog = Watchdog(host, tick=self._trim, ended=self._cut, send_signal=send_signal)
        try:
            self.pid = self._watchdog.start(self._launch.start, self._launch.break_off, order.deadline_s)
        except BaseException:
            self._launch.close()
            raise
        try:
            self._hello = self._greet()
        except BaseException:
            self.close()
            raise

    @property
    def notes(self) -> tuple[str, ...]:
        """What was asked of the launch and could not be done, in words."""
        return self._launch.notes

    @property
    def version(self) -> str:
        """The version of its Python."""
        return str(self._hello["version"])

    @property
    def cpus(self) -> tuple[int, ...]:
        """The CPUs that it may run on."""
        return tuple(self._hello["cpus"])

    @property
    def ending(self) -> Ending | None:
        """How it ended; None while it runs."""
        return self._watchdog.ending

    @property
    def is_ending(self) -> bool:
        """Whether it has ended or is being ended, as after a call that was broken off."""
        return self._watchdog.is_condemned

    def run(self, function: Callable[..., Any] | Reference, *args: Any, deadline_s: float = 60.0) -> Any:
        """Call a module-level function there and return its result. Raises as `call` does."""
        return self.call(function, *args, deadline_s=deadline_s).value

    def call(self, function: Callable[..., Any] | Reference, *args: Any, deadline_s: float = 60.0) -> CallResult:
        """Call a module-level function there: its result, and what it wrote.

        Arguments and results are exact builtins, nested, and NumPy arrays. Raises VendorFunctionError and
        VendorPayloadError, after which the process serves on; VendorCallError when the function raised; when it did
        not return within `deadline_s` seconds VendorDeadlineError, and VendorEndedError when the process ended:
        then there is no process any more.
        """
        reference = reference_of(function)
        if not 0 < deadline_s < threading.TIMEOUT_MAX / 2:
            raise VendorProcessError(
                f"{reference.name}: a deadline is a positive number of seconds, not {deadline_s!r}"
            )
        with self._lock:
            self._alive(reference.name)
            began = time.monotonic()
            with self._guarded(deadline_s, f"{reference.name} did not return within {deadline_s:g} s"):
                try:
                    arguments = send_value(args, "the arguments", self._launch.descriptors)
                except PayloadError as error:
                    raise VendorPayloadError(f"{reference.name} cannot be called: {error}") from None
                except OSError as error:
                    if error.errno in _CUT_OFF:
                        raise self._after_the_end(reference.name, error) from error
                    raise VendorPayloadError(
                        f"{reference.name} cannot be called: there is no memfd for its arguments: {error}"
                    ) from error
                asked = {
                    "do": "call",
                    "module": reference.module,
                    "function": reference.function,
                    # As bytes: a path can have what is no text.
                    "file": None if reference.file is None else os.fsencode(reference.file),
                    "folders": list(map(os.fsencode, project_folders())),
                    "deadline_s": deadline_s,
                    "arguments": arguments,
                }
                reply = self._exchange(asked, deadline_s, reference.name)
                value: Any = None
                failure: VendorProcessError | None = None
                if reply["status"] == "done":
                    try:
                        value = receive_value(reply["value"], self._launch.descriptors)
                    except (PayloadError, OSError, MemoryError) as error:
                        failure = VendorPayloadError(f"the result of {reference.name} did not arrive: {error}")
                else:
                    failure = self._failure(reply, reference.name)
            duration = time.monotonic() - began
            stdout, stderr = self._launch.stdout.take(), self._launch.stderr.take()
            self._launch.trace.take()  # a dump that came just before the function returned after all
            notes = (*arguments["notes"], *(reply["value"]["notes"] if reply["status"] == "done" else ()))
            self._record(reference.name, duration, reply["status"], stdout, stderr, notes)
            if failure is not None:
                failure.stdout, failure.stderr = stdout, stderr
                raise failure
            return CallResult(value=value, stdout=stdout, stderr=stderr, duration_s=duration, notes=notes)

    def inspect(
        self, variables: Sequence[str], modules: Sequence[str], owners: str, *, deadline_s: float = 30.0
    ) -> Inside:
        """Return its variables and modules as they are now. Raises VendorEndedError and VendorDeadlineError."""
        with self._lock:
            self._alive("the inspection")
            asked = {"do": "inspect", "names": list(variables), "tops": list(modules), "owners": owners}
            with self._guarded(deadline_s, f"it did not say what is loaded within {deadline_s:g} s"):
                reply = self._exchange(asked, deadline_s, "the inspection")
        return Inside(variables=reply["variables"], modules=tuple(reply["modules"]))

    def close(self, reason: str = "it is not needed any more") -> Ending:
        """End the process and all it started, collect it, close everything. May be called again.

        Takes at most a few seconds. An ending with `stuck` is a process that the kernel cannot end.
        """
        if os.getpid() != self._owner:
            return Ending(killed_for="it belongs to another process")
        self._watchdog.kill(reason)
        ending = self._watchdog.join(KILL_WAIT_S + _SLACK_S) or Ending(
            killed_for=reason, stuck=stuck_state(self._host, self.pid)
        )
        if not self._closed:
            self._closed = True
            self._cut()
            if self._control is not None:
                self._control.close()
            stdout, stderr = self._launch.stdout.take(), self._launch.stderr.take()
            if stdout or stderr:
                self._record("after the last call", 0.0, "ended", stdout, stderr, ())
            self._launch.close()
        return ending

    def __enter__(self) -> VendorProcess:  # noqa: PYI034 - Self is of Python 3.11
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End it."""
        self.close()

    def _greet(self) -> Mapping[str, Any]:
        deadline_s = self.order.deadline_s
        launch = self._launch
        served = (launch.child_descriptors, launch.child_trace)
        self._watchdog.arm(deadline_s, f"it did not begin to serve within {deadline_s:g} s")
        try:
            self._control = Control(launch.control, served)
            hello: Mapping[str, Any] = self._control.receive(deadline_s + _SLACK_S)
        except (EOFError, OSError) as error:
            ending = self._watchdog.end("it did not begin to serve", _SLACK_S)
            how = ending.describe() if ending is not None else "does not end"
            stderr = launch.stderr.take()
            last = f": {stderr.strip()[-2000:]}" if stderr.strip() else ""
            raise VendorLaunchError(f"{self.order.python} {how}{last}", stderr=stderr) from error
        finally:
            self._watchdog.disarm()
        if hello["pid"] != self.pid:
            raise VendorLaunchError(
                f"{self.order.python} is a script that starts another process; name the interpreter"
            )
        return hello

    def _alive(self, what: str) -> None:
        ending = self._watchdog.ending
        if os.getpid() != self._owner:
            raise VendorProcessError(f"{what}: process {self.pid} belongs to process {self._owner}, not to its fork")
        if ending is not None or self._closed:
            how = ending.describe() if ending is not None else "was closed"
            error = VendorEndedError(f"{what} was not asked: process {self.pid} {how}")
            if ending is not None:
                error.code, error.signal = ending.code, ending.signal
            raise error

    @contextlib.contextmanager
    def _guarded(self, deadline_s: float, reason: str) -> Any:
        """Kill the process when the block takes too long, or is left by what breaks off a conversation."""
        self._watchdog.arm(deadline_s, reason)
        try:
            yield
        except VendorProcessError:
            raise
        except BaseException as error:
            # Ctrl-C, a test's own timeout: the next answer would be that of this question.
            self._watchdog.kill(f"the call was broken off by {type(error).__name__}")
            raise
        finally:
            self._watchdog.disarm()

    def _exchange(self, message: Mapping[str, Any], deadline_s: float, what: str) -> Mapping[str, Any]:
        assert self._control is not None
        try:
            self._control.send(dict(message))
            reply: Mapping[str, Any] = self._control.receive(deadline_s + KILL_WAIT_S + _SLACK_S)
            return reply
        except (EOFError, OSError) as error:
            raise self._after_the_end(what, error) from error

    def _after_the_end(self, what: str, error: Exception) -> VendorProcessError:
        """See to it that the process has ended, and return the error that says how."""
        ending = self._watchdog.end(f"it was cut off: {error}", _SLACK_S)
        launch = self._launch
        stdout, stderr, trace = launch.stdout.take(), launch.stderr.take(), launch.trace.take()
        self._record(what, 0.0, "ended", stdout, stderr, ())
        return after_the_end(what, self.pid, ending, stdout, stderr, trace)

    def _failure(self, reply: Mapping[str, Any], what: str) -> VendorProcessError:
        status, text = reply["status"], reply["text"]
        if status == "raised":
            failure = VendorCallError(f"{what} raised {reply['type']}: {text}\n\n{reply['traceback']}".rstrip())
            failure.remote_type, failure.remote_text = reply["type"], text
            failure.remote_traceback = reply["traceback"]
            return failure
        if status == "unfound":
            where = f"\n\n{reply['traceback']}".rstrip()
            return VendorFunctionError(
                f"{text}: move the function to a module that imports only what {self.order.python} has, "
                f"or install there what is missing{where}"
            )
        if status == "unsendable":
            return VendorPayloadError(f"{what} returned, and its result cannot come back: {text}")
        return VendorPayloadError(f"{what} was not called: its arguments did not arrive in {self.order.python}: {text}")

    def _record(
        self, what: str, duration_s: float, outcome: str, stdout: str, stderr: str, notes: tuple[str, ...]
    ) -> None:
        self.records.append(
            CallRecord(function=what, duration_s=duration_s, outcome=outcome, stdout=stdout, stderr=stderr, notes=notes)
        )

    def _trim(self) -> None:
        self._launch.stdout.trim()
        self._launch.stderr.trim()

    def _cut(self) -> None:
        """Wake whoever waits for the process: descriptors of it that others inherited would keep the sockets open."""
        for each in (self._launch.control, self._launch.descriptors):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
