"""The memory policy of the calling thread, by system call.

There is no maintained Python wrapper, and glibc has no function for it. Numbers and layouts: Linux
`include/uapi/asm-generic/unistd.h`, `arch/x86/entry/syscalls/syscall_64.tbl`, `include/uapi/linux/mempolicy.h`.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import sys
from dataclasses import dataclass

__all__ = ["BIND", "DEFAULT", "MODES", "MemoryPolicy", "allowed_nodes", "get_policy", "set_policy"]

DEFAULT, PREFERRED, BIND, INTERLEAVE = 0, 1, 2, 3
MODES = {0: "default", 1: "preferred", 2: "bind", 3: "interleave", 4: "local", 5: "preferred-many", 6: "weighted"}

_MODE_BITS = 0xFF  # the bits above are MPOL_F_STATIC_NODES, MPOL_F_RELATIVE_NODES, MPOL_F_NUMA_BALANCING
_MEMS_ALLOWED = 1 << 2  # MPOL_F_MEMS_ALLOWED
_MAX_NODES = 1024  # the largest CONFIG_NODES_SHIFT is 10; get_mempolicy refuses a mask smaller than the kernel's
_WORD = 8 * ctypes.sizeof(ctypes.c_ulong)
_NUMBERS = {"x86_64": (239, 238), "aarch64": (236, 237), "riscv64": (236, 237)}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPolicy:
    """A mode with its flags, as the kernel codes them, and the nodes that it speaks of."""

    mode: int = DEFAULT
    nodes: frozenset[int] = frozenset()

    @property
    def name(self) -> str:
        """The mode in words, flags left out."""
        number = self.mode & _MODE_BITS
        return MODES.get(number, f"mode {number}")


def get_policy() -> MemoryPolicy:
    """Read the policy of the calling thread. Raises OSError (ENOSYS, EPERM in containers)."""
    mode = ctypes.c_int(-1)
    mask = _mask()
    _call(0, ctypes.byref(mode), mask, ctypes.c_ulong(_MAX_NODES), None, ctypes.c_ulong(0))
    return MemoryPolicy(mode=mode.value, nodes=_nodes(mask))


def set_policy(policy: MemoryPolicy) -> None:
    """Set the policy of the calling thread and of what it will start. Raises OSError: EINVAL for an absent node."""
    if policy.nodes:
        # The kernel looks at one bit less than it is told.
        _call(1, ctypes.c_int(policy.mode), _mask(policy.nodes), ctypes.c_ulong(_MAX_NODES + 1))
    else:
        _call(1, ctypes.c_int(policy.mode), None, ctypes.c_ulong(0))


def allowed_nodes() -> frozenset[int]:
    """Return the nodes whose memory this thread may use at all: its cpuset's. Raises OSError."""
    mask = _mask()
    _call(0, None, mask, ctypes.c_ulong(_MAX_NODES), None, ctypes.c_ulong(_MEMS_ALLOWED))
    return _nodes(mask)


def _call(which: int, *arguments: object) -> None:
    numbers = _NUMBERS.get(platform.machine()) if sys.platform == "linux" else None
    if numbers is None:
        raise OSError(errno.ENOSYS, f"no memory policy on {sys.platform} {platform.machine()}")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(ctypes.c_long(numbers[which]), *arguments) < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _mask(nodes: frozenset[int] = frozenset()) -> ctypes.Array[ctypes.c_ulong]:
    words = [0] * (_MAX_NODES // _WORD)
    for node in nodes:
        words[node // _WORD] |= 1 << node % _WORD
    return (ctypes.c_ulong * len(words))(*words)


def _nodes(mask: ctypes.Array[ctypes.c_ulong]) -> frozenset[int]:
    return frozenset(bit for bit in range(_MAX_NODES) if mask[bit // _WORD] >> bit % _WORD & 1)
