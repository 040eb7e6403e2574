"""Shared libraries as the dynamic loader would find them, by name alone: nothing is opened or loaded."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from pytest_gpucoexist.host.base import Host

if TYPE_CHECKING:
    from collections.abc import Iterator


__all__ = ["Library", "LibraryFolders", "parent"]

# What ld.so searches last, the multiarch folders of Debian and Ubuntu, and where WSL2 and Jetson put NVIDIA's.
_DEFAULT_FOLDERS = (
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
    "/usr/lib/wsl/lib",
    "/usr/lib/aarch64-linux-gnu/tegra",
    "/usr/lib/aarch64-linux-gnu/nvidia",
    "/run/opengl-driver/lib",
)
_INCLUDE_DEPTH = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """One file of a library. `version` is what follows `.so.` in the longest name that leads to it."""

    path: str
    version: str | None


def parent(path: str) -> str:
    """Return the folder of an absolute path."""
    return path.rsplit("/", 1)[0] or "/"


@dataclass(slots=True)
class LibraryFolders:
    """The folders of the loader in its order: LD_LIBRARY_PATH, ld.so.conf, the defaults. Each is listed once."""

    host: Host
    folders: tuple[str, ...] = field(init=False)
    _names: dict[str, dict[str, list[str]]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        given = [path for path in self.host.environ.get("LD_LIBRARY_PATH", "").split(":") if path.startswith("/")]
        found = (*given, *_configured(self.host, "/etc/ld.so.conf", _INCLUDE_DEPTH), *_DEFAULT_FOLDERS)
        self.folders = tuple(dict.fromkeys(path.rstrip("/") or "/" for path in found))

    def find(self, stem: str, *more: str) -> tuple[Library, ...]:
        """Return the different files of `lib<stem>.so*`, first the one that the loader takes; `more` are folders."""
        found: dict[str, Library] = {}
        for folder in (*self.folders, *more):
            names = self._listed(folder).get(f"lib{stem}", ())
            # One library has several names; the longest tells most: libcuda.so, libcuda.so.1, libcuda.so.550.54.14.
            for name in sorted(names, key=lambda name: _weight(_version(name)), reverse=True):
                path = self._target(f"{folder}/{name}")
                if path is not None and path not in found:
                    version = max(_version(name), _version(path.rsplit("/", 1)[-1]), key=_weight)
                    found[path] = Library(path=path, version=version or None)
        return tuple(found.values())

    def _listed(self, folder: str) -> dict[str, list[str]]:
        if folder not in self._names:
            listed = self._names[folder] = {}
            try:
                names = self.host.list_dir(folder)
            except OSError:
                names = []
            for name in names:
                stem, dot_so, rest = name.partition(".so")
                if dot_so and (not rest or rest.startswith(".")):
                    listed.setdefault(stem, []).append(name)
        return self._names[folder]

    def _target(self, path: str) -> str | None:
        try:
            return self.host.resolve(path)
        except OSError:
            # A link that dangles: the package was removed and ldconfig has not run.
            return None


def _version(name: str) -> str:
    """Return the numbers after `.so.`, or nothing (a file such as `libcuda.so.1.backup` tells none)."""
    version = name.partition(".so.")[2]
    return version if re.fullmatch(r"\d+(\.\d+)*", version) else ""


def _weight(version: str) -> tuple[int, int]:
    return version.count(".") + bool(version), len(version)


def _configured(host: Host, path: str, depth: int) -> Iterator[str]:
    """Yield the folders of an ld.so.conf, following its `include` lines."""
    try:
        text = host.read_text(path)
    except OSError:
        return
    for raw in text.splitlines():
        line = raw.split("#")[0].strip()
        if line.startswith("include") and depth:
            for pattern in line.split()[1:]:
                for name in _expand(host, pattern if pattern.startswith("/") else f"{parent(path)}/{pattern}"):
                    yield from _configured(host, name, depth - 1)
        elif line.startswith("/"):
            yield line


def _expand(host: Host, pattern: str) -> list[str]:
    folder = parent(pattern)
    try:
        return [f"{folder}/{name}" for name in host.list_dir(folder) if fnmatchcase(f"{folder}/{name}", pattern)]
    except OSError:
        return []
