"""The NUMA node of a mapping: bound before its pages exist, and read back from a page that does.

The policy of a shared file's mapping stays with the file, so it holds for whoever touches a page first. Layouts and
flags: Linux `include/uapi/linux/mempolicy.h`.
"""

from __future__ import annotations

import ctypes

from pytest_gpucoexist.transfer.syscalls import syscall

__all__ = ["bind_mapping", "node_of_page"]

_BIND = 2  # MPOL_BIND
_OF_ADDRESS = 1 << 0 | 1 << 1  # MPOL_F_NODE | MPOL_F_ADDR: the node of the page at an address
_MAX_NODES = 1024  # the largest CONFIG_NODES_SHIFT is 10
_WORD = 8 * ctypes.sizeof(ctypes.c_ulong)


def bind_mapping(address: int, size_bytes: int, node: int) -> None:
    """Bind the pages of a mapping, which must begin on a page. Raises OSError: EINVAL for a node that is not there."""
    if not 0 <= node < _MAX_NODES:
        raise OSError(22, f"no NUMA node can have the number {node}")
    words = [0] * (_MAX_NODES // _WORD)
    words[node // _WORD] = 1 << node % _WORD
    mask = (ctypes.c_ulong * len(words))(*words)
    size = ctypes.c_ulong(size_bytes)
    # The kernel looks at one bit less than it is told.
    most = ctypes.c_ulong(_MAX_NODES + 1)
    syscall("mbind", ctypes.c_void_p(address), size, ctypes.c_int(_BIND), mask, most, ctypes.c_uint(0))


def node_of_page(address: int) -> int:
    """Return the node of the page at an address, which is touched for it. Raises OSError."""
    node = ctypes.c_int(-1)
    none = ctypes.c_void_p(None)
    flags = ctypes.c_ulong(_OF_ADDRESS)
    syscall("get_mempolicy", ctypes.byref(node), none, ctypes.c_ulong(0), ctypes.c_void_p(address), flags)
    return node.value
