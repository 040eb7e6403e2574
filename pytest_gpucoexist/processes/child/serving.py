"""The loop of a vendor process: one message, one answer, in the main thread, until the caller goes away.

Answers to a call are `done` with a value, `raised` with the traceback as text, `unsendable` (a result that cannot
travel), `unreadable` (arguments that did not arrive) and `unfound` (no such function in this interpreter).
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import platform
import socket
import sys
import traceback
from typing import Any, Protocol

from .carrier import receive_value, send_value
from .inside import loaded_modules, variables_now
from .lookup import LookupFailedError, extend_path, find_function
from .payload import PayloadError

__all__ = ["serve"]

_TEXT_LIMIT = 24 * 1024
"""Characters of one text of an answer: messages stay small enough that a socket takes them without waiting."""


class _Channel(Protocol):
    def send(self, item: object) -> None: ...
    def receive(self, timeout: float | None = None) -> Any: ...


def serve(channel: _Channel, descriptors_fd: int, trace_fd: int) -> None:
    """Answer until the channel ends."""
    descriptors = socket.socket(fileno=descriptors_fd)
    trace = os.fdopen(trace_fd, "wb", 0)
    faulthandler.enable(trace, all_threads=True)
    flush = _prepare_output()
    me = os.getpid()
    channel.send(_hello())
    while True:
        try:
            message = channel.receive()
        except EOFError:
            return
        if message["do"] == "call":
            reply = _call(message, descriptors, trace)
        elif message["do"] == "inspect":
            reply = {
                "variables": _plain(variables_now(message["names"])),
                "modules": _plain(loaded_modules(message["tops"], message["owners"])),
            }
        else:
            reply = {"status": "unknown"}
        flush()
        if os.getpid() != me:
            os._exit(0)  # the function forked, and this is the child that came back
        channel.send(reply)


def _hello() -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "executable": _clean(sys.executable),
        "prefix": _clean(sys.prefix),
        "version": platform.python_version(),
        "cpus": sorted(os.sched_getaffinity(0)),
    }


def _prepare_output() -> Any:
    """Write through: what was printed before a crash is there. Returns what flushes Python's and C's buffers."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)  # type: ignore[union-attr]
    try:
        import ctypes

        libc = ctypes.CDLL(None)
        # A file is buffered in blocks, and a killed process flushes none of them. 1 is _IOLBF of every libc of Linux.
        libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, 1, 0)
    except (ImportError, OSError, ValueError, AttributeError):
        libc = None

    def flush() -> None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):  # the function closed or replaced it
                stream.flush()
        if libc is not None:
            libc.fflush(None)

    return flush


def _call(message: dict[str, Any], descriptors: socket.socket, trace: Any) -> dict[str, Any]:
    try:
        arguments = receive_value(message["arguments"], descriptors)
    except (PayloadError, OSError, MemoryError) as error:
        return {"status": "unreadable", "text": _cut(f"{error}")}
    extend_path(list(map(os.fsdecode, message["folders"])))
    file = None if message["file"] is None else os.fsdecode(message["file"])
    try:
        function = find_function(message["module"], message["function"], file)
    except LookupFailedError as error:
        shown = _cut(_formatted(error.cause)) if error.cause is not None else ""
        return {"status": "unfound", "text": _cut(str(error)), "traceback": shown}
    # A C thread writes where the process is, should it hold the GIL at its deadline; just before it is killed.
    deadline_s = message["deadline_s"]
    faulthandler.dump_traceback_later(max(0.8 * deadline_s, deadline_s - 0.25), file=trace)
    try:
        value = function(*arguments)
    except BaseException as error:  # noqa: BLE001 - sys.exit() and a test's skip are answers, too
        return _raised(error)
    finally:
        faulthandler.cancel_dump_traceback_later()
    try:
        return {"status": "done", "value": _plain(send_value(value, "the result", descriptors))}
    except (PayloadError, OSError, MemoryError) as error:
        return {"status": "unsendable", "text": _cut(f"{error}" or type(error).__name__)}


def _raised(error: BaseException) -> dict[str, Any]:
    kind = type(error)
    try:
        text = str(error)
    except BaseException as second:  # noqa: BLE001 - it is the function's own code
        text = f"<its text cannot be had: {type(second).__name__}>"
    return {
        "status": "raised",
        "type": _clean(f"{kind.__module__}.{kind.__qualname__}"),
        "text": _cut(text),
        "traceback": _cut(_formatted(error)),
    }


def _formatted(error: BaseException) -> str:
    """Write a traceback without the frames of this package, but for an error that is wholly of them."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_globals.get("__package__") == __package__:
        frames = frames.tb_next
    try:
        return "".join(traceback.format_exception(type(error), error, frames))
    except BaseException as second:  # noqa: BLE001 - it is the function's own code
        return f"{type(error).__name__}: its traceback cannot be written: {type(second).__name__}\n"


def _cut(text: str) -> str:
    """Keep both ends of a text that is too long."""
    if len(text) > _TEXT_LIMIT:
        half = _TEXT_LIMIT // 2
        text = f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"
    return _clean(text)


def _clean(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _plain(value: Any) -> Any:
    """Make texts such as execnet takes: without lone surrogates, which file names can have."""
    if isinstance(value, str):
        return _clean(value)
    if isinstance(value, dict):
        return {_clean(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value
