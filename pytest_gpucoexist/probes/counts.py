"""The bus, the kernel's compute topology and a vendor's library may not know the same GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.model.machine import Conflict, Gpu

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pytest_gpucoexist.model.readings import Observation

__all__ = ["counts_that_differ", "unknown_to_pci"]

_LIBRARIES = (("nvml", "NVML", "nvidia", "nvidia"), ("amdsmi", "AMD SMI", "amd", "amdgpu"))


def counts_that_differ(told: Sequence[Observation], gpus: Sequence[Gpu]) -> list[Conflict]:
    """Compare what each library that answered counts with the PCI functions that its kernel driver holds.

    In a container a library may count fewer by right: it counts what was granted. A device that the library counts and
    cannot name is an observation without address and UUID, and counts.
    """
    conflicts = []
    for probe, name, vendor, driver in _LIBRARIES:
        counted = {
            item.pci_address or item.uuid or f"unnamed {number}"
            for number, item in enumerate(told)
            if item.probe == probe and item.partition is None
        }
        if not counted:
            continue
        # AMD SMI counts each partition, NVML no MIG instance.
        held = {
            gpu.key if vendor == "amd" else gpu.pci_address
            for gpu in gpus
            if gpu.vendor == vendor and gpu.driver == driver and gpu.pci_address
        }
        if held and len(counted) != len(held):
            message = f"{name} counts {len(counted)}, PCI {len(held)} that {driver} holds"
            claims = {probe: len(counted), "pci": len(held)}
            conflicts.append(Conflict(subject=vendor, kind="count", message=message, claims=claims))
    return conflicts


def unknown_to_pci(kfd: Sequence[Observation], known: Collection[str]) -> list[Conflict]:
    """Name the functions that KFD counts and that the PCI bus, which is there, does not show."""
    missing = dict.fromkeys(item.pci_address for item in kfd if item.pci_address and item.pci_address not in known)
    return [
        Conflict(
            subject=address,
            kind="device",
            message=f"KFD has a GPU at {address}, where PCI shows none",
            claims={"kfd": True, "pci": False},
        )
        for address in missing
    ]
