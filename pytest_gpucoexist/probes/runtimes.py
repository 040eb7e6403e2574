"""Runtimes and frameworks that are installed, found without loading them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_gpucoexist.host.base import Host
    from pytest_gpucoexist.model.machine import Conflict, Runtime

__all__ = ["find_runtimes"]


def find_runtimes(host: Host) -> tuple[tuple[Runtime, ...], tuple[Conflict, ...]]:
    """Return what is installed, and the packages that own the same import."""
    return (), ()
