"""How the IOMMU treats a device: it translates, lets addresses pass, or is not there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pytest_gpucoexist.probes.reader import excerpt

if TYPE_CHECKING:
    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.model.machine import Gpu

__all__ = ["GROUPS", "Translation", "translation"]

GROUPS = "/sys/kernel/iommu_groups"

# iommu_group_show_type, drivers/iommu/iommu.c
_TRANSLATED = {"DMA", "DMA-FQ"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """`kind` with the kernel's own word (`type`) and where it was read; `reason` where it could not be."""

    kind: Literal["translated", "identity", "off", "unmanaged", "unknown"]
    type: str | None = None
    source: str = GROUPS
    reason: str = ""

    @property
    def words(self) -> str:
        """The mode for people."""
        return {
            "translated": f"translates ({self.type})",
            "identity": "lets addresses pass (identity)",
            "off": "is off or not there",
            "unmanaged": f"is handed to a program ({self.type})",
            "unknown": f"is not known ({self.reason})",
        }[self.kind]


def translation(subject: Subject, gpu: Gpu) -> Translation:
    """Return the mode for a GPU's group."""
    if gpu.iommu_group is None:
        if subject.host.exists(GROUPS):
            return Translation(kind="off")
        return Translation(kind="unknown", reason=f"no {GROUPS} here")
    text = subject.read(f"{GROUPS}/{gpu.iommu_group}/type")
    if text.text is None:
        return Translation(kind="unknown", source=text.path, reason=text.detail or text.status)
    word = text.text.strip()
    if word in _TRANSLATED:
        return Translation(kind="translated", type=word, source=text.path)
    if word == "identity":
        return Translation(kind="identity", type=word, source=text.path)
    if word in {"unmanaged", "blocked"}:
        return Translation(kind="unmanaged", type=word, source=text.path)
    return Translation(kind="unknown", source=text.path, reason=f"not a type of domain: {excerpt(word)}")
