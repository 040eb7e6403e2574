"""Installed Python distributions, from the names in `sys.path` folders and, only where asked, their metadata.

No RECORD is read before a distribution turns out to matter: an environment can hold hundreds of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_gpucoexist.host.base import Host

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


__all__ = ["Distribution", "Entry", "SitePackages", "import_name"]

_RECORD_LIMIT_BYTES = 32 << 20
_INFO = re.compile(r"(?P<name>.+?)(?:-(?P<version>[^-]+)(?:-py[\d.]+.*)?)?\.(?:dist|egg)-info")
_EXTENSION = re.compile(r"\.(?:cpython-\w+(?:-[\w.]+)*|abi3|cp\d+-\w+|pypy\d+\S*)?\.?(?:so|pyd)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of a RECORD. `sha256` is in the URL-safe base64 that RECORD uses."""

    path: str
    sha256: str | None = None
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """A distribution as the name of its metadata folder tells it; `name` is normalised (`cupy-cuda12x`)."""

    name: str
    version: str | None
    folder: str
    info: str

    @property
    def label(self) -> str:
        """Name and version for people."""
        return f"{self.name} {self.version}" if self.version else self.name


@dataclass(slots=True)
class SitePackages:
    """The folders of `sys.path` and the distributions in them, listed once. Nothing here raises."""

    host: Host
    folders: dict[str, frozenset[str]] = field(init=False)
    distributions: tuple[Distribution, ...] = field(init=False)
    _records: dict[str, tuple[Entry, ...] | None] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.folders = {}
        for folder in dict.fromkeys(path.rstrip("/") for path in self.host.python_path if path):
            try:
                self.folders[folder] = frozenset(self.host.list_dir(folder))
            except OSError:
                # A zip file, or a folder that does not exist: sys.path may name both.
                continue
        self.distributions = tuple(
            found
            for folder, names in self.folders.items()
            for name in sorted(names)
            if name.endswith("-info") and (found := _distribution(folder, name)) is not None
        )

    def named(self, pattern: re.Pattern[str]) -> tuple[Distribution, ...]:
        """Return the distributions whose whole normalised name fits, in the order of `sys.path`."""
        return tuple(found for found in self.distributions if pattern.fullmatch(found.name))

    def locate(self, package: str) -> str | None:
        """Return the path of what `import package` would load: a package with `__init__`, or a module.

        A folder without `__init__` (leftovers of an uninstalled package) is a namespace and imports nothing.
        """
        for folder, names in self.folders.items():
            if package in names and self._is_package(f"{folder}/{package}"):
                return f"{folder}/{package}"
            for name in sorted(names):
                if name.startswith(f"{package}.") and import_name(name) == package:
                    return f"{folder}/{name}"
        return None

    def record(self, distribution: Distribution) -> tuple[Entry, ...] | None:
        """Return the files that a distribution installed; None without a readable RECORD (an egg, a damaged one)."""
        if distribution.info not in self._records:
            self._records[distribution.info] = self._read_record(distribution)
        return self._records[distribution.info]

    def top_level(self, distribution: Distribution) -> tuple[str, ...]:
        """Return the import names of `top_level.txt`, empty when there is none (many modern wheels)."""
        try:
            text = self.host.read_text(f"{distribution.info}/top_level.txt")
        except OSError:
            return ()
        return tuple(line.strip() for line in text.splitlines() if line.strip())

    def owned_imports(self, distribution: Distribution) -> Mapping[str, Entry]:
        """Return import name to file for what the distribution installed beside its metadata."""
        owned: dict[str, Entry] = {}
        for entry in self.record(distribution) or ():
            name = import_name(entry.path)
            if name is not None and (name not in owned or _rank(entry.path) < _rank(owned[name].path)):
                owned[name] = entry
        return owned

    def _is_package(self, path: str) -> bool:
        try:
            return any(import_name(name) == "__init__" for name in self.host.list_dir(path))
        except OSError:
            return False

    def _read_record(self, distribution: Distribution) -> tuple[Entry, ...] | None:
        try:
            text = self.host.read_text(f"{distribution.info}/RECORD", _RECORD_LIMIT_BYTES)
        except OSError:
            return None
        return tuple(_entries(text.splitlines())) or None


def import_name(path: str) -> str | None:
    """Turn a relative path into the name that imports it, or None (data, metadata, scripts outside).

    >>> import_name("cuda/bindings/driver.cpython-311-x86_64-linux-gnu.so")
    'cuda.bindings.driver'
    >>> import_name("pynvml/__init__.py")
    'pynvml'
    """
    if path.startswith(("../", "/")) or ".dist-info/" in path or ".data/" in path:
        return None
    stem = path.removesuffix(".py") if path.endswith(".py") else _EXTENSION.sub("", path)
    if stem == path:
        return None
    stem = stem.removesuffix("/__init__")
    parts = stem.split("/")
    return ".".join(parts) if all(part.isidentifier() for part in parts) else None


def _rank(path: str) -> int:
    # The order in which Python's FileFinder tries what has one name: package, extension module, source.
    if "/__init__." in path:
        return 0
    return 2 if path.endswith(".py") else 1


def _distribution(folder: str, name: str) -> Distribution | None:
    match = _INFO.fullmatch(name)
    if match is None:
        return None
    normal = re.sub(r"[-_.]+", "-", match["name"]).lower()
    return Distribution(name=normal, version=match["version"], folder=folder, info=f"{folder}/{name}")


def _entries(lines: Iterable[str]) -> Iterable[Entry]:
    for line in lines:
        # A path with a comma is quoted; none of those can be imported.
        path, _, rest = line.partition(",")
        digest, _, size = rest.partition(",")
        if not path or path.startswith('"') or "," in size:
            continue
        yield Entry(
            path=path,
            sha256=digest.removeprefix("sha256=") if digest.startswith("sha256=") else None,
            size_bytes=int(size) if size.isdecimal() and size.isascii() else None,
        )
