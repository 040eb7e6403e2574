"""Races while the drivers came up: who registered when, who got the framebuffer, which card has which number."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.baseline import baseline_card_order, card_order as cards_now
from pytest_gpucoexist.gates.findings import passed, skipped, unknown, warned
from pytest_gpucoexist.gates.kernel_log.attribution import owners_of, slot_of
from pytest_gpucoexist.gates.kernel_log.evidence import log_evidence, shorten
from pytest_gpucoexist.gates.kernel_log.lines import unread
from pytest_gpucoexist.gates.kernel_log.marks import marks_of
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.verdicts import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pytest_gpucoexist.gates.findings import Finding
    from pytest_gpucoexist.gates.kernel_log.marks import Registration
    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.kernellog.records import Record

__all__ = ["card_order", "handover", "late_registration"]

_LATE_S = 10.0
_READS = "the kernel's log of this boot: lines with which DRM drivers start and register"
_FIRMWARE_FB = frozenset({"simpledrm", "efidrm", "vesadrm", "ofdrm"})
_DRIVERS = ("amdgpu ", "radeon ", "i915 ", "xe ", "nouveau ", "[nvidia-drm]")
_STARTED = re.compile(r"^(?:amdgpu|radeon|i915|xe|nouveau) ([0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})\.[0-7]: ")
# NVIDIA/open-gpu-kernel-modules, nvidia-drm: the id is the domain, bus and device number.
_NVIDIA_STARTED = re.compile(r"\[nvidia-drm\] \[GPU ID 0x([0-9a-fA-F]{8})\] Loading driver")
_HANDED = re.compile(r"\bfb\d+: switching to |\bfb\d+: \S+ frame buffer device|fbcon: \S+ \(fb\d+\) is primary device")
# i915_driver.c; drivers/video/fbdev/core and fs/sysfs/dir.c for the second driver that wants the same framebuffer;
# drivers/pci/pci.c when a firmware framebuffer still holds the GPU's memory.
_FAILED = re.compile(
    r"(?i:failed to (?:remove|kick out) conflicting (?:framebuffer|fb|VGA))"
    r"|cannot create duplicate filename '/class/graphics/fb\d+'"
    r"|\[nvidia-drm\] \[GPU ID 0x[0-9a-fA-F]{8}\] Failed to register device"
    r"|(?P<bdf>[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]): BAR \d+(?: \[mem [^\]]*\])?: can't reserve"
)
_HINTS = ("/class/graphics/fb", "Failed to register device", "can't reserve", " conflicting ")


@gate(
    "klog.race.late_registration",
    group="kernel-log",
    title="GPUs registered soon after their driver started",
    reads=_READS,
    criterion="no more than `late_s` seconds between the first line of a GPU's driver and its DRM device",
    why="what starts at boot and looks for GPUs (display managers, container engines, test runners) does not see one"
    " that comes late, and works without it until it is started again",
    action="Load the driver from the initramfs, or let what needs the GPU wait for its device (systemd:"
    " After= and Wants= of the card's .device unit).",
    source="pop-os/pop#4047 (22 s with the open modules and GSP firmware); sddm/sddm#1917",
    limits={"late_s": _LATE_S},
)
def late_registration(subject: Subject) -> Iterator[Finding]:
    """Compare the first line of each GPU's driver with its registration; the order of all is in the evidence."""
    missing = unread(subject)
    if missing is not None:
        yield missing
        return
    evidence = log_evidence(subject)
    registered = _gpus_registered(subject)
    if not registered:
        yield _nothing_registered(subject)
        return
    late_s = subject.limit("klog.race.late_registration", "late_s", _LATE_S)
    first: dict[str, Registration] = {}
    for registration in registered:
        first.setdefault(slot_of(registration.name), registration)
    started = _started(evidence.containing(*_DRIVERS), first)
    order = Evidence(source=evidence.log.source, found="; ".join(_at(each) for each in registered))
    gpus = owners_of(subject).slots
    known = 0
    for slot, registration in first.items():
        took = _seconds(started.get(slot), registration.record)
        if slot not in gpus or took is None:
            continue
        known += 1
        if took > late_s:
            shown = Evidence(
                source=evidence.where(registration.record),
                found=shorten(registration.record.message),
                expected=f"within {late_s:g} s of the driver's first line",
            )
            yield warned(f"its driver needed {took:.1f} s to register it", shown, order, on=gpus[slot])
        else:
            yield passed(f"registered within {late_s:g} s of its driver's start", order, on=gpus[slot])
    if not known:
        yield unknown("the lines of this log carry no times, or not those of the drivers' start", order)


