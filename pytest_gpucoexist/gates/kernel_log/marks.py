"""What puts an earlier line behind: a module loaded again, a driver that came up again, a reset that succeeded."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pytest_gpucoexist.gates.kernel_log.attribution import slot_of
from pytest_gpucoexist.gates.kernel_log.evidence import log_evidence

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.kernellog.classify import LogFinding
    from pytest_gpucoexist.kernellog.records import Record

__all__ = ["Mark", "Marks", "Registration", "marks_of"]

_BDF = r"(?P<bdf>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])"
_WORDS = (
    *("[drm] Initialized ", "loading NVIDIA UNIX", "amdgpu kernel modesetting enabled", "GPU reset("),
    *("] type 00", ": 154, "),
)
"""What the few lines contain that are worth a closer look."""

# drivers/gpu/drm/drm_drv.c, drm_dev_register: before Linux 6.14 a date of 8 digits follows the version.
_REGISTERED = re.compile(
    r"\[drm\] Initialized (?P<driver>\S+) \d+\.\d+\.\d+ (?:\d{8} )?for (?P<name>\S+) on minor (?P<minor>\d{1,4})"
)
_NVIDIA_LOADED = re.compile(r"NVRM: loading NVIDIA UNIX")
_AMD_LOADED = re.compile(r"\[drm\] amdgpu kernel modesetting enabled")
# amdgpu_device.c: "GPU reset succeeded, trying to resume" comes before the outcome, "GPU reset(1) succeeded!" is it.
_AMD_RESET_OK = re.compile(rf"amdgpu {_BDF}: .*GPU reset\(\d+\) succeeded")
_FOUND = re.compile(rf"pci {_BDF}: \[(?:10de|1002|8086):[0-9a-f]{{4}}\] type 00")
# NVIDIA/open-gpu-kernel-modules, Xid 154: "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)".
_RECOVERED = re.compile(r"NVRM: Xid \((?:PCI:)?(?P<bdf>[0-9a-fA-F:.]+)\): 154, .* to 0x0 \(None\)")


class Mark(NamedTuple):
    """A line that puts others behind: `scope` names the module, or the slot of the one device, that it is about."""

    kind: str
    scope: str
    record: Record


class Registration(NamedTuple):
    """A DRM device came to be: `name` is a PCI address or, for a firmware framebuffer, a platform device."""

    driver: str
    name: str
    minor: int
    record: Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """All of them, in the order of the log."""

    marks: tuple[Mark, ...]
    registrations: tuple[Registration, ...]

    def after(self, line: LogFinding, slot: str | None, *kinds: str) -> Mark | None:
        """Return the first mark of these kinds after a line that is about its slot, or about its vendor's module."""
        for mark in self.marks:
            scopes = {line.vendor} if slot is None else {line.vendor, slot}
            if mark.kind in kinds and mark.record.number > line.number and mark.scope in scopes:
                return mark
        return None


def marks_of(subject: Subject) -> Marks:
    """Return the marks of the log, found once for all gates."""
    return subject.shared(("kernel_log", "marks"), lambda: _marks(log_evidence(subject).containing(*_WORDS)))


def _marks(records: Iterable[Record]) -> Marks:
    marks: list[Mark] = []
    registrations: list[Registration] = []
    for record in records:
        match = _REGISTERED.search(record.message)
        if match is not None:
            registrations.append(Registration(match["driver"], match["name"].lower(), int(match["minor"]), record))
        marks.extend(_marks_in(record))
    return Marks(marks=tuple(marks), registrations=tuple(registrations))


def _marks_in(record: Record) -> Iterator[Mark]:
    text = record.message
    match = _REGISTERED.search(text)
    if match is not None:
        yield Mark("registered", slot_of(match["name"]), record)
    elif _NVIDIA_LOADED.search(text):
        yield Mark("loaded", "nvidia", record)
    elif _AMD_LOADED.search(text):
        yield Mark("loaded", "amd", record)
    elif (match := _AMD_RESET_OK.search(text)) is not None:
        yield Mark("reset", slot_of(match["bdf"]), record)
    elif (match := _FOUND.search(text)) is not None:
        yield Mark("found", slot_of(match["bdf"]), record)
    elif (match := _RECOVERED.search(text)) is not None:
        yield Mark("recovered", slot_of(match["bdf"]), record)
