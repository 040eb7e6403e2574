"""Memory of the host with known content, kept while devices copy: who writes to it writes where nobody told it to."""

from __future__ import annotations

import contextlib
import mmap
import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Canary"]

_PAGE = mmap.PAGESIZE
_SIZE = 64 << 20
_STEP = 4 << 20


class Canary:
    """64 MiB of pages, each with a word of its own; `changed` are the offsets of pages that are not as they were."""

    def __init__(self, size_bytes: int = _SIZE) -> None:
        """Write it. `is_locked`: the kernel cannot move it to a disk meanwhile."""
        self._memory = mmap.mmap(-1, size_bytes)
        for at in range(0, size_bytes, _PAGE):
            self._memory[at : at + 16] = at.to_bytes(8, "little") + (~at & (1 << 64) - 1).to_bytes(8, "little")
        self.size_bytes = size_bytes
        self.is_locked = self._lock()
        self._before = self._sums()

    def changed(self) -> tuple[int, ...]:
        """Return where pieces of 4 MiB begin whose content has changed since."""
        return tuple(
            at * _STEP for at, (one, two) in enumerate(zip(self._before, self._sums(), strict=True)) if one != two
        )

    def close(self) -> None:
        """Give it back."""
        self._memory.close()

    def __enter__(self) -> Canary:  # noqa: PYI034 - Self is of Python 3.11
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Give it back."""
        self.close()

    def _sums(self) -> list[int]:
        view = memoryview(self._memory)
        try:
            return [zlib.crc32(view[at : at + _STEP]) for at in range(0, self.size_bytes, _STEP)]
        finally:
            view.release()

    def _lock(self) -> bool:
        with contextlib.suppress(AttributeError, OSError, ValueError):
            import ctypes

            libc = ctypes.CDLL(None, use_errno=True)
            address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
            return bool(libc.mlock(ctypes.c_void_p(address), ctypes.c_size_t(self.size_bytes)) == 0)
        return False
