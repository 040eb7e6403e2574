"""What probes hand to each other about a PCI function: where it is and how it may be touched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpucoexist.model.readings import Observation, Reading

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["PciFunction"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PciFunction:
    """A GPU's function in sysfs.

    `path` is its folder (`/sys/bus/pci/devices/0000:41:00.0`; in a tree that only has DRM,
    `/sys/class/drm/card0/device`). `card` is set only where the tree does not tell the address; it then names the
    device within this tree.
    """

    path: str
    address: str | None = None
    card: str | None = None
    vendor_id: str | None = None
    device_id: str | None = None
    class_id: str | None = None
    driver: str | None = None
    runtime_status: str | None = None

    @property
    def asleep(self) -> bool:
        """Whether a read through the driver or of the configuration space would wake it."""
        return self.runtime_status in {"suspended", "suspending"}

    def observation(self, probe: str, readings: Iterable[Reading], *, creates: bool = False) -> Observation:
        """Say something about this function."""
        return Observation(
            probe=probe, pci_address=self.address, card=self.card, readings=tuple(readings), creates=creates
        )
