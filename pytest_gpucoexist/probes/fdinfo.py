"""Memory of DRM clients, as `/proc/<pid>/fdinfo/<fd>` tells it.

Source: Documentation/gpu/drm-usage-stats.rst. `drm-memory-<region>` is what older kernels print and newer ones keep
for amdgpu; `drm-resident-<region>` is the same quantity under its present name, `drm-total-<region>` counts what is
only allocated. A descriptor that was duplicated or passed on appears several times with one `drm-client-id`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pytest_gpucoexist.model.identity import normal_pci_address

__all__ = ["Client", "parse_fdinfo"]

_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20}
_SIZE = re.compile(r"([0-9]{1,20})(?: (KiB|MiB))?")
_KEY = re.compile(r"drm-(memory|resident|total)-(\S+)")
# Local memory of the device: `vram` (amdgpu), `vram0` (xe), `local0` (i915). Everything else is memory of the host.
_LOCAL = re.compile(r"(?:vram|local)\d*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """One DRM client: an open file of a GPU. `memory_bytes` is None when the driver does not tell it."""

    driver: str
    client_id: str | None = None
    pci_address: str | None = None
    memory_bytes: int | None = None


def parse_fdinfo(text: str) -> Client | None:
    """Understand the text of an fdinfo file; None when it is not of a DRM device."""
    values: dict[str, str] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon and key.startswith("drm-"):
            values[key] = value.strip()
    driver = values.get("drm-driver")
    if not driver:
        return None
    return Client(
        driver=driver,
        client_id=values.get("drm-client-id"),
        pci_address=normal_pci_address(values.get("drm-pdev", "")),
        memory_bytes=_local_memory(values),
    )


def _local_memory(values: dict[str, str]) -> int | None:
    """Add up the regions of local memory; within a region the first of resident, memory and total that is there."""
    regions: dict[str, dict[str, int]] = {}
    for key, value in values.items():
        match = _KEY.fullmatch(key)
        size = _SIZE.fullmatch(value)
        if match is not None and size is not None and _LOCAL.fullmatch(match[2]):
            regions.setdefault(match[2], {})[match[1]] = int(size[1]) * _UNITS[size[2] or ""]
    if not regions:
        return None
    return sum(
        next(kinds[kind] for kind in ("resident", "memory", "total") if kind in kinds) for kinds in regions.values()
    )
