"""GPUs with their drivers bound: names and numbers that the driver gives, in bus order."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpucoexist.testing.parts import GpuPart
from pytest_gpucoexist.testing.placing import PlacedFunction

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["DrivenGpu", "drive", "find"]

_DRM_DRIVERS = {"nvidia", "amdgpu", "i915", "xe", "nouveau", "radeon", "ast"}
_NO_RENDER = {"ast"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DrivenGpu:
    """A GPU of a built machine. `id` is the name that discovery will give it: vendor and order on the bus."""

    id: str
    part: GpuPart
    function: PlacedFunction
    number: int
    card: int | None = None
    render: int | None = None
    nvidia_minor: int | None = None
    kfd_node: int | None = None

    @property
    def address(self) -> str:
        """Its PCI address."""
        return self.function.address

    @property
    def unique_id(self) -> int:
        """The 64 bits that amdgpu calls `unique_id`; an APU has none (0)."""
        if self.part.model.place == "processor":
            return 0
        if self.part.uuid is not None:
            return int(self.part.uuid.removeprefix("GPU-"), 16)
        return int(_digits(self.address, 16), 16)

    @property
    def uuid(self) -> str | None:
        """The UUID by which its own runtime knows it: NVIDIA's, ROCm's; None for others."""
        if self.part.model.vendor_id == "0x1002":
            return f"GPU-{self.unique_id:016x}" if self.unique_id else None
        if self.part.model.vendor_id != "0x10de":
            return None
        text = _digits(self.address, 32)
        return self.part.uuid or f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def drive(functions: Sequence[PlacedFunction], cpu_nodes: int) -> list[DrivenGpu]:
    """Give every GPU its numbers, as the drivers do on a quiet boot: in bus order."""
    vendors = {"0x10de": "nvidia", "0x1002": "amd", "0x8086": "intel"}
    counts: dict[str, int] = {}
    driven: list[DrivenGpu] = []
    card, render, minor, kfd = 0, 128, 0, cpu_nodes
    for number, function in enumerate(each for each in functions if each.gpu is not None):
        part = function.gpu
        assert part is not None
        vendor = vendors.get(part.model.vendor_id, "other")
        order = counts.get(vendor, 0)
        counts[vendor] = order + 1
        has_drm = part.driver in _DRM_DRIVERS
        has_render = has_drm and part.driver not in _NO_RENDER
        is_nvidia = part.driver == "nvidia"
        in_kfd = part.driver == "amdgpu" and part.model.arch is not None
        driven.append(
            DrivenGpu(
                id=f"{vendor}{order}",
                part=part,
                function=function,
                number=number,
                card=card if has_drm else None,
                render=render if has_render else None,
                nvidia_minor=minor if is_nvidia else None,
                kfd_node=kfd if in_kfd else None,
            )
        )
        card, render, minor, kfd = card + has_drm, render + has_render, minor + is_nvidia, kfd + in_kfd
    return driven


def find(gpus: Sequence[DrivenGpu], wanted: str) -> DrivenGpu:
    """Return the GPU with this id (`nvidia0`) or PCI address. Raises ValueError that lists what there is."""
    for gpu in gpus:
        if wanted in {gpu.id, gpu.address}:
            return gpu
    raise ValueError(
        f"no GPU {wanted!r}; there are: {', '.join(f'{gpu.id} ({gpu.address})' for gpu in gpus) or 'none'}"
    )


def _digits(seed: str, count: int) -> str:
    return hashlib.sha256(seed.encode()).hexdigest()[:count]
