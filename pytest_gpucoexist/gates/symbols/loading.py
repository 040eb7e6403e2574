"""What the dynamic loader would load for each package: ld.so(8)'s order, followed on paper.

LD_PRELOAD, DT_RPATH (where there is no DT_RUNPATH), LD_LIBRARY_PATH, DT_RUNPATH, the configured folders. What none of
them has, a package may have loaded before by its path: torch does so with NVIDIA's wheels.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.libraries.families import Family, family_of
from pytest_gpucoexist.gates.libraries.search import library_folders
from pytest_gpucoexist.gates.symbols.elf import Elf, read_elf
from pytest_gpucoexist.gates.symbols.packages import Package, provided, python_packages
from pytest_gpucoexist.probes.libraries import parent
from pytest_gpucoexist.probes.reader import Bad, reason

if TYPE_CHECKING:
    from pytest_gpucoexist.gates.subject import Subject

__all__ = ["Loaded", "Missing", "Plan", "elf_of", "loading_plan"]

_PATIENCE_S = 3.0
_FILES = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A runtime that a package would load. `by` is the library that asks; None: the package loads it by its path."""

    package: str
    family: Family
    path: str
    by: str | None
    elf: Elf


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """A runtime that a library needs and that is nowhere; `others` are files of the same family."""

    package: str
    name: str
    by: str
    others: tuple[str, ...]


@dataclass(slots=True)
class Plan:
    """What would be loaded, what is missing, and which files could not be judged.

    `offered` are the runtimes that LD_LIBRARY_PATH has for whoever asks by name.
    """

    loaded: list[Loaded] = field(default_factory=list)
    offered: list[Loaded] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)
    packages: tuple[Package, ...] = ()
    unfinished: bool = False


def loading_plan(subject: Subject) -> Plan:
    """Follow the loader for every package, once for all gates."""
    return subject.shared(("symbols.loading",), lambda: _Follower(subject).plan())


def elf_of(subject: Subject, path: str, *, exports: bool) -> Elf | Bad:
    """Read a library once for all gates. Never raises."""

    def read() -> Elf | Bad:
        try:
            with subject.host.open_file(path) as file:
                return read_elf(file, exports=exports)
        except (OSError, ValueError) as error:
            return Bad(reason(error) if isinstance(error, OSError) else str(error))

    return subject.shared(("symbols.elf", path, exports), read)


class _Follower:
    """One walk over all packages."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._end = time.monotonic() + min(_PATIENCE_S, subject.deadline_s)
        self._plan = Plan(packages=python_packages(subject))
        self._folders = library_folders(subject).folders
        given = subject.host.environ.get("LD_LIBRARY_PATH", "").split(":")
        self._given = [each.rstrip("/") for each in given if each.startswith("/")]
        preloaded = subject.host.environ.get("LD_PRELOAD", "").replace(":", " ").split()
        self._preloaded = [each for each in preloaded if each.startswith("/")]
        self._wheels = {path.rsplit("/", 1)[-1]: path for path in reversed(provided(subject))}
        self._read = 0

    def plan(self) -> Plan:
        for path in self._preloaded:
            if family_of(path) is not None:
                self._follow("LD_PRELOAD", path, None, {}, set())
        self._offer()
        for package in self._plan.packages:
            own = {path.rsplit("/", 1)[-1]: path for path in package.runtimes}
            seen: set[str] = set()
            for path in package.asking:
                self._follow(package.name, path, None, own, seen)
            if not package.asking:
                for path in package.runtimes:
                    self._follow(package.name, path, None, own, seen)
        return self._plan

    def _offer(self) -> None:
        """Add the first file of each family in LD_LIBRARY_PATH: what a program would get that asks for it."""
        families: dict[str, str] = {}
        for folder in self._given:
            for name in self._subject.names(folder):
                family = family_of(name)
                if family is not None:
                    families.setdefault(family.name, f"{folder}/{name}")
        asked, self._plan.loaded = self._plan.loaded, self._plan.offered
        for path in families.values():
            self._follow("LD_LIBRARY_PATH", path, None, {}, set())
        self._plan.loaded = asked

    def _follow(self, package: str, path: str, by: str | None, own: dict[str, str], seen: set[str]) -> None:
        """Add a library and the runtimes that it needs, and that these need."""
        try:
            path = self._subject.host.resolve(path)
        except OSError as error:
            self._plan.problems[path] = reason(error)
            return
        if path in seen:
            return
        seen.add(path)
        if self._read >= _FILES or time.monotonic() > self._end:
            self._plan.unfinished = True
            return
        self._read += 1
        family = family_of(path)
        elf = elf_of(self._subject, path, exports=family is not None)
        if isinstance(elf, Bad):
            self._plan.problems[path] = elf.detail
            return
        if family is not None:
            self._plan.loaded.append(Loaded(package=package, family=family, path=path, by=by, elf=elf))
        for name in elf.needed:
            if family_of(name) is None:
                continue
            found = self._found(name, path, elf) or own.get(name) or self._wheels.get(name)
            if found is not None:
                self._follow(package, found, path, own, seen)
            else:
                self._plan.missing.append(Missing(package=package, name=name, by=path, others=self._others(name, own)))

    def _found(self, name: str, path: str, elf: Elf) -> str | None:
        for each in self._preloaded:
            if each.rsplit("/", 1)[-1] == name:
                return each
        folder = parent(path)
        early = [] if elf.runpath else [_expanded(each, folder) for each in elf.rpath]
        late = [_expanded(each, folder) for each in elf.runpath]
        for each in (*early, *self._given, *late, *self._folders):
            if each and self._subject.host.exists(f"{each}/{name}"):
                return f"{each}/{name}"
        return None

    def _others(self, name: str, own: dict[str, str]) -> tuple[str, ...]:
        family = family_of(name)
        places = [*own.values(), *self._wheels.values()]
        places += [f"{folder}/{each}" for folder in self._folders for each in self._subject.names(folder)]
        return tuple(path for path in places if family_of(path) is family)[:4]


def _expanded(folder: str, origin: str) -> str:
    return folder.replace("${ORIGIN}", origin).replace("$ORIGIN", origin).rstrip("/")
