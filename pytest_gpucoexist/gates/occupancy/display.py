"""Whether a GPU shows a desktop, which takes some of its memory and time by right."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.model.machine import Gpu

__all__ = ["shows_desktop"]

_DRM = "/sys/class/drm"


def shows_desktop(subject: Subject, gpu: Gpu) -> bool:
    """Whether a monitor is connected to one of the GPU's connectors; their status is what the driver remembers."""
    card = gpu.drm.card if gpu.drm is not None else None
    if card is None:
        return False
    names = [name for name in subject.names(_DRM) if name.startswith(f"{card}-")]
    return any((subject.read(f"{_DRM}/{name}/status").text or "").strip() == "connected" for name in names)
