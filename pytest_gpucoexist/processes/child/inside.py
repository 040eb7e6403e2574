"""What only the process itself knows: its variables as they are now, and whose files its modules are.

A library can set variables by libc, which `os.environ` does not see. A module's file can be claimed by two
distributions, of which one overwrote the other's; the hashes of their records tell whose it is.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import sys
from typing import Any

__all__ = ["loaded_modules", "variables_now"]


def variables_now(names: list[str]) -> dict[str, Any]:
    """Return each variable as libc has it at this moment; None where it is not set."""
    try:
        import ctypes

        libc = ctypes.CDLL(None)
        libc.getenv.restype = ctypes.c_char_p
        libc.getenv.argtypes = [ctypes.c_char_p]
        return {name: _text(libc.getenv(name.encode())) for name in names}
    except (ImportError, OSError, AttributeError):
        return {name: os.environ.get(name) for name in names}


def loaded_modules(tops: list[str], owners: str) -> list[dict[str, Any]]:
    """Describe the loaded modules below `tops`: name, file, and the distributions like `owners` that claim the file.

    Each claim says whether the file is as that distribution installed it: True, False, or None where its record
    has no hash.
    """
    found: list[dict[str, Any]] = []
    distributions: list[Any] | None = None
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name.split(".")[0] not in tops or not isinstance(file, str):
            continue
        if distributions is None:
            distributions = _distributions(owners)
        found.append({"name": name, "file": file, "claims": _claims(file, distributions)})
    return found


def _distributions(owners: str) -> list[Any]:
    from importlib import metadata

    pattern = re.compile(owners)
    named = []
    for each in metadata.distributions():
        # A folder that was half removed has no metadata, which `name` does not expect.
        about: Any = each.metadata
        name = str((about["Name"] if about is not None else None) or "").lower().replace("_", "-")
        if pattern.fullmatch(name):
            named.append((name, each))
    return named


def _claims(file: str, distributions: list[Any]) -> dict[str, Any]:
    claims: dict[str, Any] = {}
    real = os.path.realpath(file)
    for name, distribution in distributions:
        for entry in distribution.files or ():
            if entry.name == os.path.basename(file) and os.path.realpath(str(entry.locate())) == real:
                claims[name] = None if entry.hash is None else _hash(real, entry.hash.mode) == entry.hash.value
    return claims


def _hash(path: str, mode: str) -> str | None:
    try:
        digest = hashlib.new(mode)
        with open(path, "rb") as file:
            while part := file.read(1 << 20):
                digest.update(part)
    except (OSError, ValueError):
        return None
    return base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode()


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "backslashreplace")
