"""Read the files that a driver answers in the kernel, and that never answer when it is wedged.

`/proc/driver/nvidia/gpus/*` takes the NVIDIA driver's locks (nv-procfs.c): behind a hung GPU the reader blocks, and no
signal or thread helps. Such a file is read by `cat`, which can be left behind.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from pytest_gpucoexist.host.common import os_error

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["GuardedReader"]

_CAN_BLOCK = "/proc/driver/nvidia/gpus/"
_PATIENCE_S = 1.0
"""A healthy driver answers in less than a millisecond, one that has to wake its GPU in a few hundred."""


class GuardedReader:
    """Reads files that can block, each within a deadline; after the first that did, it fails at once."""

    def __init__(self, environ: Mapping[str, str], *, area: str = _CAN_BLOCK, patience_s: float = _PATIENCE_S) -> None:
        self._environ = environ
        self._area = area
        self._patience_s = patience_s
        self._cat = ""
        self._blocked = False

    def guards(self, path: str) -> bool:
        """Whether a file has to be read by this reader."""
        return path.startswith(self._area)

    def read(self, path: str, limit: int) -> bytes | None:
        """Return at most `limit` bytes; None where there is no `cat`. Raises OSError (ETIMEDOUT when it blocks)."""
        import shutil

        from pytest_gpucoexist.host.processes import run_program

        if not os.access(path, os.R_OK, effective_ids=os.access in os.supports_effective_ids):
            os.stat(path)  # says ENOENT
            raise os_error(errno.EACCES, path)
        self._cat = self._cat or shutil.which("cat", path="/bin:/usr/bin") or ""
        if not self._cat:
            return None
        if self._blocked:
            raise os_error(errno.ETIMEDOUT, path)
        done = run_program([self._cat, path], self._environ, self._patience_s)
        if done.timed_out:
            self._blocked = True
            raise os_error(errno.ETIMEDOUT, path)
        if done.returncode != 0:
            raise os_error(errno.EIO, path)
        return done.stdout[:limit]
