"""Which driver a kernel's stack trace names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["GPU_MODULES", "crash_of", "module_of"]

GPU_MODULES = r"nvidia(?:[_-]\w+)?|nouveau|nova_core|nova_drm|amdgpu|radeon|i915|xe|drm|ttm|gpu_sched"

# arch/x86/kernel/dumpstack.c: "RIP: 0010:nvidia_vma_access+0x1b/0x350 [nvidia]"; frames carry the module alike. With
# CONFIG_STACKTRACE_BUILD_ID the module's build id follows its name; arm64 says "pc :".
_RIP = re.compile(r"\b(?:RIP: [0-9a-f]{4}:|pc : )(?P<symbol>[\w.]+)\+0x[0-9a-f]+/0x[0-9a-f]+ \[(?P<module>[\w-]+)")
_FRAME = re.compile(
    rf"^[\s?]*(?P<symbol>[\w.]+)\+0x[0-9a-f]+/0x[0-9a-f]+ \[(?P<module>{GPU_MODULES})(?=[\] ])", re.MULTILINE
)
_CRASH = re.compile(
    r"(?:BUG: (?:kernel NULL pointer dereference|unable to handle|soft lockup)|Oops: |general protection fault(?! ip:)"
    r"|Kernel panic - not syncing|kernel BUG at|Unable to handle kernel "
    r"|INFO: task \S+ blocked|INFO: rcu\w* \w+ (?:self-)?detected stall|NMI watchdog: Watchdog detected)[^\n]*"
)


def module_of(messages: Iterable[str]) -> str | None:
    """Name the module where a trace was when it stopped, else the first GPU driver among its callers.

    >>> module_of(["RIP: 0010:nvidia_vma_access+0x1b/0x350 [nvidia]"])
    'nvidia'
    """
    caller = None
    for message in messages:
        stopped = _RIP.search(message)
        if stopped is not None:
            return stopped["module"]
        if caller is None:
            frame = _FRAME.search(message)
            caller = frame["module"] if frame is not None else None
    return caller


def crash_of(text: str) -> str | None:
    """Return the words with which a kernel said that it crashed or stood still, or None."""
    match = _CRASH.search(text)
    return None if match is None else match[0].strip()
