"""What a GPU's PCI id says about which drivers can take it. Rules of thumb by id range; None where there is none.

Sources: pci.ids (ranges of chip families), NVIDIA's lists of supported products per driver branch (470 is the last for
Kepler, 390 for Fermi; the open modules need a GPU with a GSP, Turing and later; Blackwell needs the open modules), the
kernel's drivers/gpu/drm/radeon/radeon_drv.c and include/drm/intel/pciids.h.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_gpucoexist.model.machine import Gpu

__all__ = ["before_turing", "device_number", "is_blackwell", "outdated", "xe_is_official"]

_MAXWELL, _TURING, _BLACKWELL = 0x1340, 0x1E00, 0x2900

# Lunar Lake, Battlemage and Panther Lake: generations that i915 does not know and xe takes without being forced.
_XE_OFFICIAL = (range(0x6400, 0x6500), range(0xE200, 0xE300), range(0xB080, 0xB100), range(0xFD80, 0xFE00))


def device_number(gpu: Gpu) -> int | None:
    """Return the PCI device id as a number."""
    try:
        return int(gpu.device_id or "", 16)
    except ValueError:
        return None


def outdated(gpu: Gpu) -> str | None:
    """Say why no current release of the vendor's compute driver takes this card; None when it should."""
    number = device_number(gpu)
    if gpu.vendor == "nvidia" and number is not None and number < _MAXWELL:
        return "a card before Maxwell, which no current NVIDIA driver supports"
    if gpu.vendor == "amd" and gpu.driver == "radeon":
        return "a card of the radeon driver, older than anything that ROCm supports"
    return None


def before_turing(gpu: Gpu) -> bool | None:
    """Whether an NVIDIA card has no GSP, so that the open kernel modules cannot run it."""
    number = device_number(gpu)
    return None if number is None else number < _TURING


def is_blackwell(gpu: Gpu) -> bool | None:
    """Whether an NVIDIA card is Blackwell or later, which the proprietary kernel modules cannot run."""
    number = device_number(gpu)
    return None if number is None else number >= _BLACKWELL


def xe_is_official(gpu: Gpu) -> bool | None:
    """Whether xe takes an Intel GPU by itself; where it does not, only `force_probe` makes it."""
    number = device_number(gpu)
    return None if number is None else any(number in ids for ids in _XE_OFFICIAL)