@gate(
    "klog.race.handover",
    group="kernel-log",
    title="The firmware's framebuffer went over to the GPU's driver",
    reads=f"{_READS}; lines about framebuffers; the devices in /sys/class/drm",
    criterion="no failed hand-over, and no firmware framebuffer beside a GPU's own DRM device",
    why="a firmware framebuffer that stays keeps card0 and the memory below it: programs that take the first card get"
    " one that can do nothing, and a driver can fail to map its own GPU",
    action="Let the driver take it: `nvidia-drm.modeset=1 nvidia-drm.fbdev=1`, or boot with"
    " `initcall_blacklist=simpledrm_platform_driver_init`.",
    source="pop-os/cosmic-comp#641; canonical/ubuntu-drivers-common#101, #104; CachyOS/linux-cachyos#552",
)
def handover(subject: Subject) -> Iterator[Finding]:
    """Look for lines of a failed hand-over, and for a firmware framebuffer that has a card of its own now."""
    missing = unread(subject)
    if missing is not None:
        yield missing
        return
    evidence = log_evidence(subject)
    problems = list(_failed_handovers(subject))
    for record in problems:
        shown = Evidence(source=evidence.where(record), found=shorten(record.message), expected="no such line")
        yield warned("the firmware's framebuffer did not go over to a GPU's driver", shown)
    registrations = marks_of(subject).registrations
    mine = [gpu for gpu in subject.gpus() if gpu.drm is not None and gpu.drm.card]
    kept = [each for each in registrations if each.driver in _FIRMWARE_FB and _still_there(subject, each)]
    for each in kept:
        if mine:
            shown = Evidence(source=f"/sys/class/drm/card{each.minor}", found=each.name, expected="a GPU")
            line = Evidence(source=evidence.where(each.record), found=shorten(each.record.message))
            yield warned(f"{each.driver}, the firmware's framebuffer, keeps card{each.minor}", shown, line, on=mine)
    if problems or (kept and mine):
        return
    handed = list(evidence.containing("frame buffer device", "switching to", "primary device"))
    handed = [record for record in handed if _HANDED.search(record.message) is not None]
    found = "; ".join(shorten(record.message) for record in handed[-3:]) or "no framebuffer was handed over"
    if evidence.log.complete:
        yield passed("no hand-over of a framebuffer failed", Evidence(source=evidence.log.source, found=found))
    else:
        yield unknown(
            "no failed hand-over in a log that lacks the beginning of this boot",
            Evidence(source=evidence.log.source, found=found),
        )


