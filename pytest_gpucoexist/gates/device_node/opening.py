"""Really open a node, in a program of its own: what no mode tells (a device cgroup, a driver that gives up).

`head -c 0` opens for reading and reads nothing. Only nodes that are harmless to open are opened: the control node of
NVIDIA and `/dev/kfd` wake no GPU.
"""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_gpucoexist.gates.subject import Subject

__all__ = ["HARMLESS", "Opened", "open_node"]

HARMLESS = ("/dev/nvidiactl", "/dev/kfd")

_TEXTS = {
    "Operation not permitted": errno.EPERM,
    "Permission denied": errno.EACCES,
    "No such file or directory": errno.ENOENT,
    "No such device or address": errno.ENXIO,
    "No such device": errno.ENODEV,
    "Input/output error": errno.EIO,
    "Invalid argument": errno.EINVAL,
    "Cannot allocate memory": errno.ENOMEM,
}
_REASON = re.compile(r": ([A-Z][A-Za-z/ ]+)\s*\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """What came of opening a node: `code` 0 when it opened, None when nobody knows. `words` say it."""

    code: int | None
    words: str


def open_node(subject: Subject, path: str) -> Opened:
    """Open and close a node, once for all gates. Not at level quick, and none but the harmless ones. Never raises."""
    if path not in HARMLESS:
        raise ValueError(f"{path} is not opened to look")
    if subject.level == "quick":
        return Opened(code=None, words="a quick gate opens no node")
    return subject.shared(("device_node", "open", path), lambda: _open(subject, path))


def _open(subject: Subject, path: str) -> Opened:
    argv = ("env", "LC_ALL=C", "head", "-c", "0", path)
    try:
        done = subject.host.run(argv, timeout_s=min(2.0, subject.deadline_s))
    except OSError as error:
        return Opened(
            code=None, words=f"{' '.join(argv)} could not be run ({errno.errorcode.get(error.errno or 0, '?')})"
        )
    if done.timed_out:
        return Opened(code=errno.ETIMEDOUT, words="opening it did not come back")
    if done.returncode == 0:
        return Opened(code=0, words="opens")
    text = done.stderr.decode("utf-8", "replace").strip()
    match = _REASON.search(text)
    code = _TEXTS.get(match[1]) if match is not None else None
    return Opened(code=code, words=match[1] if match is not None else f"exit {done.returncode}")
