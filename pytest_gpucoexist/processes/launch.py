"""Start the process of a vendor: its environment is complete before its interpreter is loaded.

A small script of pytest's own interpreter stands between (`child/launcher.py`). Standard output and error go to memfds
from the first instruction on, standard input is empty, and of the caller's descriptors it gets only its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_gpucoexist.errors import VendorLaunchError
from pytest_gpucoexist.processes.bundle import boot_source, bundle
from pytest_gpucoexist.processes.captures import Capture
from pytest_gpucoexist.processes.forking import Forking

__all__ = ["Launch", "LaunchOrder", "find_interpreter"]

_KILL_WAIT_S = 3.0
_LAUNCHER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "child", "launcher.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOrder:
    """What to start. `cpus` and `node` bind its CPU affinity and its memory; None leaves them as the caller's are."""

    python: str
    environment: Mapping[str, str]
    cpus: Sequence[int] | None = None
    node: int | None = None
    deadline_s: float = 30.0


@dataclass(slots=True)
class Launch:
    """The descriptors of one process, from before it starts until after it has ended.

    `child_…` are the numbers that descriptors have in the process. `notes` say what of the order could not be done.
    """

    order: LaunchOrder
    launcher_environment: Mapping[str, str]
    control: socket.socket = field(init=False)
    descriptors: socket.socket = field(init=False)
    stdout: Capture = field(init=False)
    stderr: Capture = field(init=False)
    trace: Capture = field(init=False)
    notes: tuple[str, ...] = ()
    child_descriptors: int = -1
    child_trace: int = -1
    _theirs: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _ours: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _bundle: int = -1
    _child_control: int = -1
    _forking: Forking = field(default_factory=Forking)

    def __post_init__(self) -> None:
        """Open everything. Raises VendorLaunchError and leaves nothing open."""
        try:
            self._open()
        except OSError as error:
            self.close()
            raise VendorLaunchError(f"no descriptors for a vendor process: {error}") from error
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        self.stdout = self._capture("stdout")
        self.stderr = self._capture("stderr")
        self.trace = self._capture("trace")
        self.control, control = self._pair()
        self.descriptors, descriptors = self._pair()
        self._bundle = self._memory("bundle", bundle())
        self._child_control, self.child_descriptors = control.fileno(), descriptors.fileno()
        self.child_trace = self.trace.fd

    def start(self) -> subprocess.Popen[bytes]:
        """Start it and wait until its interpreter has taken over. For the thread that lives as long as the process.

        Raises VendorLaunchError, with the process gone.
        """
        order = self.order
        child = [self._bundle, self._child_control, self.child_descriptors, self.child_trace]
        whole = {
            "argv": [order.python, "-u", "-c", boot_source(), *map(str, child)],
            "environment": dict(order.environment),
            "parent": os.getpid(),
            "cpus": None if order.cpus is None else list(order.cpus),
            "node": order.node,
        }
        reading, writing = os.pipe2(os.O_CLOEXEC)
        with os.fdopen(reading, "rb", 0) as answer:
            try:
                told = self._memory("order", json.dumps(whole).encode())
                process = self._forking.start(
                    [sys.executable, "-I", "-S", _LAUNCHER, str(told), str(writing)],
                    stdin=subprocess.DEVNULL,
                    stdout=self.stdout.fd,
                    stderr=self.stderr.fd,
                    env=dict(self.launcher_environment),
                    pass_fds=(*child, told, writing),
                    start_new_session=True,
                )
            except (OSError, ValueError) as error:
                raise VendorLaunchError(f"{sys.executable} cannot be started: {error}") from error
            finally:
                os.close(writing)
                self._theirs.close()
            try:
                self._take_over(process, answer.fileno())
            except BaseException:
                process.kill()
                with contextlib.suppress(subprocess.TimeoutExpired):  # Popen collects it later
                    process.wait(_KILL_WAIT_S)
                raise
        return process

    def break_off(self) -> None:
        """End what `start` waits for, from another thread."""
        self._forking.kill()

    def _take_over(self, process: subprocess.Popen[bytes], answer: int) -> None:
        """Read what the launcher says until the pipe is closed: by `execve`, or by its end."""
        text = b""
        end = time.monotonic() + self.order.deadline_s
        poll = select.poll()
        poll.register(answer, select.POLLIN)
        while True:
            if not poll.poll(1000 * max(0.0, end - time.monotonic())) or self._forking.is_killed:
                raise VendorLaunchError(
                    f"{self.order.python} did not start within {self.order.deadline_s:g} s", stderr=self.stderr.take()
                )
            part = os.read(answer, 65536)
            if not part:
                break
            text += part
        said: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines()]
        failed = next((each for each in said if "error" in each), None)
        if failed is not None:
            raise VendorLaunchError(
                f"{self.order.python} cannot be started: {failed['error']}; name an interpreter that is there"
            )
        if not said:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_KILL_WAIT_S)
            status, stderr = process.returncode, self.stderr.take()
            raise VendorLaunchError(
                f"the launcher of {self.order.python} ended before it (status {status}): {stderr}", stderr=stderr
            )
        self.notes = tuple(said[0]["notes"])

    def close(self) -> None:
        """Close everything that is still open."""
        self._theirs.close()
        self._ours.close()

    def _capture(self, name: str) -> Capture:
        capture = Capture(name)
        self._ours.callback(capture.close)
        return capture

    def _pair(self) -> tuple[socket.socket, socket.socket]:
        ours, theirs = socket.socketpair()
        self._ours.callback(ours.close)
        self._theirs.callback(theirs.close)
        return ours, theirs

    def _memory(self, name: str, data: bytes) -> int:
        memory = os.memfd_create(f"gpucoexist-{name}", os.MFD_CLOEXEC)
        self._theirs.callback(os.close, memory)
        view = memoryview(data)
        while view:
            view = view[os.write(memory, view) :]
        os.lseek(memory, 0, os.SEEK_SET)
        return memory


def find_interpreter(name: str, environment: Mapping[str, str]) -> str:
    """Return the path of an interpreter, looked for in the child's `PATH`. Raises VendorLaunchError.

    Links are not followed: a virtual environment is known by the link to its interpreter.
    """
    found = shutil.which(os.path.expanduser(name), path=environment.get("PATH", os.defpath))
    if found is None:
        raise VendorLaunchError(
            f"there is no interpreter {name}: it is neither an executable file nor a name in the process's PATH "
            f"({environment.get('PATH', 'unset')})"
        )
    return os.path.abspath(found)
