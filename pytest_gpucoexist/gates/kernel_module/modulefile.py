"""What a kernel module's file says about itself: its `.modinfo` section, and whether a signature is appended.

The section table is read by hand: a module can have 100 MB of code, a quick gate reads some hundred bytes of it, and
importing an ELF library costs more than all quick gates together. Sources: elf(5), include/linux/module.h
(`MODULE_INFO`), include/linux/module_signature.h (`MODULE_SIG_STRING`), modinfo(8). Nothing here raises for garbage.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import BinaryIO

from pytest_gpucoexist.probes.reader import Bad, reason

__all__ = ["ModuleInfo", "parse_modinfo_output", "parse_section", "read_module"]

SIGNATURE = b"~Module signature appended~\n"
_SECTION = b".modinfo\0"
_MAX_SECTION = 1 << 20
_MAX_SECTIONS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleInfo:
    """A module's own words. `signed` None: nothing says."""

    path: str
    fields: Mapping[str, str]
    signed: bool | None = None
    source: str = ""

    @property
    def version(self) -> str | None:
        """Its version; modules of the kernel tree mostly have none."""
        return self.fields.get("version")

    @property
    def built_for(self) -> str | None:
        """The kernel release that it was built for: the first word of `vermagic`."""
        words = self.fields.get("vermagic", "").split()
        return words[0] if words else None


def parse_section(data: bytes) -> dict[str, str]:
    """Read a `.modinfo` section: texts `key=value`, each ended by NUL. Of several with one key the first counts."""
    fields: dict[str, str] = {}
    for item in data.split(b"\0"):
        key, equals, value = item.partition(b"=")
        if equals and key:
            fields.setdefault(key.decode("utf-8", "replace"), value.decode("utf-8", "replace"))
    return fields


def read_module(file: BinaryIO, path: str) -> ModuleInfo | Bad:
    """Read an uncompressed module that was opened for reading."""
    try:
        section = _section(file)
        if section is None:
            return Bad("not a kernel module: it has no section .modinfo")
        file.seek(0, 2)
        end = file.tell()
        file.seek(max(0, end - len(SIGNATURE)))
        signed = file.read(len(SIGNATURE)) == SIGNATURE
    except OSError as error:
        return Bad(reason(error))
    except (struct.error, ValueError, OverflowError) as error:
        return Bad(f"not a whole ELF file: {error}")
    fields = parse_section(section)
    if "vermagic" not in fields and "name" not in fields:
        return Bad("its section .modinfo makes no sense")
    return ModuleInfo(path=path, fields=fields, signed=signed, source=path)


def _section(file: BinaryIO) -> bytes | None:
    """Return the bytes of `.modinfo`. Raises struct.error or ValueError where the file is cut short or no ELF."""
    head = file.read(64)
    if len(head) < 52 or head[:4] != b"\x7fELF" or head[4] not in {1, 2} or head[5] not in {1, 2}:
        raise ValueError("no ELF header")
    order = "<" if head[5] == 1 else ">"
    if head[4] == 2:
        (table,) = struct.unpack_from(f"{order}Q", head, 0x28)
        size, count, names = struct.unpack_from(f"{order}HHH", head, 0x3A)
        at_name, at_place, word = 0, 0x18, "Q"
    else:
        (table,) = struct.unpack_from(f"{order}I", head, 0x20)
        size, count, names = struct.unpack_from(f"{order}HHH", head, 0x2E)
        at_name, at_place, word = 0, 0x10, "I"
    if size < 0x28 or not 0 < count <= _MAX_SECTIONS or names >= count:
        raise ValueError("its section table makes no sense")
    file.seek(table)
    headers = file.read(size * count)

    def place(number: int) -> bytes:
        offset, length = struct.unpack_from(f"{order}{word}{word}", headers, size * number + at_place)
        if length > _MAX_SECTION:
            raise ValueError("a section is larger than it can be")
        file.seek(offset)
        data = file.read(length)
        if len(data) < length:
            raise ValueError("it ends too early")
        return data

    texts = place(names)
    for number in range(count):
        (name,) = struct.unpack_from(f"{order}I", headers, size * number + at_name)
        if texts[name : name + len(_SECTION)] == _SECTION:
            return place(number)
    return None


def parse_modinfo_output(text: str, path: str) -> ModuleInfo | Bad:
    """Read what `modinfo FILE` prints: `key:   value` lines; a signature is bytes over several lines."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon and key and not key[0].isspace():
            fields.setdefault(key.strip(), value.strip())
    if "vermagic" not in fields and "name" not in fields:
        return Bad("modinfo printed nothing that makes sense")
    signed = any(fields.get(key) for key in ("signer", "sig_key", "signature"))
    return ModuleInfo(path=path, fields=fields, signed=signed, source=f"modinfo {path}")
