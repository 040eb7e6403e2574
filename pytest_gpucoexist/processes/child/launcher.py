"""What stands between the fork and the vendor's interpreter: a script for pytest's own interpreter, then `execve`.

What the dynamic loader reads must be there before the interpreter is loaded, and what the kernel keeps over `execve`
is set here and not between fork and exec of a process that has threads: the signal at the parent's death, being the
one to whom orphans are given, CPU affinity and memory policy.

Arguments: the descriptor of the order (JSON) and of the pipe for the answer, which closes when the interpreter runs.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import sys
from typing import Any

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # Linux include/uapi/linux/prctl.h
MPOL_BIND = 2  # include/uapi/linux/mempolicy.h
SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237, "riscv64": 237}  # syscall_64.tbl, asm-generic/unistd.h
MAX_NODES = 1024  # the largest CONFIG_NODES_SHIFT is 10


def main() -> None:
    """Prepare this process and become the interpreter, or say why not."""
    order_fd, answer_fd = int(sys.argv[1]), int(sys.argv[2])
    os.set_inheritable(answer_fd, False)
    with os.fdopen(order_fd, "r") as file:
        order = json.load(file)
    notes: list[str] = []
    try:
        _tie(order["parent"], notes)
        _bind_cpus(order["cpus"], notes)
        _bind_memory(order["node"], notes)
        os.write(answer_fd, json.dumps({"notes": notes}).encode() + b"\n")
        os.execve(order["argv"][0], order["argv"], order["environment"])
    except (OSError, ValueError) as error:
        said = {"errno": getattr(error, "errno", None), "error": str(error)}
        os.write(answer_fd, json.dumps(said).encode() + b"\n")
    os._exit(127)


def _tie(parent: int, notes: list[str]) -> None:
    """Die with the thread that started this process, and get the orphans of what it starts."""
    try:
        libc = _libc()
        if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
            notes.append("not ended with pytest: the kernel refused PR_SET_PDEATHSIG")
        if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
            notes.append("what it starts and leaves is not found: the kernel refused PR_SET_CHILD_SUBREAPER")
    except (ImportError, OSError, AttributeError) as error:
        notes.append(f"not ended with pytest: no ctypes ({error})")
    if os.getppid() != parent:
        os._exit(0)  # it died before the signal was asked for


def _bind_cpus(cpus: list[int] | None, notes: list[str]) -> None:
    if cpus is None:
        return
    try:
        os.sched_setaffinity(0, cpus)
    except OSError as error:
        notes.append(f"CPU affinity not bound: {error.strerror}")


def _bind_memory(node: int | None, notes: list[str]) -> None:
    if node is None:
        return
    number = SET_MEMPOLICY.get(platform.machine())
    if number is None:
        notes.append(f"memory not bound: no memory policy on {platform.machine()}")
        return
    try:
        import ctypes

        bits = 8 * ctypes.sizeof(ctypes.c_ulong)
        words = [0] * (MAX_NODES // bits)
        words[node // bits] |= 1 << node % bits
        mask = (ctypes.c_ulong * len(words))(*words)
        # The kernel looks at one bit less than it is told.
        call = (ctypes.c_long(number), ctypes.c_int(MPOL_BIND), mask, ctypes.c_ulong(MAX_NODES + 1))
        if _libc().syscall(*call):
            notes.append(f"memory not bound: {os.strerror(ctypes.get_errno())}")
    except (ImportError, OSError, IndexError) as error:
        notes.append(f"memory not bound: {error}")


def _libc() -> Any:
    import ctypes

    return ctypes.CDLL(None, use_errno=True)


if __name__ == "__main__":
    main()
