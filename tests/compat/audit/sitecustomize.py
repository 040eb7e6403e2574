"""Installed by PYTHONPATH into every process of a suite: notes what the plugin does to the system.

An event is the plugin's when one of its modules is on the stack. Each is one line in the file that
`GPUCOEXIST_AUDIT_LOG` names; a line is appended in one write, so that processes can share the file. Each process says
`start`, and `loaded` when the plugin is imported.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import FrameType

LOG = os.environ["GPUCOEXIST_AUDIT_LOG"]
SYSTEM = ("/sys/", "/proc/", "/dev/nvidia", "/dev/kfd", "/dev/dri", "/etc/")
PLUGIN = os.path.join("pytest_gpucoexist", "plugin.py")
READS = {"open", "os.listdir", "os.scandir"}
ACTS = {"ctypes.dlopen", "os.fork", "os.posix_spawn", "os.putenv", "os.unsetenv", "subprocess.Popen"}


def _by_plugin() -> bool:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if f"{os.sep}pytest_gpucoexist{os.sep}" in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


def _note(text: str) -> None:
    descriptor = os.open(LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(descriptor, f"{os.getpid()} {text}\n".encode())
    os.close(descriptor)


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if event in READS:
        path = os.fsdecode(args[0]) if isinstance(args[0], (str, bytes)) else ""
        if path.startswith(SYSTEM) and _by_plugin():
            _note(f"{event} {path}")
    elif event in ACTS:
        if _by_plugin():
            _note(f"{event} {args!r}")
    elif event == "exec" and getattr(args[0], "co_filename", "").endswith(PLUGIN):
        _note("loaded")


def _watched(name: str) -> None:
    real = getattr(os, name, None)
    if real is None:
        return

    def call(*args: Any, **kwargs: Any) -> Any:
        if _by_plugin():
            _note(f"os.{name} {args!r}")
        return real(*args, **kwargs)

    setattr(os, name, call)


_note("start")
_watched("sched_setaffinity")  # has no event of its own
sys.addaudithook(_hook)
