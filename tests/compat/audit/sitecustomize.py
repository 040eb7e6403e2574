"""Installed by PYTHONPATH into every process of a suite: notes what the plugin does to the system.

An event is the plugin's when one of its modules is on the stack. Each is one line in the file that
`GPUCOEXIST_AUDIT_LOG` names; a line is appended in one write, so that processes can share the file.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import FrameType

LOG = os.environ["GPUCOEXIST_AUDIT_LOG"]
SYSTEM = ("/sys/", "/proc/driver", "/proc/modules", "/dev/nvidia", "/dev/kfd", "/dev/dri", "/etc/")


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
    if event == "open":
        if isinstance(args[0], str) and args[0].startswith(SYSTEM) and _by_plugin():
            _note(f"open {args[0]}")
    elif event in {"os.listdir", "os.scandir"}:
        if isinstance(args[0], str) and args[0].startswith(SYSTEM) and _by_plugin():
            _note(f"{event} {args[0]}")
    elif event in {"os.putenv", "os.unsetenv", "subprocess.Popen", "os.posix_spawn", "os.fork"} and _by_plugin():
        _note(f"{event} {args!r}")


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
_watched("sched_setaffinity")
sys.addaudithook(_hook)
