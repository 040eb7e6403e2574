"""How much memory this process's control groups leave it."""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING

from pytest_gpucoexist.probes.parse import number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject

__all__ = ["limits_of"]

_ROOT = "/sys/fs/cgroup"
_V1 = f"{_ROOT}/memory"
_NO_LIMIT = 1 << 60  # v1 prints the largest number of pages for "no limit"


def limits_of(subject: Subject) -> list[tuple[int, str, str]]:
    """Return (bytes left, file of the limit, what it is) of each group above this process that has a limit.

    Page cache that the kernel can drop counts as left. In a container the path of the group may be the host's: its own
    is then the root of the mount.
    """
    text = subject.read("/proc/self/cgroup").text or ""
    found: list[tuple[int, str, str]] = []
    for line in text.splitlines():
        number_, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number_ == "0" and not controllers:
            names = ("memory.max", "memory.current", "inactive_file")
            found += _left(subject, _ROOT, path, names)
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            found += _left(subject, _V1, path, names)
    return found


def _left(subject: Subject, root: str, path: str, names: tuple[str, str, str]) -> Iterator[tuple[int, str, str]]:
    limit_name, used_name, cache_name = names
    for folder in _folders(root, path):
        limit = number(subject.read(f"{folder}/{limit_name}").text or "", high=_NO_LIMIT)
        used = number(subject.read(f"{folder}/{used_name}").text or "")
        if isinstance(limit, int) and isinstance(used, int):
            cache = _stat(subject.read(f"{folder}/memory.stat").text or "", cache_name)
            left = max(0, limit - max(0, used - cache))
            yield left, f"{folder}/{limit_name}", "left within the control group's limit"


def _folders(root: str, path: str) -> Iterator[str]:
    """Yield the folders of a group and of all above it, the mount's root last."""
    path = posixpath.normpath("/" + path.lstrip("/"))  # of two slashes in front normpath keeps both
    while path != "/":
        yield f"{root}{path}"
        path = posixpath.dirname(path)
    yield root


def _stat(text: str, name: str) -> int:
    match = re.search(rf"^{name} ([0-9]{{1,19}})$", text, re.MULTILINE)
    return 0 if match is None else int(match[1])
