"""Where the kernel keeps the files of a GPU's PCI function, and whether they may be read now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.probes.pci import BUS

if TYPE_CHECKING:
    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.model.machine import Gpu

__all__ = ["ASLEEP", "asleep", "asleep_at", "folder", "in_guest", "is_removable", "label"]

ASLEEP = "asleep: not read, because reading would wake it"

_SLEEPING = {"suspended", "suspending"}


def folder(subject: Subject, gpu: Gpu) -> str:
    """Return the folder of a GPU's function: under the bus, or under DRM in a tree that has nothing else."""
    path = f"{BUS}/{gpu.pci_address}"
    if gpu.drm is not None and gpu.drm.card is not None and not subject.host.exists(path):
        under_drm = f"/sys/class/drm/{gpu.drm.card}/device"
        if subject.host.exists(under_drm):
            return under_drm
    return path


def asleep_at(subject: Subject, path: str) -> bool:
    """Whether reading the configuration space of the function in this folder would wake it.

    The kernel resumes a suspended function before it reads (`pci_config_pm_runtime_get`, drivers/pci/pci-sysfs.c).
    """
    return (subject.read(f"{path}/power/runtime_status").text or "").strip() in _SLEEPING


def asleep(subject: Subject, gpu: Gpu) -> bool:
    """Whether a GPU sleeps now."""
    return asleep_at(subject, folder(subject, gpu))


def is_removable(subject: Subject, gpu: Gpu) -> bool:
    """Whether the GPU stands outside, behind Thunderbolt, USB4 or another port that the firmware calls external.

    `removable` (Linux 5.15) says so of everything below a port that ACPI marks as facing outwards.
    """
    paths = [folder(subject, gpu), *(f"{BUS}/{address}" for address in gpu.upstream or ())]
    return any((subject.read(f"{path}/removable").text or "").strip() == "removable" for path in paths)


def in_guest(subject: Subject) -> bool:
    """Whether this is a virtual machine: the ports above a GPU are then the hypervisor's, not the slot's."""
    text = subject.read("/proc/cpuinfo").text or ""
    flags = next((line for line in text.splitlines() if line.startswith("flags")), "")
    return "hypervisor" in flags.split()


def label(gpu: Gpu) -> str:
    """Name a GPU in a sentence: `nvidia0 (0000:43:00.0)`."""
    return f"{gpu.id} ({gpu.pci_address})"
