"""What a vendor process writes: to memfds, which take everything, never block the writer, and outlive a crash.

A program that prints without end is not ended for it: what lies between the ends of one portion is given back to the
kernel, and its size is said.
"""

from __future__ import annotations

import fcntl
import os
import threading

__all__ = ["Capture"]

KEEP_BYTES = 256 * 1024
"""Of each end of one portion: a test's report is not the place for more."""
OVERFLOW_BYTES = 64 * 2**20
_FALLOC_FL_KEEP_SIZE, _FALLOC_FL_PUNCH_HOLE = 1, 2  # include/uapi/linux/falloc.h


class Capture:
    """One stream of a process, which writes to `fd`. For the thread that reads it and the one that keeps it small."""

    def __init__(self, name: str) -> None:
        """Make the memfd. Raises OSError."""
        self._lock = threading.Lock()
        self._at = 0
        self.fd = os.memfd_create(f"gpucoexist-{name}", os.MFD_CLOEXEC)
        # Appending, because several processes write. This side only reads, at places of its own.
        fcntl.fcntl(self.fd, fcntl.F_SETFL, os.O_APPEND)

    def trim(self) -> None:
        """Give memory back when much was written that nobody has taken; both ends of it are kept."""
        with self._lock:
            if self.fd >= 0 and os.fstat(self.fd).st_blocks * 512 > OVERFLOW_BYTES:
                self._free(self._at + KEEP_BYTES, os.fstat(self.fd).st_size - KEEP_BYTES)

    def take(self) -> str:
        """Return what was written since the last call, cut in the middle where that is much."""
        with self._lock:
            if self.fd < 0:
                return ""
            begin, size = self._at, os.fstat(self.fd).st_size
            if size - begin <= 2 * KEEP_BYTES:
                text = os.pread(self.fd, size - begin, begin).decode("utf-8", "replace")
            else:
                head = os.pread(self.fd, KEEP_BYTES, begin).decode("utf-8", "replace")
                tail = os.pread(self.fd, KEEP_BYTES, size - KEEP_BYTES).decode("utf-8", "replace")
                text = f"{head}\n… {size - begin - 2 * KEEP_BYTES} bytes left out …\n{tail}"
            self._at = size
            if size - begin > KEEP_BYTES:
                self._free(begin, size)
            return text

    def close(self) -> None:
        """Close the memfd; what was not taken is gone."""
        with self._lock:
            if self.fd >= 0:
                os.close(self.fd)
            self.fd = -1

    def _free(self, begin: int, end: int) -> None:
        """Punch a hole: a writer that appends at the same time loses nothing by it, as it would by truncation."""
        if end <= begin:
            return
        import ctypes

        libc = ctypes.CDLL(None)
        mode = ctypes.c_int(_FALLOC_FL_KEEP_SIZE | _FALLOC_FL_PUNCH_HOLE)
        # A refusal costs memory and nothing else.
        libc.fallocate(ctypes.c_int(self.fd), mode, ctypes.c_long(begin), ctypes.c_long(end - begin))
