"""The host in the kernel's log: crashes, stuck processors, memory errors; and error lines that nobody knows."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.findings import passed, unknown, warned
from pytest_gpucoexist.gates.kernel_log.attribution import owners_of
from pytest_gpucoexist.gates.kernel_log.evidence import log_evidence, shorten
from pytest_gpucoexist.gates.kernel_log.harmless import is_harmless
from pytest_gpucoexist.gates.kernel_log.lines import judge_lines, unread
from pytest_gpucoexist.gates.kernel_log.previous import bert_block
from pytest_gpucoexist.gates.kernel_log.traces import GPU_MODULES, module_of
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.verdicts import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.findings import Finding
    from pytest_gpucoexist.gates.kernel_log.evidence import LogEvidence
    from pytest_gpucoexist.gates.kernel_log.lines import Event
    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.kernellog.classify import LogFinding
    from pytest_gpucoexist.kernellog.records import Record

__all__ = ["host", "unknown_gpu_error"]

_READS = "the kernel's log of this boot: /dev/kmsg, else (level standard) journald"
_TRACE_LINES = 80
_ERROR = 3  # include/linux/kern_levels.h, KERN_ERR
_SHOWN = 5
_DRIVER = re.compile(
    r"^(?:NVRM|nvidia[\w-]*|amdgpu|kfd|i915|xe)\b|\[drm:\w+ \[(?:nvidia\w*|amdgpu|i915|xe)\]\]|\[nvidia-drm\]"
)
_DIGITS = re.compile(r"0x[0-9a-f]+|\d+")


@gate(
    "klog.host",
    group="kernel-log",
    title="The host's kernel and memory are sound",
    reads=_READS,
    criterion="no crash of the kernel, no stuck processor, no uncorrectable memory error; stuck programs, machine"
    " checks and programs killed for memory in this session are a warning",
    why="a kernel that crashed or memory that lied makes every result on this host doubtful",
    action="Do not trust results from this host: reboot, and look at the driver that the trace names.",
    source="leptonai/gpud os, cpu and memory components; kubernetes/node-problem-detector config/kernel-monitor.json",
    vendors=(),
    severity="fail",
    needs_gpu=False,
)
def host(subject: Subject) -> Iterator[Finding]:
    """Judge the host: a crash inside of a GPU's driver fails whenever it was, another one in this session."""
    evidence = log_evidence(subject)
    before = {record.number for record in bert_block(evidence)}

    def grade(event: Event) -> Event | None:
        rule = event.line.rule
        if event.line.number in before:
            return None  # klog.bert: it is about the previous boot
        event = replace(event, gpus=())
        if rule in {"sys.oops", "sys.soft_lockup", "sys.hung_task"}:
            module = module_of(_trace(evidence, event.line))
            if module is not None:
                event = event.noted(f"in {module}")
            ours = module is not None and re.fullmatch(GPU_MODULES, module) is not None
            return event if event.in_session or (ours and rule == "sys.oops") else event.weakened()
        if rule in {"sys.oom", "sys.rt_throttle", "sys.nccl_segv"} and not event.in_session:
            return event.graded(None)
        return event if event.in_session else event.weakened()

    rules = ["sys.oops", "sys.soft_lockup", "sys.edac_ue", "sys.hung_task", "sys.mce", "sys.oom", "sys.apei_pcie"]
    yield from judge_lines(
        subject,
        [*rules, "sys.rt_throttle", "sys.nccl_segv"],
        what="crash or hardware error of the host",
        grade=grade,
        about_host=True,
    )


def _trace(evidence: LogEvidence, line: LogFinding) -> list[str]:
    return [record.message for record in evidence.following(line, _TRACE_LINES)]


@gate(
    "klog.unknown_gpu_error",
    group="kernel-log",
    title="No unknown error of a GPU's driver",
    reads=_READS,
    criterion="no line of level error or worse from a GPU's driver, or about a GPU granted here, that no rule knows;"
    " displays, and an integrated GPU on which nothing computes, are left out",
    why="what this release does not know yet is shown rather than passed over",
    action="Read the lines; when they are harmless here, ignore this gate with that reason (gpu_gates_ignore).",
    source="amd/node-scraper (unknown lines of level err and crit are warnings)",
)
def unknown_gpu_error(subject: Subject) -> Iterator[Finding]:
    """Show error lines of GPU drivers that are in no rule, each wording once."""
    missing = unread(subject)
    if missing is not None:
        yield missing
        return
    evidence = log_evidence(subject)
    levels = sum(record.level is not None for record in evidence.records)
    found = list(_unknown_lines(subject, evidence))
    if found:
        kinds: dict[str, list[Record]] = {}
        for record in found:
            kinds.setdefault(_DIGITS.sub("#", record.message), []).append(record)
        shown = [
            Evidence(source=evidence.where(records[0]), found=shorten(records[0].message), expected="no such line")
            for records in list(kinds.values())[:_SHOWN]
        ]
        first = shorten(found[0].message)
        more = f", and {len(kinds) - 1} other wordings" if len(kinds) > 1 else ""
        yield warned(f"a GPU's driver logged errors that no rule knows ({len(found)} lines): {first}{more}", *shown)
    elif not levels:
        yield unknown(
            "this log does not tell which of its lines are errors",
            Evidence(source=evidence.log.source, found="no levels"),
        )
    elif evidence.log.complete and not evidence.log.lost:
        yield passed(
            f"no unknown error of a GPU's driver in {len(evidence.records)} lines",
            Evidence(source=evidence.log.source, found="none", expected="none"),
        )
    else:
        yield unknown(
            "no unknown error of a GPU's driver in what is left of the kernel's log",
            Evidence(source=evidence.log.source, found="not the whole boot"),
        )


def _unknown_lines(subject: Subject, evidence: LogEvidence) -> Iterator[Record]:
    owners = owners_of(subject)
    addresses = tuple(gpu.pci_address for gpu in subject.functions() if gpu.pci_address is not None)
    idle = _idle_vendors(subject)
    known = False  # NVIDIA's messages have several lines; the first tells
    for record in evidence.records:
        message = record.message
        if record.number in evidence.messages:
            known = True
        elif not message.startswith(("NVRM:", " ")):
            known = False
        error = "*ERROR*" in message if record.level is None else record.level <= _ERROR
        if not error or known:
            continue
        driver = _DRIVER.search(message)
        if is_harmless(message) or (driver is None and not any(each in message for each in addresses)):
            continue
        other = _ADDRESS.search(message)
        gpus = owners.at(other[0].lower()) if other is not None else ()
        about = {gpu.vendor for gpu in gpus} if gpus else {_vendor(driver[0])} if driver is not None else set()
        if (other is None or gpus) and not about <= idle:
            yield record


def _idle_vendors(subject: Subject) -> set[str]:
    """Return the vendors of whom there is only the processor's own GPU, on which nothing here computes."""
    vendors = {gpu.vendor for gpu in subject.functions()}
    return {
        vendor
        for vendor in vendors
        if subject.wanted(vendor) is None and all(gpu.kind == "integrated" for gpu in subject.functions(vendor))
    }


def _vendor(driver: str) -> str:
    """Name the vendor by a driver's name in a line."""
    for vendor, names in (("amd", ("amdgpu", "kfd")), ("intel", ("i915", "xe"))):
        if any(name in driver for name in names):
            return vendor
    return "nvidia"


_ADDRESS = re.compile(r"\b[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]\b")
