"""Who died with a device: marks that a holder writes when it gets one, and clears before it gives it back.

The kernel gives the locks of the dead back exactly like those that were given back, and what a dead process left on the
device (an orphaned server, memory that the driver still tears down) is in nobody's lock. So the table's first bytes are
a board of marks: each lease has a line, with its PID and the devices it holds, and locks the number of the line. A
device that is named on a line that nobody has locked was not given back. It is looked at afresh before it is granted.

Everybody who may use the table can write the board. A wrong mark costs a look, a removed one loses one.
"""

from __future__ import annotations

import errno
import os
import struct
from typing import TYPE_CHECKING

from pytest_gpucoexist.leases.layout import KEEPERS, mark
from pytest_gpucoexist.leases.ofd import conflict, lock, unlock

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from pytest_gpucoexist.leases.claims import Claim

__all__ = ["Board"]

_LINE_BYTES = 512  # a PID and 63 devices
_LINES = 2048
_READ_BYTES = 1 << 16
_PID = struct.Struct("<Q")
_MARKS = _LINE_BYTES // 8 - 1
_BLANK = bytes(_LINE_BYTES)

_last_line = [1]
"""Where this process found a line the last time: most often it is free again."""


class Board:
    """The board as one lease sees it, through its own opening of the table."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._line: int | None = None

    def write(self, claims: Collection[Claim]) -> None:
        """Write down what is held, on a line of one's own, which is kept; blank it when nothing is. Raises OSError."""
        if not claims:
            if self._line is not None:
                self._put(_BLANK)
            return
        marks = b"".join(mark(claim.name) for claim in list(claims)[:_MARKS])
        text = (_PID.pack(os.getpid()) + marks).ljust(_LINE_BYTES, b"\0")
        if self._line is None:
            self._line = self._free_line()
        self._put(text)

    def _put(self, text: bytes) -> None:
        if self._line is None:
            return
        try:
            os.pwrite(self._fd, text, self._line * _LINE_BYTES)
        except OSError as error:
            # On a full disk, or below a limit on the size of files, a death goes unnoticed; that is no reason to run
            # no tests.
            if error.errno not in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
                raise

    def _free_line(self) -> int | None:
        for step in range(_LINES):
            line = 1 + (_last_line[0] - 1 + step) % (_LINES - 1)  # the first has the table's head
            if lock(self._fd, KEEPERS + line, 1):
                # A line of the dead stays until somebody has looked at its devices.
                if os.pread(self._fd, _LINE_BYTES, line * _LINE_BYTES).strip(b"\0") == b"":
                    _last_line[0] = line
                    return line
                unlock(self._fd, KEEPERS + line, 1)
        return None

    def died_with(self, names: Collection[str]) -> dict[str, set[int]]:
        """Return the PIDs of holders that died with these devices (`Claim.name`), for each that has some."""
        data = self._read()
        found: dict[str, set[int]] = {}
        for name in names:
            for line in _lines_with(data, mark(name)):
                if line != self._line and conflict(self._fd, KEEPERS + line, 1) is None:
                    pid = _PID.unpack_from(data, line * _LINE_BYTES)[0]
                    found.setdefault(name, set()).add(pid)
        return found

    def is_named(self, name: str) -> bool:
        """Whether a dead holder is still marked as having a device."""
        return bool(self.died_with([name]))

    def forget(self, name: str) -> None:
        """Take a device off the lines of the dead: it was looked at, and nothing is left on it."""
        for line in _lines_with(self._read(), mark(name)):
            if line != self._line and lock(self._fd, KEEPERS + line, 1):
                data = os.pread(self._fd, _LINE_BYTES, line * _LINE_BYTES)
                marks = [data[at : at + 8] for at in range(8, len(data), 8)]
                left = [each for each in marks if each not in {mark(name), bytes(8)}]
                text = data[:8] + b"".join(left) if left else b""
                os.pwrite(self._fd, text.ljust(_LINE_BYTES, b"\0"), line * _LINE_BYTES)
                unlock(self._fd, KEEPERS + line, 1)

    def _read(self) -> bytes:
        data = os.pread(self._fd, _READ_BYTES, 0)
        while len(data) % _READ_BYTES == 0 and data and len(data) < _LINES * _LINE_BYTES:
            more = os.pread(self._fd, _READ_BYTES, len(data))
            if not more:
                break
            data += more
        return data


def _lines_with(data: bytes, wanted: bytes) -> Iterator[int]:
    at = data.find(wanted)
    while at >= 0:
        if at >= _LINE_BYTES and at % 8 == 0 and at % _LINE_BYTES:
            yield at // _LINE_BYTES
        at = data.find(wanted, at + 1)
