"""amdgpu in the kernel's log: hangs, resets, faults, what kept it from starting a GPU."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.findings import unknown
from pytest_gpucoexist.gates.kernel_log.evidence import log_evidence
from pytest_gpucoexist.gates.kernel_log.lines import events, judge_lines
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.verdicts import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.findings import Finding
    from pytest_gpucoexist.gates.kernel_log.lines import Event
    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.model.machine import Gpu

__all__ = ["hang", "init", "kfd", "page_fault", "ras", "reset", "smu", "thermal"]

_SKIPPED = re.compile(r"skipped device 1002:([0-9a-f]{4})")
_READS = "the kernel's log of this boot: /dev/kmsg, else (level standard) journald"


@gate(
    "klog.amd.hang",
    group="kernel-log",
    title="No hang of an AMD GPU",
    reads=_READS,
    criterion="no ring timeout, no scheduler that does not answer and no queue that cannot be stopped in this session;"
    " earlier ones are a warning",
    why="a hung engine takes every program on the GPU with it when it is reset",
    action="Update kernel and linux-firmware; reboot if the reset failed.",
    source="pop-os/cosmic-comp#2626; ROCm/legacy-rocm-build#6273, #1584",
    vendors=("amd",),
    severity="fail",
)
def hang(subject: Subject) -> Iterator[Finding]:
    """Judge hangs; one that a reset ended, or that only cost a soft recovery, is a warning."""

    def grade(event: Event) -> Event:
        if "but soft recovered" in event.line.line:
            return event.weakened()
        return event.put_behind(subject, "reset", "loaded", "registered")

    yield from judge_lines(
        subject,
        ["amd.ring_timeout", "amd.mes", "amd.qcm_fence", "amd.ring_test"],
        "amd",
        what="hang of an AMD GPU",
        grade=grade,
        session_only=True,
    )


@gate(
    "klog.amd.reset",
    group="kernel-log",
    title="No failed reset of an AMD GPU",
    reads=_READS,
    criterion="no reset that failed (unless the driver came up again since), none begun in this session",
    why="after a failed reset the GPU stays wedged: every call to it blocks until the reboot. A reset that succeeded"
    " has still lost the memory and contexts of every program",
    action="Reboot; switch the machine off and on if that does not help.",
    source="amd/node-scraper dmesg_analyzer.py; ROCm/legacy-rocm-build#3766",
    vendors=("amd",),
    severity="fail",
    blocking=True,
)
def reset(subject: Subject) -> Iterator[Finding]:
    """Judge resets: a failed one takes the GPU out."""

    def grade(event: Event) -> Event:
        if event.line.rule == "amd.reset_failed":
            return event.put_behind(subject, "reset", "loaded", "registered", "found")
        return event.graded(event.grade, blocking=False).put_behind(subject, "reset", "loaded", "registered")

    yield from judge_lines(
        subject,
        ["amd.reset_begin", "amd.reset_ok", "amd.reset_failed", "amd.vram_lost", "amd.cs_parser"],
        "amd",
        what="reset of an AMD GPU",
        grade=grade,
    )


@gate(
    "klog.amd.page_fault",
    group="kernel-log",
    title="No page fault and no refused buffer on an AMD GPU",
    reads=_READS,
    criterion="no page fault in this session; earlier ones, and buffers that found no place in this session, are a"
    " warning",
    why="a kernel or a copy touched memory that is not mapped: a bug of the program, or a peer copy that the machine"
    " cannot do",
    action="Look at the named process; if it copied between GPUs, switch peer access off.",
    source="ROCm/legacy-rocm-build#1495, #1902",
    vendors=("amd",),
    severity="fail",
)
def page_fault(subject: Subject) -> Iterator[Finding]:
    """Judge page faults, their detail lines, and submissions whose buffers had no place."""

    def grade(event: Event) -> Event:
        return event.graded(None) if event.line.rule == "amd.cs_nomem" and not event.in_session else event

    rules = ["amd.page_fault", "amd.l2_fault", "amd.cs_nomem"]
    yield from judge_lines(subject, rules, "amd", what="page fault of an AMD GPU", grade=grade, session_only=True)


@gate(
    "klog.amd.init",
    group="kernel-log",
    title="amdgpu started the GPUs",
    reads=f"{_READS}; the bound driver of each GPU",
    criterion="no block of a GPU and no firmware that failed to start, unless the driver came up later",
    why="amdgpu does not attach, or attaches without compute",
    action="Update linux-firmware to the kernel's version; switch off and on; reseat the card.",
    source="amd/node-scraper dmesg_analyzer.py; ROCm/legacy-rocm-build#384",
    vendors=("amd",),
    severity="fail",
)
def init(subject: Subject) -> Iterator[Finding]:
    """Judge failed starts; firmware that is missing for a GPU that runs is optional, or has another name."""

    def grade(event: Event) -> Event:
        if event.line.rule == "fw.missing" and event.gpus and all(gpu.driver == "amdgpu" for gpu in event.gpus):
            return event.graded(None)
        return event.put_behind(subject, "loaded", "registered", "found")

    yield from judge_lines(
        subject,
        ["amd.ipblock_init", "amd.psp", "amd.init_fatal", "fw.missing"],
        "amd",
        what="failed start of an AMD GPU",
        grade=grade,
    )


@gate(
    "klog.amd.kfd",
    group="kernel-log",
    title="The kernel's compute driver took the AMD GPUs",
    reads=f"{_READS}; KFD's topology",
    criterion="no GPU that KFD skipped, where ROCm is wanted and the GPU has no KFD node; a processor's own beside"
    " a card does not count",
    why="ROCm does not see a GPU that KFD skipped: no PCIe atomics in its slot, or too old",
    action="Move the card to a slot that is wired to the processor; a GPU without support cannot run ROCm.",
    source="ROCm/legacy-rocm-build#1214, #910, #2232",
    vendors=("amd",),
    severity="fail",
)
def kfd(subject: Subject) -> Iterator[Finding]:
    """Judge what KFD skipped by what it has now: a display card beside a compute card is no problem."""
    wanted = subject.wanted("amd")
    some = any(gpu.kfd is not None for gpu in subject.gpus("amd"))

    def grade(event: Event) -> Event | None:
        skipped = _by_device_id(subject, event)
        if not skipped:
            return None  # another container's
        event = event.about(skipped)
        if wanted is None or all(gpu.kfd is not None or (some and gpu.kind == "integrated") for gpu in skipped):
            return event.graded(None)
        return event.graded("WARN" if some else "FAIL")

    yield from judge_lines(
        subject, ["amd.kfd_atomics", "amd.kfd_unsupported"], "amd", what="GPU that KFD skipped", grade=grade
    )


@gate(
    "klog.amd.ras",
    group="kernel-log",
    title="No hardware error of an AMD GPU",
    reads=_READS,
    criterion="no uncorrectable, deferred or poisoned data, no exhausted page budget; corrected errors are a warning",
    why="data in the GPU's memory was wrong; results from then on cannot be trusted",
    action="Reset the GPU and repeat the work; replace the board when bad pages reach their threshold.",
    source="amd/node-scraper dmesg_analyzer.py; ROCm/legacy-rocm-build#1886, #1541",
    vendors=("amd",),
    severity="fail",
)
def ras(subject: Subject) -> Iterator[Finding]:
    """Judge RAS lines; a history that the driver could not read leaves the question open."""

    def grade(event: Event) -> Event:
        if event.line.rule == "amd.bad_pages":
            return event  # a reset gives no page back
        return event.put_behind(subject, "reset", "loaded", "registered")

    unreadable = events(subject, ["amd.ras_eeprom"], "amd")
    rules = ["amd.ras_ue", "amd.ras_de", "amd.poison", "amd.aca", "amd.bad_pages", "amd.ras_ce"]
    evidence = log_evidence(subject)
    for finding in judge_lines(subject, rules, "amd", what="hardware error of an AMD GPU", grade=grade):
        if finding.status == "PASS" and unreadable:
            line = unreadable[0].line
            yield unknown(
                "no hardware error in the kernel's log, but the driver could not read the card's history of bad pages",
                Evidence(source=evidence.where(line), found=evidence.message(line), expected="a readable history"),
                on=[gpu for gpu in subject.gpus("amd") if gpu.key in finding.devices],
            )
        else:
            yield finding


@gate(
    "klog.amd.thermal",
    group="kernel-log",
    title="No AMD GPU too hot",
    reads=_READS,
    criterion="no critical temperature and no throttling in the kernel's log",
    why="a GPU that is too hot slows down, and is switched off in the end",
    action="Look after the cooling.",
    source="ValveSoftware/Proton#8028; amd/node-scraper",
    vendors=("amd",),
)
def thermal(subject: Subject) -> Iterator[Finding]:
    """Judge temperatures: critical in this session fails."""

    def grade(event: Event) -> Event:
        return event if event.in_session else event.weakened()

    yield from judge_lines(
        subject,
        ["amd.ctf", "amd.overtemp", "amd.throttled"],
        "amd",
        what="overheated AMD GPU",
        grade=grade,
        session_only=True,
    )


@gate(
    "klog.amd.smu",
    group="kernel-log",
    title="The power firmware of the AMD GPUs answers",
    reads=_READS,
    criterion="no complaint about the SMU (that it counts its interface differently is harmless)",
    why="sensors, clocks and fans cannot be trusted while it does not answer",
    action="Sensor values are unreliable: reboot.",
    source="ROCm/legacy-rocm-build#2196; ROCm/TheRock#2591",
    vendors=("amd",),
)
def smu(subject: Subject) -> Iterator[Finding]:
    """Judge complaints about the SMU."""

    def grade(event: Event) -> Event:
        return event.put_behind(subject, "reset", "loaded", "registered")

    yield from judge_lines(
        subject, ["amd.smu"], "amd", what="complaint about the power firmware of an AMD GPU", grade=grade
    )


def _by_device_id(subject: Subject, event: Event) -> tuple[Gpu, ...]:
    """Return the GPUs that KFD's line means: `skipped device 1002:7300`, or the one that the line is attributed to."""
    match = _SKIPPED.search(log_evidence(subject).message(event.line))
    if match is None:
        return event.gpus
    return tuple(gpu for gpu in subject.gpus("amd") if (gpu.device_id or "").removeprefix("0x") == match[1])
