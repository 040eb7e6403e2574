"""Locks for systems and folders without locks on ranges: whole devices, nobody's shares.

`FlockLocks` has a file for each device, locked with `flock`: macOS, the BSDs, file systems that refuse ranges.
`ProcessLocks` knows the threads of this process alone: Windows, and where no folder can be written.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from pytest_gpucoexist.leases.forks import close, generation, opened
from pytest_gpucoexist.leases.layout import mark

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from pytest_gpucoexist.leases.claims import Claim

__all__ = ["FlockLocks", "ProcessLocks"]


class FlockLocks:
    """What one lease has locked, by a file for each device. The parent of an instance is locked shared."""

    fd: int | None = None

    def __init__(self, folder: str) -> None:
        """`folder` exists."""
        self._folder = folder
        self._files: dict[str, list[int]] = {}

    def take(self, claim: Claim) -> bool:
        """Lock a device, or nothing and return False. Raises OSError when its file cannot be made."""
        if claim.name in self._files:
            return False
        files: list[int] = []
        self._files[claim.name] = files
        wanted = [(claim.name, False), *([(claim.parent, True)] if claim.parent is not None else [])]
        try:
            for name, shared in wanted:
                path = os.path.join(self._folder, f"{mark(name).hex()}.lock")
                files.append(opened(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW))
                fcntl.flock(files[-1], (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            self.give(claim)
            return False
        except BaseException:
            self.give(claim)
            raise
        return True

    def free(self, claim: Claim) -> bool:
        """Whether `take` may succeed: without taking, this system cannot tell."""
        return claim.name not in self._files

    def ranges(self, _claim: Claim) -> tuple[tuple[int, int], ...]:
        """Return nothing: there are no bytes."""
        return ()

    def give(self, claim: Claim) -> None:
        """Unlock it. What is not held is no error."""
        for fd in self._files.pop(claim.name, ()):
            fcntl.flock(fd, fcntl.LOCK_UN)
            close(fd)

    def rest(self) -> None:
        """Do nothing: there is nothing that stays open."""

    def wake(self) -> None:
        """Do nothing."""

    def intact(self) -> bool:
        """Whether each file that is locked is still the one that others find."""
        for name, files in self._files.items():
            try:
                found = os.lstat(os.path.join(self._folder, f"{mark(name).hex()}.lock"))
            except OSError:
                return False
            if found.st_ino != os.fstat(files[0]).st_ino:
                return False
        return True

    def close(self) -> None:
        """Unlock everything."""
        for files in self._files.values():
            for fd in files:
                fcntl.flock(fd, fcntl.LOCK_UN)
                close(fd)
        self._files.clear()


_guard = threading.Lock()
_held: dict[str, ProcessLocks] = {}


class ProcessLocks:
    """What one lease has locked, for the threads of this process."""

    fd: int | None = None

    def __init__(self) -> None:
        self.generation = generation()

    def take(self, claim: Claim) -> bool:
        """Lock a device, or nothing and return False."""
        with _guard:
            if not self._is_free(claim):
                return False
            _held[claim.name] = self
            return True

    def free(self, claim: Claim) -> bool:
        """Whether `take` would succeed now."""
        with _guard:
            return self._is_free(claim)

    @staticmethod
    def _is_free(claim: Claim) -> bool:
        parts = f"{claim.name}/"
        return not any(
            name in {claim.name, claim.parent} or name.startswith(parts)
            for name, holder in _held.items()
            if holder.generation == generation()  # a forked child has nothing of its parent's
        )

    def ranges(self, _claim: Claim) -> tuple[tuple[int, int], ...]:
        """Return nothing: there are no bytes."""
        return ()

    def give(self, claim: Claim) -> None:
        """Unlock it. What is not held is no error."""
        with _guard:
            if _held.get(claim.name) is self:
                del _held[claim.name]

    def rest(self) -> None:
        """Do nothing: there is nothing that stays open."""

    def wake(self) -> None:
        """Do nothing."""

    def intact(self) -> bool:
        """Return True: nobody can take memory away."""
        return True

    def close(self) -> None:
        """Unlock everything."""
        with _guard:
            for name in [name for name, holder in _held.items() if holder is self]:
                del _held[name]
