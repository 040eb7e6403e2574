"""Base address registers: what `resource` and `resourceN_resize` say."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.pcie.folders import asleep_at, folder

if TYPE_CHECKING:
    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.model.machine import Gpu

__all__ = ["MIB", "Region", "Sizes", "regions_of", "size_words", "sizes_of", "supported_sizes"]

MIB = 1 << 20

_BARS = 6
_LINE = re.compile(r"0x([0-9a-f]{1,16}) 0x([0-9a-f]{1,16}) 0x([0-9a-f]{1,16})")

# include/linux/ioport.h
_MEM, _UNSET = 0x200, 0x20000000


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """One memory register: first and last address. `assigned` is False for one that has got no place."""

    index: int
    start: int
    end: int
    assigned: bool

    @property
    def size_bytes(self) -> int:
        """How much it covers."""
        return self.end - self.start + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes that a resizable register can have. `largest_bytes` is None where only root may read them."""

    path: str
    largest_bytes: int | None = None


def regions_of(text: str) -> tuple[Region, ...] | None:
    """Read the memory registers of `resource`, lines 0 to 5; None when it is no such file.

    An unassigned register keeps its size from 0 on, and newer kernels mark it (IORESOURCE_UNSET).
    """
    lines = text.splitlines()
    if not lines:
        return None
    found: list[Region] = []
    for index, line in enumerate(lines[:_BARS]):
        match = _LINE.fullmatch(line.strip())
        if match is None:
            return None
        start, end, flags = (int(part, 16) for part in match.groups())
        if not flags & _MEM:
            continue
        if end < start:
            return None
        found.append(Region(index=index, start=start, end=end, assigned=start != 0 and not flags & _UNSET))
    return tuple(found)


def supported_sizes(text: str) -> int | None:
    """Return the largest size in the bitmap of `resourceN_resize`, where bit 0 is 1 MiB; None: no bitmap.

    Documentation/ABI/testing/sysfs-bus-pci, `/sys/bus/pci/devices/.../resource<N>_resize`.
    """
    text = text.strip()
    if re.fullmatch(r"[0-9a-fA-F]{1,16}", text) is None or int(text, 16) == 0:
        return None
    return MIB << (int(text, 16).bit_length() - 1)


def sizes_of(subject: Subject, gpu: Gpu, index: int) -> Sizes | None:
    """Read what sizes a register can have; None when it cannot be resized (or the kernel is older than 6.1).

    The file is root's, and reading it would wake the GPU.
    """
    at = folder(subject, gpu)
    name = f"resource{index}_resize"
    if name not in subject.names(at):
        return None
    path = f"{at}/{name}"
    if asleep_at(subject, at):
        return Sizes(path=path)
    return Sizes(path=path, largest_bytes=supported_sizes(subject.read(path).text or ""))


def size_words(size_bytes: int) -> str:
    """Write a size for people: `256 MiB`, `23.9 GiB`."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", MIB), ("KiB", 1 << 10)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.4g} {unit}"
    return f"{size_bytes} bytes"
