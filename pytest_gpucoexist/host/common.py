"""What every Host does alike: errors with an errno, and bytes of the kernel as text."""

from __future__ import annotations

import os

__all__ = ["as_text", "os_error"]

_PADDING = "\0 \t\r\n\v\f"


def os_error(code: int, path: str) -> OSError:
    """Build the OSError that the kernel would give for `path`; Python picks the subclass by errno."""
    return OSError(code, os.strerror(code), path)


def as_text(data: bytes) -> str:
    """Decode a file: NUL padding (recorded sysfs pages) and white space at the end removed, bad bytes replaced."""
    return data.decode("utf-8", "replace").rstrip(_PADDING)
