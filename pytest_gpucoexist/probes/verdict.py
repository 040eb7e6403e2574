"""What the rules of one vendor's runtime say about one GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpucoexist.model.readings import Fact, Status

if TYPE_CHECKING:
    from pytest_gpucoexist.host.base import Host
    from pytest_gpucoexist.model.machine import Gpu

__all__ = ["Verdict", "lost_reason", "no", "unbound_reason", "yes"]

# What holds a GPU instead of the driver that a runtime needs, and what a person does then.
_ADVICE = {
    "nouveau": "blacklist nouveau and reboot",
    "nova_core": "blacklist nova_core and reboot",
    "vfio-pci": "it is passed to a virtual machine",
    "pci-stub": "it is reserved for a virtual machine",
    "radeon": "radeon has no compute; only newer chips work with amdgpu",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Usable or not, the fact that says why, and whether the GPU was withheld from this container."""

    usable: bool
    fact: Fact
    withheld: bool = False


def yes(source: str, detail: str) -> Verdict:
    """Return that the GPU is usable, and what shows it."""
    return Verdict(usable=True, fact=Fact(source=source, detail=detail))


def no(source: str, status: Status, reason: str, *, withheld: bool = False) -> Verdict:
    """Return that the GPU is not usable, with a reason that a person can act on."""
    return Verdict(usable=False, fact=Fact(source=source, status=status, detail=reason), withheld=withheld)


def unbound_reason(driver: str | None, needed: str) -> str:
    """Say which driver holds the GPU in place of the one that is needed."""
    if driver is None:
        return f"no driver bound (the {needed} module is not loaded, or failed to take it)"
    advice = _ADVICE.get(driver)
    return f"bound to {driver}, not {needed}" + (f": {advice}" if advice else "")


def lost_reason(host: Host, gpu: Gpu) -> str | None:
    """Return why a GPU that sysfs still lists is gone from the bus; None when it answers.

    A function that fell off the bus keeps its folder, also its ids: reads of the configuration space give all ones, so
    that `current_link_width` says 63 and `current_link_speed` `Unknown`. A sleeping GPU is not asked.
    """
    if gpu.pci_address is None or gpu.runtime_status in {"suspended", "suspending"}:
        return None
    folder = f"/sys/bus/pci/devices/{gpu.pci_address}"
    try:
        if host.read_bytes(f"{folder}/config", 4) == b"\xff\xff\xff\xff":
            return "fell off the bus: its configuration space reads all ones; reseat, power-cycle or reboot"
    except OSError:
        pass
    try:
        width = host.read_text(f"{folder}/current_link_width").strip()
        speed = host.read_text(f"{folder}/current_link_speed").strip()
    except OSError:
        return None
    if width in {"63", "255"} and speed.startswith("Unknown"):
        return f"fell off the bus: its link reads {speed} x{width}; reseat, power-cycle or reboot"
    return None
