"""System calls that glibc has no function for: futexes, and the memory policy of a mapping.

Numbers: Linux `arch/x86/entry/syscalls/syscall_64.tbl` and `include/uapi/asm-generic/unistd.h` (aarch64, riscv64).
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import sys
from typing import Any

__all__ = ["prepared", "syscall"]

_X86 = {"futex": 202, "mbind": 237, "get_mempolicy": 239}
_GENERIC = {"futex": 98, "mbind": 235, "get_mempolicy": 236}
_NUMBERS = {"x86_64": _X86, "aarch64": _GENERIC, "riscv64": _GENERIC}


def prepared(name: str, *types: Any) -> tuple[int, Any]:
    """Return the number of a call and libc's `syscall` with the types of its arguments, for calls that must be cheap.

    It returns -1 and sets ctypes' errno on an error. Raises OSError ENOSYS where this package does not know the number.
    """
    numbers = _NUMBERS.get(platform.machine()) if sys.platform == "linux" else None
    if numbers is None:
        raise OSError(errno.ENOSYS, f"no number of {name} for {sys.platform} {platform.machine()}")
    function = ctypes.CDLL(None, use_errno=True).syscall
    function.restype = ctypes.c_long
    function.argtypes = [ctypes.c_long, *types]
    return numbers[name], function


def syscall(name: str, *arguments: Any) -> int:
    """Call once, with arguments that carry their types. Raises OSError."""
    number, function = prepared(name)
    answer: int = function(number, *arguments)
    if answer < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
    return answer
