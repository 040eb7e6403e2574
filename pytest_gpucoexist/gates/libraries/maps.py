"""What is mapped in this process, from `/proc/self/maps` (proc(5)): never by loading anything."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.libraries.families import Family, family_of
from pytest_gpucoexist.model.verdicts import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pytest_gpucoexist.gates.subject import Subject

__all__ = ["MAPS", "Mapped", "Maps", "by_family", "evidence_of", "mapped", "parse_maps"]

MAPS = "/proc/self/maps"
# A process with a large framework has some ten thousand lines of 100 bytes.
_LIMIT_BYTES = 16 << 20
# address perms offset dev inode path
_LINE = re.compile(r"([0-9a-f]+)-([0-9a-f]+) ([-rwxsp]{4}) [0-9a-f]+ ([0-9a-f]+:[0-9a-f]+) (\d+)(?:\s+(\S.*))?")
_LIBRARY = re.compile(r"\.so(?:\.[\w.]+)?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapped:
    """A library that is mapped. `file` (device, inode) tells copies apart; `deleted`: replaced on disk since."""

    path: str
    file: tuple[str, int]
    deleted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Maps:
    """The libraries that are mapped, each file once; `problem` says why that is not known."""

    libraries: tuple[Mapped, ...] = ()
    problem: str | None = None


def mapped(subject: Subject) -> Maps:
    """Read the maps of this process, once for all gates."""
    return subject.shared(("libraries.maps", "maps"), lambda: _maps(subject))


def parse_maps(text: str) -> Maps:
    """Understand a maps file: shared libraries by (device, inode). A text that is none gives a `problem`."""
    found: dict[tuple[str, int], Mapped] = {}
    understood = 0
    for line in text.splitlines():
        # Most lines are of memory without a file, or of one that was just seen.
        match = _LINE.fullmatch(line)
        if match is None:
            continue
        understood += 1
        path = match[6]
        if path is None or not path.startswith("/"):
            continue
        deleted = path.endswith(" (deleted)")
        path = path.removesuffix(" (deleted)")
        if not _LIBRARY.search(path):
            continue
        file = (match[4], int(match[5]))
        before = found.get(file)
        found[file] = Mapped(path=path, file=file, deleted=deleted) if before is None else before
        if before is not None and deleted and not before.deleted:
            found[file] = replace(before, deleted=True)
    if not understood:
        return Maps(problem="its lines are not those of a maps file")
    return Maps(libraries=tuple(found.values()))


def by_family(libraries: Iterable[Mapped]) -> Mapping[str, tuple[Family, list[Mapped]]]:
    """Group the libraries of GPU runtimes by the family's name."""
    groups: dict[str, tuple[Family, list[Mapped]]] = {}
    for library in libraries:
        family = family_of(library.path)
        if family is not None:
            groups.setdefault(family.name, (family, []))[1].append(library)
    return groups


def evidence_of(libraries: Iterable[Mapped], expected: str) -> tuple[Evidence, ...]:
    """Say which files are mapped: path, device and inode."""
    return tuple(
        Evidence(
            source=MAPS,
            found=f"{each.path} (device {each.file[0]}, inode {each.file[1]})" + (" (deleted)" * each.deleted),
            expected=expected,
        )
        for each in libraries
    )


def _maps(subject: Subject) -> Maps:
    text = subject.read(MAPS, _LIMIT_BYTES)
    if text.text is None:
        return Maps(problem=f"{MAPS} cannot be read: {text.detail}")
    parsed = parse_maps(text.text)
    return parsed if parsed.problem is None else Maps(problem=f"{MAPS} makes no sense: {parsed.problem}")
