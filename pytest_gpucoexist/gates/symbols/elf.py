"""What an ELF file says of itself: names, needs, where it looks, and the exported names that runtimes fight over.

Nothing is loaded, and no more is read than headers, the dynamic section, notes and, where asked, the two tables of
dynamic symbols. Source: gabi 4.1, chapters 4 and 5; `readelf -dWs` shows the same.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, BinaryIO

from pytest_gpucoexist.probes.reader import Bad

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["PREFIXES", "Elf", "prefix_of", "read_elf"]

PREFIXES = {
    "nccl": "nccl*",
    "rsmi_": "rsmi_*",
    "amdsmi_": "amdsmi_*",
    "hip": "hip*",
    "__hip": "hip*",
    "hsa_": "hsa_*",
    "ggml_": "ggml_*",
    "LLVM": "LLVM*",
    "_ZN4llvm": "LLVM*",
}
"""Beginnings of names that belong to one runtime each, and what people call the group."""

_WANTED = tuple(prefix.encode() for prefix in PREFIXES)
_ANY = re.compile(b"|".join(re.escape(prefix) for prefix in _WANTED))
_TAGS = 4096
_SECTIONS = 512
_SYMBOLS_LIMIT_BYTES = 32 << 20
_NAMES_LIMIT_BYTES = 64 << 20
_NAME_LIMIT_BYTES = 4096
_GLOBAL, _WEAK, _UNIQUE = 1, 2, 10
_HIDDEN = (1, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Elf:
    """The facts of one file. `exports` are the names with one of `PREFIXES`; `versioned`: names carry versions."""

    machine: str
    bits: int
    soname: str | None = None
    needed: tuple[str, ...] = ()
    rpath: tuple[str, ...] = ()
    runpath: tuple[str, ...] = ()
    build_id: str | None = None
    exports: frozenset[str] = frozenset()
    versioned: bool = False


def read_elf(file: BinaryIO, *, exports: bool = False) -> Elf | Bad:
    """Read a file that is open for reading. Whatever it holds, this returns: facts, or why there are none."""
    try:
        return _read(file, exports=exports)
    except Exception as error:  # noqa: BLE001 - a parser meets a file that was cut or overwritten anywhere
        return Bad(f"no ELF file that makes sense: {type(error).__name__}: {error}"[:200])


def prefix_of(name: str) -> str | None:
    """Return the group that a name belongs to: `nccl*` for ncclAllReduce."""
    return next((group for prefix, group in PREFIXES.items() if name.startswith(prefix)), None)


def _read(file: BinaryIO, *, exports: bool) -> Elf | Bad:
    from elftools.elf.elffile import ELFFile

    if file.read(4) != b"\x7fELF":
        return Bad("it does not begin as an ELF file does")
    file.seek(0)
    elf: Any = ELFFile(file)
    if elf.header["e_type"] != "ET_DYN":
        return Bad(f"it is no shared library but {elf.header['e_type']}")
    if not 0 < elf.num_sections() <= _SECTIONS:
        return Bad(f"it has {elf.num_sections()} sections")
    sections = list(elf.iter_sections())
    dynamic = next((each for each in sections if each["sh_type"] == "SHT_DYNAMIC"), None)
    if dynamic is None:
        return Bad("it has no dynamic section")
    tags: dict[str, list[str]] = {}
    for tag in islice(dynamic.iter_tags(), _TAGS):
        for name in ("needed", "soname", "rpath", "runpath"):
            text = getattr(tag, name, None)
            if isinstance(text, str):
                tags.setdefault(name, []).append(text)
    folders = {name: tuple(part for text in tags.get(name, ()) for part in text.split(":") if part) for name in tags}
    table = next((each for each in sections if each["sh_type"] == "SHT_DYNSYM"), None)
    names: frozenset[str] = frozenset()
    if exports:
        if table is None:
            return Bad("it has no table of dynamic symbols")
        found = _exports(file, elf, table)
        if isinstance(found, Bad):
            return found
        names = found
    return Elf(
        machine=str(elf.header["e_machine"]),
        bits=int(elf.elfclass),
        soname=next(iter(tags.get("soname", ())), None),
        needed=tuple(tags.get("needed", ())),
        rpath=folders.get("rpath", ()),
        runpath=folders.get("runpath", ()),
        build_id=_build_id(sections),
        exports=names,
        versioned=any(each["sh_type"] == "SHT_GNU_verdef" for each in sections),
    )


def _build_id(sections: list[Any]) -> str | None:
    for section in sections:
        if section["sh_type"] == "SHT_NOTE" and section.name == ".note.gnu.build-id" and section["sh_size"] < 4096:
            for note in islice(section.iter_notes(), 8):
                if note["n_type"] == "NT_GNU_BUILD_ID":
                    return str(note["n_desc"])
    return None


def _exports(file: BinaryIO, elf: Any, table: Any) -> frozenset[str] | Bad:
    """Read the names that the library defines for others. Two blocks and a struct: an object each costs seconds."""
    strings = elf.get_section(table["sh_link"])
    if table["sh_size"] > _SYMBOLS_LIMIT_BYTES or strings["sh_size"] > _NAMES_LIMIT_BYTES:
        return Bad("its table of symbols is too large")
    names = _block(file, strings)
    symbols = _block(file, table)
    if len(names) < strings["sh_size"] or len(symbols) < table["sh_size"]:
        return Bad("its table of symbols is cut short")
    if _ANY.search(names) is None:
        return frozenset()
    order = "<" if elf.little_endian else ">"
    found = {
        name
        for start in _defined(symbols, order, bits=elf.elfclass)
        if (name := _name(names, start)) is not None and name.startswith(_WANTED)
    }
    return frozenset(name.decode("ascii", "replace") for name in found)


def _block(file: BinaryIO, section: Any) -> bytes:
    file.seek(section["sh_offset"])
    return file.read(section["sh_size"])


def _defined(symbols: bytes, order: str, *, bits: int) -> Iterator[int]:
    """Yield where the name of each symbol begins that is defined here and visible to others."""
    layout = struct.Struct(f"{order}IBBHQQ" if bits == 64 else f"{order}IIIBBH")
    whole = len(symbols) - len(symbols) % layout.size
    for entry in layout.iter_unpack(symbols[:whole]):
        info, other, index = (entry[1], entry[2], entry[3]) if bits == 64 else (entry[3], entry[4], entry[5])
        if index != 0 and info >> 4 in {_GLOBAL, _WEAK, _UNIQUE} and other & 3 not in _HIDDEN:
            yield entry[0]


def _name(names: bytes, start: int) -> bytes | None:
    if not names.startswith(_WANTED, start):
        return None
    end = names.find(b"\0", start, start + _NAME_LIMIT_BYTES)
    return names[start:end] if end > 0 else None
