"""Write a file of this package's own on this machine: complete or not at all, readable by everybody."""

from __future__ import annotations

import contextlib
import os

__all__ = ["save_file"]


def save_file(path: str, text: str, *, mode: int = 0o644) -> None:
    """Write UTF-8 text beside the target and rename it, making the folder where there is none. Raises OSError.

    The mode holds whatever the umask says: on a shared workstation others read what one of them saved. A folder that
    is made can be entered by others. Nothing is left behind by a write that failed.
    """
    folder, name = os.path.split(os.path.abspath(path))
    if not os.path.isdir(folder):
        os.makedirs(folder, exist_ok=True)
        os.chmod(folder, 0o755)
    import secrets

    temporary = os.path.join(folder, f".{name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            os.chmod(temporary, mode)
            file.write(text.encode("utf-8"))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
