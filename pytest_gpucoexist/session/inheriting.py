"""The token of a lease in the environment: a test's children use its devices by it, and ask for nothing."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pytest_gpucoexist.leases.token import VARIABLE

if TYPE_CHECKING:
    from pytest_gpucoexist.leases.lease import Lease
    from pytest_gpucoexist.session.state import GpuSession

__all__ = ["export", "take_back", "token_of"]


# What has been exported and not taken back, in order: of a test, of what it acquires late, of pytest inside a test.
_exported: list[str] = []
_before: list[str | None] = []


def token_of(session: GpuSession, lease: Lease | None) -> str | None:
    """Return the token of a lease; None where nothing could be said to a child, as with `--gpu-lease=off`."""
    make = getattr(session.leaser, "token", None)
    return None if make is None or lease is None else make(lease)


def export(token: str | None) -> None:
    """Put a token into the environment of this process, until it is taken back."""
    if token is not None:
        if not _exported:
            _before[:] = [os.environ.get(VARIABLE)]
        _exported.append(token)
        os.environ[VARIABLE] = token


def take_back(token: str | None) -> None:
    """Take it out again; what was there before it comes back, when nothing else is exported."""
    if token is None or token not in _exported:
        return
    _exported.reverse()
    _exported.remove(token)  # the latest of equals
    _exported.reverse()
    left = _exported[-1] if _exported else _before[0]
    if left is None:
        os.environ.pop(VARIABLE, None)
    else:
        os.environ[VARIABLE] = left
