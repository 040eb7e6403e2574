"""Write a file so that a reader sees the old one or the new one, never half of one."""

from __future__ import annotations

import os
import secrets

from pytest_gpucoexist.errors import ReportError

__all__ = ["prepare", "write_text"]


def prepare(path: str) -> None:
    """Make the folder of a file, and say before long work what `write_text` would say after it. Raises ReportError."""
    target = os.path.realpath(path)
    folder = os.path.dirname(target)
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise ReportError(f"cannot write {path}: no folder {folder}: {error.strerror or error}") from error
    if os.path.isdir(target):
        raise ReportError(f"cannot write {path}: it is a folder; give the name of a file")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ReportError(f"cannot write {path}: no permission to create files in {folder}")


def write_text(path: str, text: str) -> None:
    """Write UTF-8 text under a temporary name in the same folder, then rename it. Nothing is left after a failure.

    A link is followed: the file that it names is replaced, not the link. Raises ReportError when the folder is
    missing or cannot be written to.
    """
    target = os.path.realpath(path)
    folder, name = os.path.split(target)
    if not os.path.isdir(folder):
        raise ReportError(f"cannot write {path}: there is no folder {folder}; create it first")
    temporary = os.path.join(folder, f".{name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        try:
            # A mode such as mkstemp's 0600 would keep the CI's collector from reading the report.
            with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as file:
                file.write(text.encode("utf-8", "replace"))
            os.replace(temporary, target)
        except BaseException:
            _forget(temporary)
            raise
    except OSError as error:
        raise ReportError(f"cannot write {path}: {error.strerror or error}") from error


def _forget(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:  # never made
        return
