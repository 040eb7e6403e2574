"""Control over execnet: small messages to a process and back, over a socket that any thread may cut.

execnet starts processes itself, but without an environment of their own, and binds its channel to their standard
output. So the process is started here, and execnet gets a socket and its base at the other end.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Any

from pytest_gpucoexist.errors import VendorLaunchError
from pytest_gpucoexist.processes.bundle import SERVE

__all__ = ["Control", "require_execnet"]

_JOIN_S = 5.0


def require_execnet() -> None:
    """Raise VendorLaunchError where execnet is not installed."""
    try:
        import execnet  # noqa: F401
    except ImportError as error:
        raise VendorLaunchError(
            "a vendor process needs execnet, which comes with pytest-xdist: pip install 'execnet>=2.1'"
        ) from error


class _SocketIO:
    """execnet's IO (`execnet.gateway_base.IO`) over a connected socket."""

    def __init__(self, connected: socket.socket, execmodel: Any) -> None:
        self._socket = connected
        self._owner = os.getpid()
        self.execmodel = execmodel

    def read(self, numbytes: int) -> bytes:
        parts = bytearray()
        while len(parts) < numbytes:
            part = self._socket.recv(numbytes - len(parts))
            if not part:
                raise EOFError(f"expected {numbytes} bytes, got {len(parts)}")
            parts += part
        return bytes(parts)

    def write(self, data: bytes) -> None:
        if os.getpid() != self._owner:
            # execnet's channel says goodbye when it is collected, in a fork of this process too.
            raise OSError("a fork of the process has no say in it")
        self._socket.sendall(data)

    def close_read(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RD)

    def close_write(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def wait(self) -> None:
        """Do nothing: the watchdog waits for the process."""

    def kill(self) -> None:
        """Do nothing: the watchdog kills the process."""


class Control:
    """The caller's end. Raises EOFError or OSError when the process is gone, from each method but `close`."""

    def __init__(self, connected: socket.socket, served: tuple[Any, ...]) -> None:
        """Wait until the process serves; `served` are the arguments of `child.serving.serve` behind the channel."""
        from execnet.gateway import Gateway
        from execnet.gateway_base import get_execmodel
        from execnet.xspec import XSpec

        io = _SocketIO(connected, get_execmodel("thread"))
        if io.read(1) != b"1":
            raise EOFError("the process began with something else")
        self._gateway = Gateway(io, XSpec("popen//id=gpucoexist"))
        self._channel = self._gateway.remote_exec(SERVE)
        self._channel.send(served)

    def send(self, message: object) -> None:
        """Send builtins. Blocks while the process does not read and the socket is full, until the socket is cut."""
        self._channel.send(message)

    def receive(self, timeout_s: float) -> Any:
        """Return the next message. Raises EOFError, OSError (execnet's TimeoutError among them)."""
        try:
            return self._channel.receive(timeout_s)
        except self._channel.RemoteError as error:
            raise EOFError(f"the process's own loop failed: {error}") from error

    def close(self) -> None:
        """Wait for execnet's thread, whose socket has been cut."""
        self._gateway.join(_JOIN_S)
