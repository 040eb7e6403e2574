"""The board beside a fake machine's description: what the test and its clients tell each other without system calls.

`src/board.h` says what it is for, and has the same layout: the generation of the description, counters of orders, and
copy engines. The libraries map the file; here it is read and written as a file, which the kernel keeps the same.
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["MAX_ORDERS", "Board"]

MAX_GPUS: Final = 16
MAX_ORDERS: Final = 16384

_WORD = struct.Struct("=Q")
_ORDER = struct.Struct("=QQ")
_ENGINE = struct.Struct("=QQQ")
_ORDERS_AT = 64
_ENGINES_AT = _ORDERS_AT + MAX_ORDERS * _ORDER.size
_VENDORS = ("nvidia", "amd")
_WAYS = ("h2d", "d2h", "d2d")
_ENGINES = len(_WAYS) + MAX_GPUS
_BYTES = _ENGINES_AT + len(_VENDORS) * MAX_GPUS * _ENGINES * _ENGINE.size


class Board:
    """The file. One process writes the generation: the one that describes the machine."""

    def __init__(self, description: Path) -> None:
        self._path = description.with_name(f"{description.name}.board")
        # A client of an earlier board in this place keeps what it has mapped.
        temporary = self._path.with_suffix(".new")
        temporary.touch()
        os.truncate(temporary, _BYTES)
        temporary.replace(self._path)
        self._generation = 0

    def describe_again(self) -> None:
        """Say that the description has changed; it has to be in place."""
        self._generation += 1
        self._write(0, _WORD.pack(self._generation))

    def order(self, number: int) -> tuple[int, int]:
        """Return at how many occasions an order was looked at, and how often it struck."""
        seen, struck = _ORDER.unpack(self._read(_ORDERS_AT + number * _ORDER.size, _ORDER.size))
        return seen, struck

    def engine(self, where: str) -> tuple[int, int]:
        """Return the copies and bytes of an engine: `nvidia.0.h2d`, `amd.1.d2d`, `nvidia.0.peer.1`."""
        vendor, device, *way = where.split(".")
        engine = len(_WAYS) + int(way[1]) if way[0] == "peer" else _WAYS.index(way[0])
        row = (_VENDORS.index(vendor) * MAX_GPUS + int(device)) * _ENGINES + engine
        _busy, copies, size_bytes = _ENGINE.unpack(self._read(_ENGINES_AT + row * _ENGINE.size, _ENGINE.size))
        return copies, size_bytes

    def _read(self, at: int, size_bytes: int) -> bytes:
        file = os.open(self._path, os.O_RDONLY)
        try:
            return os.pread(file, size_bytes, at)
        finally:
            os.close(file)

    def _write(self, at: int, data: bytes) -> None:
        file = os.open(self._path, os.O_WRONLY)
        try:
            os.pwrite(file, data, at)
        finally:
            os.close(file)
