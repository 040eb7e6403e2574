"""What the vendors' libraries say about health: asked once for all gates, all at the same time.

A library is called only where its driver is loaded, and never again after it hung or crashed: a driver that blocks in
the kernel costs its deadline once in a session. The replies' shapes are those of `helpers/`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.host.base import HelperReply
from pytest_gpucoexist.model.identity import normal_pci_address
from pytest_gpucoexist.probes.cells import devices_of, fault_of, value_of
from pytest_gpucoexist.probes.platform import WSL_DRIVER
from pytest_gpucoexist.probes.vendor import HELPERS, NO_ANSWER, why_not_called

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.model.machine import Gpu, Machine
    from pytest_gpucoexist.model.readings import Status

__all__ = [
    "LIBRARIES",
    "LIBRARY_NAMES",
    "address_of",
    "device_cells",
    "devices",
    "faults",
    "library_reply",
    "vendor_reply",
]

LIBRARIES = {"nvml": "nvidia", "cuda": "nvidia", "amdsmi": "amd", "hip": "amd", "levelzero": "intel"}
"""The helpers that gates ask, and whose driver each of them talks to."""

_WITHOUT_A_BUS = {WSL_DRIVER, "nvgpu", "gk20a"}
"""Drivers of a GPU that only a library can name: where there is one, it is that one."""

LIBRARY_NAMES = {"nvidia": "NVML", "amd": "AMD SMI", "intel": "Level Zero"}
"""What people call the library that `vendor_reply` asks."""


def vendor_reply(subject: Subject, vendor: str) -> HelperReply:
    """Return what the vendor's management library says, health included: NVML, AMD SMI, or Level Zero for Intel.

    Never raises. The first gate that asks waits for all libraries; the others get what it got.
    """
    return library_reply(subject, HELPERS.get(vendor, "levelzero"))


def library_reply(subject: Subject, helper: str) -> HelperReply:
    """Return what one helper of `LIBRARIES` says. Its status is `unsupported` where its driver is not loaded."""
    replies = subject.shared(("vendors", "replies"), lambda: _ask(subject))
    return replies.get(helper) or HelperReply(status="broken", detail="the helper gave no reply")


def devices(reply: HelperReply) -> list[Mapping[str, Any]]:
    """Return the devices that a reply counts, those that could not be asked too; none when it is no reply."""
    try:
        return devices_of(reply.data) if reply.status == "ok" else []
    except ValueError:
        return []


def device_cells(reply: HelperReply, gpu: Gpu) -> Mapping[str, Any] | None:
    """Return a GPU's cells by its PCI address, else its UUID; for a MIG instance or a partition, those of its GPU.

    None: the library does not list it, or lists it and could not ask it (`faults`).
    """
    found = devices(reply)
    if gpu.pci_address is not None:
        names = {gpu.pci_address}
        if gpu.partition is not None and gpu.partition.isdigit():
            # AMD SMI numbers the partitions of a GPU as functions: 0000:05:00.3 is partition 3 of 0000:05:00.0.
            own = f"{gpu.pci_address[:-1]}{gpu.partition}"
            names = {own} if any(address_of(device) == own for device in found) else names
        return next((device for device in found if address_of(device) in names), None)
    if gpu.driver in _WITHOUT_A_BUS and len(found) == 1:
        return found[0]
    for device in found:
        instances = value_of(device, "mig_devices")
        parts = instances if isinstance(instances, list) else []
        if gpu.uuid is not None and any(value_of(each, "uuid") == gpu.uuid for each in (device, *parts)):
            return device
    return None


def address_of(device: Mapping[str, Any]) -> str | None:
    """Return a device's PCI address as sysfs writes it; None for one that could not be asked."""
    pci = value_of(device, "pci")
    text = pci.get("address") if isinstance(pci, dict) else value_of(device, "bdf")
    return normal_pci_address(text) if isinstance(text, str) else None


def faults(reply: HelperReply) -> list[tuple[Status, str]]:
    """Return why devices that the library counts could not be asked."""
    return [fault for device in devices(reply) if (fault := fault_of(device)) is not None]


def _ask(subject: Subject) -> dict[str, HelperReply]:
    replies: dict[str, HelperReply] = {}
    for helper, vendor in LIBRARIES.items():
        why = why_not_called(subject.host, vendor)
        if why is not None:
            replies[helper] = HelperReply(status="unsupported", detail=why)
            continue
        gone = _already_gone(subject.machine, vendor)
        if gone is not None:
            replies[helper] = gone
    wanted = [helper for helper in LIBRARIES if helper not in replies]
    if wanted:
        asked = subject.host.ask_all(wanted, {"health": True}, deadline_s=subject.deadline_s)
        replies |= {helper: _understood(helper, reply) for helper, reply in asked.items()}
    return replies


def _understood(helper: str, reply: HelperReply) -> HelperReply:
    """Return a reply that its readers need not doubt: one that has no list of devices is broken."""
    if reply.status != "ok":
        return reply
    good = isinstance(reply.data, dict)
    if good and helper in HELPERS.values():
        try:
            devices_of(reply.data)
        except ValueError:
            good = False
    if good:
        return reply
    detail = f"the helper's reply was not understood: {reply.data!r:.80}"
    return HelperReply(status="broken", data={"cause": "nonsense"}, detail=detail, duration_s=reply.duration_s)


def _already_gone(machine: Machine, vendor: str) -> HelperReply | None:
    """Return what came of asking the vendor's library at discovery, when that was no answer at all.

    Its other libraries would wait for the same driver, so they are not asked either.
    """
    helper = HELPERS.get(vendor)
    for conflict in machine.conflicts:
        if conflict.kind == NO_ANSWER and conflict.subject == helper:
            detail = f"{helper} was asked when the machine was discovered: {conflict.claims.get('detail')}"
            return HelperReply(status="broken", detail=detail)
    return None
