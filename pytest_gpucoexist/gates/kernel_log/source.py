"""Whether the log is whole, what is new in it, and whether it speaks of GPUs that are not on the bus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.findings import passed, skipped, unknown, warned
from pytest_gpucoexist.gates.kernel_log.attribution import owners_of, slot_of
from pytest_gpucoexist.gates.kernel_log.evidence import log_evidence, shorten
from pytest_gpucoexist.gates.kernel_log.lines import events, unread
from pytest_gpucoexist.gates.kernel_log.marks import marks_of
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.verdicts import Evidence, Fix

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.findings import Finding
    from pytest_gpucoexist.gates.subject import Subject

__all__ = ["baseline", "map_bdf", "source_complete"]

_SHOWN = 5
_GPU_DRIVERS = {"nvidia-drm": "NVIDIA", "amdgpu": "AMD", "i915": "Intel", "xe": "Intel"}
_NAMES = {"nvidia": "NVIDIA", "amd": "AMD", "intel": "Intel"}


@gate(
    "klog.source_complete",
    group="kernel-log",
    title="The kernel's log of this boot is whole",
    reads="the first record's number in /dev/kmsg, and whether records were overwritten while they were read; else"
    " whether journald has the first line of this boot",
    criterion="the log begins with the boot, and nothing is missing",
    why="a line that was overwritten cannot be found: what the log does not show is then unknown, not absent",
    action="Give the kernel a larger buffer (`log_buf_len=16M`), or let journald keep the log.",
    source="leptonai/gpud PR#500; Documentation/ABI/testing/dev-kmsg",
    needs_gpu=False,
    vendors=(),
)
def source_complete(subject: Subject) -> Iterator[Finding]:
    """Say whether the log is whole."""
    missing = unread(subject)
    if missing is not None:
        yield missing
        return
    log = log_evidence(subject).log
    count = len(log_evidence(subject).records)
    found = f"{count} records" + (
        f", the first is number {log.first_sequence}" if log.first_sequence is not None else ""
    )
    shown = Evidence(source=log.source, found=found, expected="the first record of this boot, and all after it")
    fix = Fix(path="/etc/default/grub", lines=('GRUB_CMDLINE_LINUX_DEFAULT="… log_buf_len=16M"',))
    if log.lost:
        yield warned(f"{log.lost} records of the kernel's log were overwritten while it was read", shown, fix=[fix])
    elif log.complete:
        yield passed(f"the kernel's log is whole: {count} records since the boot", shown)
    elif log.complete is None:
        yield unknown("nothing tells whether the kernel's log begins with the boot", shown)
    else:
        lost = f"the first {log.first_sequence} records" if log.first_sequence else "the beginning of this boot"
        yield warned(f"the kernel's log lacks {lost}", shown, fix=[fix])


@gate(
    "klog.baseline",
    group="kernel-log",
    title="Nothing new and grave in the kernel's log since the session began",
    reads="the lines that were logged after the session began, by the boot's clock",
    criterion="no new line that a rule calls a failure",
    why="what is new belongs to what this session did, or to what happened to it",
    action="Look at the test that ran at that time; the gates for each kind of line say what to do.",
    source="rupalis-nv/NVSentinel syslog-health-monitor; Azure/azurehpc PR#648 (old lines kept a node drained)",
)
def baseline(subject: Subject) -> Iterator[Finding]:
    """Show the new lines of a session in one place; each is judged by its own gate."""
    if subject.since_s is None:
        yield skipped("outside of a session nothing in the log is new")
        return
    missing = unread(subject)
    if missing is not None:
        yield missing
        return
    evidence = log_evidence(subject)
    clocked = evidence.session_s is not None and any(record.time_s is not None for record in evidence.records)
    if not clocked and not any(record.wall_s is not None for record in evidence.records):
        yield unknown(
            "the lines of this log carry no time that can be compared with the session's",
            Evidence(source=evidence.log.source, found="no times"),
        )
        return
    families = ["nv.", "nouveau.", "amd.", "intel.", "pci.", "iommu.", "dma.", "fw.", "mod.", "sys."]
    new = [event for event in events(subject, families) if event.in_session and event.grade == "FAIL"]
    new = [event for event in new if event.gpus or event.line.pci_address is None]
    if new:
        kinds = list(dict.fromkeys(event.line.meaning for event in new))
        shown = [
            Evidence(
                source=evidence.where(event.line), found=shorten(evidence.message(event.line)), expected="no such line"
            )
            for event in new[:_SHOWN]
        ]
        gpus = {gpu.key: gpu for event in new for gpu in event.gpus}
        yield warned(
            f"{len(new)} grave lines since the session began: {'; '.join(kinds[:3])}", *shown, on=gpus.values()
        )
    elif evidence.covers_session or (evidence.log.complete and not evidence.log.lost):
        yield passed(
            "no grave line since the session began",
            Evidence(source=evidence.log.source, found="none", expected="none"),
        )
    else:
        yield unknown(
            "no grave line in what is left of this session's part of the log",
            Evidence(source=evidence.log.source, found="records of this session were overwritten"),
        )


@gate(
    "klog.map_bdf",
    group="kernel-log",
    title="Every GPU that the log speaks of is on the bus",
    reads="the PCI addresses in lines of GPU drivers; /sys/bus/pci/devices",
    criterion="each address is a device that is there now",
    why="a GPU that a driver had and the bus has no longer fell off, was unplugged, or was removed",
    action="Look for it with `lspci`; `echo 1 > /sys/bus/pci/rescan` finds it again if it still answers.",
    source="rupalis-nv/NVSentinel; xCuri0/ReBarUEFI#11",
)
def map_bdf(subject: Subject) -> Iterator[Finding]:
    """Compare the addresses that drivers logged with the bus."""
    missing = unread(subject)
    if missing is not None:
        yield missing
        return
    there = {slot_of(name) for name in subject.names("/sys/bus/pci/devices")}
    if not there:
        yield skipped("/sys/bus/pci/devices has no device here")
        return
    evidence, known = log_evidence(subject), owners_of(subject).known
    gone: dict[str, tuple[str, Evidence]] = {}
    count = 0
    for registration in marks_of(subject).registrations:
        if registration.driver in _GPU_DRIVERS and registration.name.count(":") == 2:
            count += 1
            slot = slot_of(registration.name)
            text = Evidence(source=evidence.where(registration.record), found=shorten(registration.record.message))
            if slot not in there | known:
                gone[slot] = (_GPU_DRIVERS[registration.driver], text)
    for line in evidence.findings:
        if line.vendor in _NAMES and line.pci_address is not None:
            count += 1
            slot = slot_of(line.pci_address)
            if slot not in there | known:
                found = Evidence(source=evidence.where(line), found=shorten(evidence.message(line)))
                gone[slot] = (_NAMES[line.vendor], found)
    for slot, (vendor, shown) in gone.items():
        yield warned(
            f"the kernel's log speaks of an {vendor} GPU at {slot}, and nothing is there on the bus now", shown
        )
    if not gone:
        yield passed(
            "every device that GPU drivers name in the kernel's log is on the bus",
            Evidence(
                source=evidence.log.source, found=f"{count} lines with an address", expected="a device on the bus"
            ),
        )
