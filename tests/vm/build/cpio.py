"""Write a folder as the archive that a kernel unpacks into its first file system."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["write_archive"]

_TRAILER = "TRAILER!!!"


def write_archive(folder: Path, out: BinaryIO) -> None:
    """Write everything under `folder` in the format `newc`, owned by root.

    Fields and padding as in Documentation/driver-api/early-userspace/buffer-format.rst: names and contents begin at
    multiples of four bytes. Archives can follow each other in memory: the kernel unpacks one over the other.
    """
    number = 0
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode):
            content = os.fsencode(os.readlink(path))
        elif stat.S_ISREG(status.st_mode):
            content = path.read_bytes()
        elif stat.S_ISDIR(status.st_mode):
            content = b""
        else:
            continue
        number += 1
        _entry(out, str(path.relative_to(folder)), content, status.st_mode, number)
    _entry(out, _TRAILER, b"", 0, 0)


def _entry(out: BinaryIO, name: str, content: bytes, mode: int, number: int) -> None:
    encoded = os.fsencode(name) + b"\0"
    links = 2 if stat.S_ISDIR(mode) else 1
    fields = (number, mode, 0, 0, links, 0, len(content), 0, 0, 0, 0, len(encoded), 0)
    head = b"070701" + b"".join(b"%08x" % field for field in fields) + encoded
    out.write(head + bytes(-len(head) % 4) + content + bytes(-len(content) % 4))