@gate(
    "klog.race.card_order",
    group="kernel-log",
    title="Cards have the numbers with which they registered",
    reads=f"{_READS}; the card that each GPU has now; the baseline, where one was saved",
    criterion="the number of each GPU's card is that of its registration, and cards come in the baseline's order",
    why="the numbers follow the order in which drivers come up; a program that was configured with cardN or renderDN"
    " opens another GPU after the order changed",
    action="Name devices by /dev/dri/by-path or by PCI address, never by number.",
    source="pop-os/pop#4047; CachyOS/linux-cachyos#552",
)
def card_order(subject: Subject) -> Iterator[Finding]:
    """Compare registered numbers with those of now."""
    missing = unread(subject)
    if missing is not None:
        yield missing
        return
    evidence = log_evidence(subject)
    registered = _gpus_registered(subject)
    if not registered:
        yield _nothing_registered(subject)
        return
    last = {slot_of(each.name): each for each in registered}
    owners = owners_of(subject).slots
    order = ", ".join(f"card{each.minor} is {each.name} ({each.driver})" for each in last.values())
    changed = _order_of_baseline(subject)
    if changed is not None:
        shown = Evidence(source=evidence.log.source, found=order, expected=changed)
        yield warned("the drivers came up in another order than when the baseline was saved", shown)
    compared = changed is not None
    for slot, each in last.items():
        for gpu in owners.get(slot, ())[:1]:
            card = gpu.drm.card if gpu.drm is not None else None
            if card is None:
                continue
            compared = True
            if card != f"card{each.minor}":
                shown = Evidence(
                    source=evidence.where(each.record), found=shorten(each.record.message), expected=f"minor {card[4:]}"
                )
                yield warned(f"it registered as card{each.minor} and is {card} now", shown, on=[gpu])
            else:
                shown = Evidence(source=evidence.log.source, found=order)
                yield passed("its card has the number with which it registered", shown, on=[gpu])
    if not compared:
        yield unknown("nothing tells which card a GPU has now", Evidence(source=evidence.log.source, found=order))


def _order_of_baseline(subject: Subject) -> str | None:
    """Return the baseline's order of the cards that are still here, when it is not today's."""
    now, before = cards_now(subject.machine), baseline_card_order(subject) or ()
    then = [key for key in before if key in now]
    return None if then == [key for key in now if key in before] else ", ".join(then)


def _gpus_registered(subject: Subject) -> list[Registration]:
    """Return the registrations of PCI devices, in the order of the log."""
    return [each for each in marks_of(subject).registrations if each.name.count(":") == 2]


def _nothing_registered(subject: Subject) -> Finding:
    log = log_evidence(subject).log
    if log.complete:
        return skipped("no driver registered a DRM device in this boot")
    return unknown(
        "no registration in a log that lacks the beginning of this boot",
        Evidence(source=log.source, found="no line of a registration"),
    )


def _started(records: Iterable[Record], first: Mapping[str, Registration]) -> dict[str, Record]:
    """Return the line with which the driver of each GPU started it, by slot; nothing after its first registration.

    NVIDIA's driver says so for each GPU whenever it is loaded; of others the first line that names the GPU is taken.
    """
    found: dict[str, Record] = {}
    for record in records:
        match = _STARTED.match(record.message)
        if match is not None:
            slot = match[1].lower()
            found.setdefault(slot, record)
        elif "[nvidia-drm]" in record.message and (match := _NVIDIA_STARTED.search(record.message)) is not None:
            number = int(match[1], 16)
            slot = f"{number >> 16:04x}:{number >> 8 & 255:02x}:{number & 31:02x}"
            if slot in first and record.number < first[slot].record.number:
                found[slot] = record
    return found


def _seconds(first: Record | None, second: Record) -> float | None:
    if first is None:
        return None
    if first.time_s is not None and second.time_s is not None:
        return second.time_s - first.time_s
    if first.wall_s is not None and second.wall_s is not None:
        return second.wall_s - first.wall_s
    return None


def _at(registration: Registration) -> str:
    stamp = registration.record.time_s
    when = f" at {stamp:.3f} s" if stamp is not None else ""
    return f"card{registration.minor} {registration.name} ({registration.driver}){when}"


def _failed_handovers(subject: Subject) -> Iterator[Record]:
    owners = owners_of(subject)
    for record in log_evidence(subject).containing(*_HINTS):
        match = _FAILED.search(record.message)
        if match is not None and (match["bdf"] is None or owners.at(match["bdf"].lower())):
            yield record


def _still_there(subject: Subject, registration: Registration) -> bool:
    """Whether a firmware framebuffer's card is still its own."""
    try:
        target = subject.host.read_link(f"/sys/class/drm/card{registration.minor}/device")
    except OSError:
        return False
    return target.rpartition("/")[2] == registration.name
