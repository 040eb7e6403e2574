"""The IOMMU's mode as the command line asks for it and as it is, and who else is in a GPU's group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.findings import Finding, passed, skipped, unknown, warned
from pytest_gpucoexist.gates.mapping.translation import GROUPS, translation
from pytest_gpucoexist.gates.pcie.folders import is_removable, label
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.verdicts import Evidence
from pytest_gpucoexist.probes.pci import BUS
from pytest_gpucoexist.probes.reader import link_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.model.machine import Gpu

__all__ = ["group", "mode"]

_PASS_THROUGH = {"iommu=pt", "iommu.passthrough=1"}
_OFF = {"iommu=off", "amd_iommu=off", "intel_iommu=off"}
_FOR_GUESTS = {"vfio-pci", "pci-stub", "xen-pciback"}


@gate(
    "mem.iommu.mode",
    group="memory-mapping",
    title="The IOMMU does what the command line asks",
    reads="/sys/kernel/iommu_groups/<group>/type of each GPU; iommu=, amd_iommu= and intel_iommu= in /proc/cmdline",
    criterion="with iommu=pt the GPUs' groups are identity, with the IOMMU off they have none; else it is only told",
    why="Peer copies and their speed depend on it, and it is often not what the boot loader's file says.",
    action="Look at the kernel's log for DMAR or AMD-Vi; write the boot loader's configuration again and reboot.",
    source="leptonai/gpud; scitix/sichek; iommu_group_show_type, drivers/iommu/iommu.c",
    level="quick",
    severity="info",
)
def mode(subject: Subject) -> Iterator[Finding]:
    words = (subject.read("/proc/cmdline").text or "").split()
    asked_pass = [word for word in words if word in _PASS_THROUGH]
    asked_off = [word for word in words if word in _OFF]
    for gpu in subject.functions():
        found = translation(subject, gpu)
        evidence = [Evidence(source=found.source, found=found.type or found.words)]
        evidence += [Evidence(source="/proc/cmdline", found=word) for word in (*asked_pass, *asked_off)]
        if found.kind == "unknown":
            yield unknown(f"the mode of the IOMMU cannot be read: {found.reason}", *evidence, on=[gpu])
        elif found.kind == "translated" and asked_pass and not is_removable(subject, gpu):
            yield warned(f"{asked_pass[0]} was asked for, and the IOMMU {found.words}", *evidence, on=[gpu])
        elif found.kind != "off" and asked_off:
            yield warned(f"{asked_off[0]} was asked for, and the IOMMU {found.words}", *evidence, on=[gpu])
        else:
            yield passed(f"the IOMMU {found.words}", *evidence, on=[gpu])
    if not subject.functions():
        yield skipped("no GPU here has a PCI function")


@gate(
    "mem.iommu.group",
    group="memory-mapping",
    title="No virtual machine has a part of the GPU's group",
    reads="/sys/kernel/iommu_groups/<group>/devices and the driver of each of them",
    criterion="while the host uses a GPU, no function of its IOMMU group is bound to vfio-pci",
    why="Functions of one group are not isolated from each other: a virtual machine that owns one can reach the"
    " others, and the kernel refuses or resets them together.",
    action="Give the whole group to the virtual machine, or bind the functions to their drivers again.",
    source="wezterm/wezterm#3561; Documentation/driver-api/vfio.rst",
    level="quick",
)
def group(subject: Subject) -> Iterator[Finding]:
    for gpu in subject.functions():
        yield _judge_group(subject, gpu)
    if not subject.functions():
        yield skipped("no GPU here has a PCI function")


def _judge_group(subject: Subject, gpu: Gpu) -> Finding:
    if gpu.driver in _FOR_GUESTS:
        return skipped(f"itself bound to {gpu.driver}: not the host's", on=[gpu])
    if gpu.iommu_group is None:
        found = translation(subject, gpu)
        if found.kind == "off":
            return skipped("in no IOMMU group", on=[gpu])
        return unknown("its IOMMU group cannot be read", on=[gpu])
    path = f"{GROUPS}/{gpu.iommu_group}/devices"
    members = subject.names(path)
    if gpu.pci_address not in members:
        return unknown(f"{path} cannot be read", on=[gpu])
    held = {
        member: driver
        for member in members
        if member != gpu.pci_address
        and (driver := link_name(subject.host, "driver", f"{BUS}/{member}/driver").value) in _FOR_GUESTS
    }
    if not held:
        evidence = Evidence(source=path, found=f"{len(members)} functions, none held for a virtual machine")
        return passed("its IOMMU group belongs to the host", evidence, on=[gpu])
    names = ", ".join(f"{member} ({driver})" for member, driver in held.items())
    evidence = Evidence(source=path, found=names, expected="no function bound to vfio-pci")
    return warned(f"{label(gpu)} shares IOMMU group {gpu.iommu_group} with {names}", evidence, on=[gpu])
