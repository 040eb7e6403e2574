"""Functions that the tests call in vendor processes. Standard library only: an interpreter may have nothing else."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any

logger = logging.getLogger(__name__)


class OddError(Exception):
    """Cannot be pickled, and its text cannot be had."""

    def __init__(self, first: object, second: object) -> None:
        super().__init__()
        self.parts = first, second

    def __str__(self) -> str:
        raise RuntimeError("no text")


class Tools:
    """A namespace."""

    @staticmethod
    def double(value: int) -> int:
        return 2 * value


def same(*values: Any) -> Any:
    return values[0] if len(values) == 1 else values


def where() -> dict[str, Any]:
    return {"pid": os.getpid(), "executable": sys.executable, "name": __name__, "file": __file__, "path": sys.path}


def group() -> tuple[int, int, int]:
    return os.getpid(), os.getpgid(0), os.getsid(0)


def variables(*names: str) -> dict[str, str | None]:
    return {name: os.environ.get(name) for name in names}


def set_variable(name: str, value: str) -> None:
    os.environ[name] = value


def set_by_libc(name: str, value: str) -> None:
    ctypes.CDLL(None).setenv(name.encode(), value.encode(), 1)


def speak(out: str, err: str) -> str:
    print(out)
    print(err, file=sys.stderr)
    return "spoken"


def speak_everywhere() -> None:
    print("by print")
    os.write(1, b"by write\n")
    ctypes.CDLL(None).printf(b"by printf, without an end of line")
    subprocess.run([sys.executable, "-c", "print('by a child')"], check=True)
    logger.warning("by logging")


def flood(size: int) -> int:
    line = b"x" * 65535 + b"\n"
    for _ in range(size // len(line)):
        os.write(1, line)
    os.write(1, b"the end\n")
    return size


def read_stdin() -> str:
    return sys.stdin.read()


def fail(text: str) -> None:
    deeper(text)


def deeper(text: str) -> None:
    try:
        dict[str, str]()["absent"]
    except KeyError as error:
        raise ValueError(text) from error


def fail_oddly() -> None:
    raise OddError(1, 2)


def leave(status: int) -> None:
    sys.exit(status)


def end_at_once(status: int) -> None:
    print("last words", file=sys.stderr)
    os._exit(status)


def crash() -> None:
    print("before the crash")
    ctypes.string_at(0)


def abort() -> None:
    os.abort()


def wait(seconds: float) -> None:
    time.sleep(seconds)


def hold_the_gil(seconds: int) -> None:
    # PyDLL keeps the lock that CDLL gives back: no other thread of this process runs.
    ctypes.PyDLL(None).sleep(seconds)


def stop_myself() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def return_an_object() -> Any:
    return {"right": [1, 2], "wrong": [threading.Lock()]}


def return_an_array(size: int) -> Any:
    import numpy as np

    return np.arange(size, dtype=np.float64)


def doubled(array: Any) -> Any:
    return array * 2


def described(array: Any) -> tuple[str, Any, bool, bool]:
    return str(array.dtype), array.shape, bool(array.flags.c_contiguous), bool(array.flags.f_contiguous)


def start_others() -> list[int]:
    """Start a child, one in a session of its own, and one whose parent ends: return their PIDs."""
    sleep = [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"]
    near = subprocess.Popen(sleep, stdout=subprocess.PIPE)
    far = subprocess.Popen(sleep, stdout=subprocess.PIPE, start_new_session=True)
    between = (
        "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], "
        "start_new_session=True, stdout=subprocess.DEVNULL); print(p.pid)"
    )
    orphan = subprocess.run([sys.executable, "-c", between], stdout=subprocess.PIPE, check=True)
    for each in (near, far):
        assert each.stdout is not None
        each.stdout.readline()
    return [near.pid, far.pid, int(orphan.stdout)]


def fork_and_return() -> str:
    return "child" if os.fork() == 0 else "parent"


def bound() -> tuple[list[int], int, list[int]]:
    """Return the CPUs, and mode and nodes of the memory policy."""
    mode = ctypes.c_int(-1)
    mask = (ctypes.c_ulong * 16)()
    number = {"x86_64": 239, "aarch64": 236, "riscv64": 236}[os.uname().machine]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(ctypes.c_long(number), ctypes.byref(mode), mask, ctypes.c_ulong(1024), None, ctypes.c_ulong(0)):
        raise OSError(ctypes.get_errno(), "get_mempolicy")
    return sorted(os.sched_getaffinity(0)), mode.value, [bit for bit in range(1024) if mask[bit // 64] >> bit % 64 & 1]


def open_descriptors() -> list[int]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            os.fstat(int(name))
        except OSError:  # that of the listing
            continue
        found.append(int(name))
    return sorted(found)


def load_library(path: str) -> None:
    ctypes.CDLL(path)


def import_module(name: str) -> str:
    import importlib

    return str(importlib.import_module(name).__file__)


def cut_off_and(then: str) -> None:
    """Give up every socket, as the kernel does for a process that dies, and end a while later, or never."""
    for descriptor in range(3, 256):
        try:
            one = socket.socket(fileno=os.dup(descriptor))
        except OSError:
            continue
        with contextlib.suppress(OSError), one:
            one.shutdown(socket.SHUT_RDWR)
    if then == "abort":
        time.sleep(0.5)
        os.abort()
    time.sleep(600)
