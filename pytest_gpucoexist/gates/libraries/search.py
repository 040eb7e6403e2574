"""Whether the loader would find a library by the text that a manifest or a variable has for it."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpucoexist.probes.libraries import LibraryFolders, parent

if TYPE_CHECKING:
    from pytest_gpucoexist.gates.subject import Subject

__all__ = ["Found", "find_library", "library_folders"]

_CACHE = "/etc/ld.so.cache"
_CACHE_LIMIT_BYTES = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Where a library is (`path`, links followed), or why not: `missing` for sure, else it is not known.

    `entry`: there is a file of that name, although it leads nowhere or was not recorded.
    """

    path: str | None = None
    missing: bool = False
    entry: bool = False
    detail: str = ""


def library_folders(subject: Subject) -> LibraryFolders:
    """Return the loader's folders, listed once for all gates."""
    return subject.shared(("libraries.search", "folders"), lambda: LibraryFolders(subject.host))


def find_library(subject: Subject, name: str, *, base: str | None = None) -> Found:
    """Find a library: an absolute path, a path relative to the folder `base`, or a bare name for the loader.

    A bare name may also be known to ldconfig's cache alone: then `path` is that name.
    """
    if "/" in name:
        path = name if name.startswith("/") else f"{base}/{name}" if base else None
        if path is None:
            return Found(detail="a path relative to the working directory")
        return _at(subject, path)
    absent = False
    for folder in library_folders(subject).folders:
        found = _at(subject, f"{folder}/{name}")
        if found.path is not None or found.entry:
            return found
        absent = absent or found.missing
    if _in_cache(subject, name):
        return Found(path=name)
    if not absent:
        return Found(detail="the folders of the loader are not known")
    return Found(missing=True, detail="in none of the folders of the loader")


def _at(subject: Subject, path: str) -> Found:
    host = subject.host
    try:
        return Found(path=host.resolve(path))
    except OSError as error:
        if error.errno not in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}:
            return Found(detail=f"{path}: {error.strerror}")
    if _is_link(subject, path):
        return Found(missing=True, entry=True, detail=f"{path} dangles")
    if not host.simulated:
        return Found(missing=True, detail=f"{path} is not there")
    # A record knows what is absent in folders that it lists, and of a file that nobody asked for it knows the name.
    names = subject.names(parent(path))
    if path.rsplit("/", 1)[-1] in names:
        return Found(entry=True, detail=f"{path} was not recorded")
    return Found(missing=bool(names), detail=f"{path} is not there" if names else f"{path} was not recorded")


def _is_link(subject: Subject, path: str) -> bool:
    try:
        subject.host.read_link(path)
    except OSError:
        return False
    return True


def _in_cache(subject: Subject, name: str) -> bool:
    """Whether ldconfig's cache has the name: a table of NUL-terminated strings at its end (ldconfig(8))."""

    def read() -> bytes:
        try:
            return subject.host.read_bytes(_CACHE, _CACHE_LIMIT_BYTES)
        except OSError:
            return b""

    return b"\0" + name.encode() + b"\0" in subject.shared(("libraries.search", "cache"), read)
