"""How a value goes over: small ones inside the control message, larger ones in a memfd whose descriptor is passed.

The descriptor goes over a Unix socket (SCM_RIGHTS), which works where `/proc/PID/fd` may not be opened. A memfd has no
name and is gone with its last descriptor, whoever dies when.
"""

from __future__ import annotations

import os
import socket
from typing import Any

from .payload import Encoded, PayloadError, decode, encode

__all__ = ["INLINE_BYTES", "receive_value", "send_value"]

INLINE_BYTES = 32 * 1024
"""A message of this size never fills the socket: control stays punctual."""
_PART_BYTES = 1 << 30  # read and write take at most 2 GiB at a time


def send_value(value: object, name: str, descriptors: socket.socket) -> dict[str, Any]:
    """Encode a value and return what the control message says of it; the bytes of a large one are on their way.

    Raises PayloadError, and OSError where there is no memory or no other side.
    """
    encoded = encode(value, name)
    about = {"structure": len(encoded.structure), "size": encoded.size_bytes, "notes": encoded.notes, "inline": None}
    if encoded.size_bytes <= INLINE_BYTES:
        message = bytearray(encoded.size_bytes)
        for offset, data in encoded.parts():
            message[offset : offset + len(data)] = data
        return {**about, "inline": bytes(message)}
    memory = _filled(encoded)
    try:
        socket.send_fds(descriptors, [b"m"], [memory])
    finally:
        os.close(memory)
    return about


def receive_value(about: dict[str, Any], descriptors: socket.socket) -> Any:
    """Return the value that a control message speaks of. Raises PayloadError and OSError."""
    size, length = int(about["size"]), int(about["structure"])
    inline = about["inline"]
    if inline is not None:

        def fetch(offset: int, into: Any) -> None:
            view = memoryview(into)
            part = inline[offset : offset + len(view)]
            if len(part) != len(view):
                raise ValueError("it is cut off")
            view[:] = part

        return decode(inline[:length], fetch)
    memory = _received(descriptors)
    try:
        there = os.fstat(memory).st_size
        if there != size:
            raise PayloadError(f"a message of {size} bytes arrived in a memfd of {there}")
        structure = bytearray(length)
        _read(memory, 0, structure)
        return decode(bytes(structure), lambda offset, into: _read(memory, offset, into))
    finally:
        os.close(memory)


def _filled(encoded: Encoded) -> int:
    memory = os.memfd_create("gpucoexist-value", os.MFD_CLOEXEC)
    try:
        os.ftruncate(memory, encoded.size_bytes)
        for start, data in encoded.parts():
            view, at = memoryview(data), start
            while view:
                written = os.pwrite(memory, view[:_PART_BYTES], at)
                view, at = view[written:], at + written
    except BaseException:
        os.close(memory)
        raise
    return memory


def _received(descriptors: socket.socket) -> int:
    data, found, _flags, _address = socket.recv_fds(descriptors, 1, 1)
    if not data:
        raise OSError("the other side is gone")
    if len(found) != 1:
        raise OSError("no descriptor arrived: this process has reached its limit of open files (ulimit -n)")
    os.set_inheritable(found[0], False)
    return found[0]


def _read(memory: int, offset: int, into: Any) -> None:
    view = memoryview(into)
    while view:
        count = os.preadv(memory, [view[:_PART_BYTES]], offset)
        if count == 0:
            raise ValueError("it is cut off")
        view, offset = view[count:], offset + count
