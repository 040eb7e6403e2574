"""Whether two files are copies of each other, without reading a library of a gigabyte."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_gpucoexist.gates.subject import Subject

__all__ = ["different", "fingerprint"]

# The head has the ELF header, the program headers and, with usual linkers, the build id; the tail the section headers.
_PART_BYTES = 1 << 16


def fingerprint(subject: Subject, path: str) -> tuple[int, str] | None:
    """Return a file's size and a digest of its head and tail; None where it cannot be read."""
    return subject.shared(("libraries.content", path), lambda: _fingerprint(subject, path))


def different(subject: Subject, paths: Iterable[str]) -> list[str]:
    """Leave out every path whose content an earlier one has. One that cannot be read counts as different."""
    kept: list[str] = []
    seen: set[tuple[int, str]] = set()
    for path in dict.fromkeys(paths):
        mark = fingerprint(subject, path)
        if mark is None or mark not in seen:
            kept.append(path)
        if mark is not None:
            seen.add(mark)
    return kept


def _fingerprint(subject: Subject, path: str) -> tuple[int, str] | None:
    try:
        with subject.host.open_file(path) as file:
            size = file.seek(0, os.SEEK_END)
            digest = hashlib.sha256()
            for start in (0, max(0, size - _PART_BYTES)):
                file.seek(start)
                digest.update(file.read(_PART_BYTES))
    except (OSError, ValueError):
        return _by_size(subject, path)
    return size, digest.hexdigest()


def _by_size(subject: Subject, path: str) -> tuple[int, str] | None:
    """Take the size alone, where a record knows no more: two builds of a library do not have the same to the byte."""
    try:
        size = subject.host.stat(path).size_bytes
    except OSError:
        return None
    return (size, "") if size else None
