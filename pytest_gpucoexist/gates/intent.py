"""Whether somebody set this system up to compute on a vendor's GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_gpucoexist.model.machine import Machine

__all__ = ["driver_software"]

_SOFTWARE = {
    "nvidia": {"cuda", "nvml"},
    "amd": {"rocm", "hip", "amdsmi"},
    "intel": {"level-zero"},
}
"""Runtimes that are installed with a vendor's driver, by the names that discovery gives them."""


def driver_software(machine: Machine, vendor: str) -> str | None:
    """Name the vendor's driver software that is installed on this system; None when there is none.

    Wheels do not count: the usual torch wheel for Linux brings CUDA's libraries to machines without any GPU.
    """
    for runtime in machine.runtimes:
        if runtime.kind != "runtime" or runtime.name not in _SOFTWARE.get(vendor, ()) or runtime.path is None:
            continue
        if runtime.distribution is None and "site-packages" not in runtime.path:
            return f"{runtime.path} is installed"
    return None
