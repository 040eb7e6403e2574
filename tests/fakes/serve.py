"""A client of the fake runtimes, in a process of its own: it does what its standard input says, line by line.

    python -m tests.fakes.serve

A line is a JSON list, `["cuda.allocate", 4096]`; the answer is `{"value": …}` or `{"error": NAME}`, NAME being the
vendor's own. `cuda` and `hip` are the real cuda-bindings and rocm-bindings-hip, imported when they are named; `host` is
memory of this process, which both can be given.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import mmap
import os
import sys
from typing import Any

__all__ = ["Refused", "main"]


class Refused(Exception):  # noqa: N818 - what a runtime said
    """A call that did not succeed; the message is the name of its status."""


class Host:
    """Buffers of whole pages, by address."""

    def __init__(self) -> None:
        self._buffers: dict[int, mmap.mmap] = {}

    def buffer(self, size_bytes: int) -> int:
        memory = mmap.mmap(-1, size_bytes)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self._buffers[address] = memory
        return address

    def write(self, address: int, data: str) -> None:
        raw = bytes.fromhex(data)
        ctypes.memmove(address, raw, len(raw))

    def read(self, address: int, size_bytes: int) -> str:
        return ctypes.string_at(address, size_bytes).hex()

    def pid(self) -> int:
        return os.getpid()

    def setenv(self, name: str, value: str) -> None:
        os.environ[name] = value

    def symbol(self, library: str, name: str) -> int:
        """Return the address of a symbol of a library that is loaded."""
        found = getattr(ctypes.CDLL(library, mode=os.RTLD_NOLOAD | os.RTLD_NOW), name)
        return ctypes.cast(found, ctypes.c_void_p).value or 0

    def fork_and(self, what: str, *args: Any) -> Any:
        """Do something in a child of this process; return its answer."""
        reading, writing = os.pipe()
        if os.fork() == 0:
            os.write(writing, json.dumps(_answer([what, *args])).encode())
            os._exit(0)
        os.wait()
        os.close(writing)
        with os.fdopen(reading) as file:
            answer = json.loads(file.read())
        return answer.get("error", answer.get("value"))


_RUNTIMES: dict[str, Any] = {"host": Host()}
_MODULES = {"cuda": ("tests.fakes.cuda_client", "Cuda"), "hip": ("tests.fakes.hip_client", "Hip")}


def _runtime(name: str) -> Any:
    if name not in _RUNTIMES:
        module, kind = _MODULES[name]
        _RUNTIMES[name] = getattr(importlib.import_module(module), kind)()
    return _RUNTIMES[name]


def _answer(request: list[Any]) -> dict[str, Any]:
    runtime, _, function = request[0].partition(".")
    try:
        return {"value": getattr(_runtime(runtime), function)(*request[1:])}
    except Refused as status:
        return {"error": str(status)}


def main() -> None:
    # What a library prints must not be taken for an answer.
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        for line in sys.stdin:
            print(json.dumps(_answer(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    # Not this module's own main: `Refused` is to be the class that the runtimes' modules import.
    importlib.import_module("tests.fakes.serve").main()
