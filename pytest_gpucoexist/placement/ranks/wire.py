"""How the ranks of one node speak: JSON with a length before it, over a Unix socket that has no file.

The name is in Linux's abstract namespace: it belongs to a network namespace, and is gone with the process that listens,
however that ends. Everybody may connect to such a name, so both sides ask the kernel whose process the other one is.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import struct
import sys
import threading
import time
import weakref
from typing import Any

from pytest_gpucoexist.errors import GpuCoexistError

__all__ = ["SEND_S", "Connection", "address_of", "connect", "is_possible", "listen", "peer_uid"]

SEND_S = 60.0
"""A peer that takes nothing for so long is stopped: nobody waits for it any longer."""

_LIMIT = 1 << 28  # far above any machine and any list of tests; a length beyond it is no message of ours


def is_possible() -> bool:
    """Whether this system has what it takes."""
    return sys.platform == "linux"


def address_of(job: str) -> str:
    """Return the name at which the ranks of a job meet: other jobs and other users have others."""
    digest = hashlib.sha256(job.encode(errors="surrogateescape")).hexdigest()[:32]
    return f"\0pytest-gpucoexist/{os.getuid()}/{digest}"


def listen(address: str) -> socket.socket:
    """Listen. Raises GpuCoexistError where somebody does already."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        server.bind(address)
        server.listen(64)
    except OSError as error:
        server.close()
        raise GpuCoexistError(
            f"the ranks cannot meet at {address[1:]}: {error.strerror}; another process is rank 0 of this node there"
        ) from None
    _opened.add(server)
    return server


def connect(address: str, deadline_s: float) -> Connection:
    """Connect to rank 0 of this node, which may come later. Raises GpuCoexistError after `deadline_s`."""
    until = time.monotonic() + deadline_s
    while True:
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            client.connect(address)
            break
        except OSError as error:
            client.close()
            if time.monotonic() >= until:
                raise GpuCoexistError(
                    f"rank 0 of this node did not come to the other ranks within {deadline_s:g} s ({error.strerror}): "
                    "did it fail, or collect no test that needs a GPU?"
                ) from None
        time.sleep(0.02)
    uid = peer_uid(client)
    if uid != os.getuid():
        client.close()
        raise GpuCoexistError(f"who listens at {address[1:]} is a process of user {uid}, not of this one")
    return Connection(client)


def peer_uid(end: socket.socket) -> int:
    """Return the user of the process that connected or listened, by the kernel's word."""
    credentials = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])


class Connection:
    """One end: messages of builtin types, sent whole from any thread, received by one."""

    def __init__(self, end: socket.socket) -> None:
        """Take over a connected socket."""
        self._end = end
        self._sending = threading.Lock()
        # Receiving waits as long as it takes: this bounds only what is sent.
        seconds = struct.pack("@qq", int(SEND_S), 0)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, seconds)
        _opened.add(end)

    def send(self, message: object) -> bool:
        """Send; False when the other side is gone, or takes nothing any more."""
        data = json.dumps(message).encode()
        try:
            with self._sending:
                self._end.sendall(struct.pack("!I", len(data)) + data)
        except OSError:
            return False
        return True

    def receive(self) -> Any:
        """Wait for a message; None when the other side is gone or sends what is none."""
        head = self._exactly(4)
        if head is None:
            return None
        (length,) = struct.unpack("!I", head)
        body = self._exactly(length) if length <= _LIMIT else None
        try:
            return None if body is None else json.loads(body)
        except ValueError:
            return None

    def _exactly(self, count: int) -> bytes | None:
        parts = bytearray()
        while len(parts) < count:
            try:
                part = self._end.recv(min(count - len(parts), 1 << 20))
            except OSError:
                return None
            if not part:
                return None
            parts += part
        return bytes(parts)

    def close(self) -> None:
        """End it; a thread that receives is woken."""
        with contextlib.suppress(OSError):  # the other side was first
            self._end.shutdown(socket.SHUT_RDWR)
        self._end.close()


# A child that a test forks has copies of these: it would keep a dead rank's connection alive.
_opened: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def _close_in_child() -> None:
    for end in tuple(_opened):
        end.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)
