"""How the boot before this one ended, and which driver it names: pstore, kdump, journald, the firmware's record."""

from __future__ import annotations

import re
from itertools import takewhile
from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.findings import passed, unknown, warned
from pytest_gpucoexist.gates.kernel_log.attribution import owners_of
from pytest_gpucoexist.gates.kernel_log.evidence import log_evidence, shorten
from pytest_gpucoexist.gates.kernel_log.lines import unread
from pytest_gpucoexist.gates.kernel_log.remains import Remains, remains_in_files, remains_in_journal
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.verdicts import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.findings import Finding
    from pytest_gpucoexist.gates.kernel_log.evidence import LogEvidence
    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.kernellog.records import Record

__all__ = ["bert", "bert_block", "silent_hang"]

_BLOCK = 200
_HEADER = "BERT: Error records from previous boot"
_DEVICE = re.compile(r"device_id: ([0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])")
_SECTION = re.compile(r"section[_ ]type: ([^,\n]+)")
_SEVERITY = re.compile(r"event severity: (\w+)")
_RESET = re.compile(r"Previous system reset reason \[(0x[0-9a-fA-F]+)\]: (.+)")
_ORDERLY = ("software wrote", "software issued", "ACPI power state", "remote ASF", "keyboard reset pin")
"""Reasons (arch/x86/kernel/cpu/amd.c) of an orderly end; other bits beside one of them are left-overs."""


@gate(
    "klog.bert",
    group="kernel-log",
    title="The previous boot did not die of a PCIe error on a GPU's path",
    reads="the block `BERT: Error records from previous boot` in the kernel's log",
    criterion="no fatal PCIe record of a GPU or of a port above one",
    why="the previous boot died on a GPU's link; nothing else tells",
    action="Reseat the card, switch ASPM off (`pcie_aspm.policy=performance`).",
    source="olafkfreund/nixos_config PR#1824 (RX 7900 XTX, ASPM L1)",
)
def bert(subject: Subject) -> Iterator[Finding]:
    """Read the firmware's record of the previous boot, as the kernel printed it."""
    missing = unread(subject)
    if missing is not None:
        yield missing
        return
    evidence = log_evidence(subject)
    block = bert_block(evidence)
    if not block:
        shown = Evidence(source=evidence.log.source, found="no such block", expected="none")
        if evidence.log.complete:
            yield passed("the firmware handed over no error record of the previous boot", shown)
        else:
            yield unknown("no error record of the previous boot in a log that lacks the beginning of this boot", shown)
        return
    text = "\n".join(record.message for record in block)
    severity, sections = _SEVERITY.search(text), list(dict.fromkeys(_SECTION.findall(text)))
    what = ", ".join(map(shorten, sections)) or "a record"
    shown = Evidence(
        source=evidence.where(block[0]),
        found=f"severity {severity[1] if severity else 'not told'}: {what}",
        expected="no fatal PCIe record of a GPU's path",
    )
    owners = owners_of(subject)
    gpus = {gpu.key: gpu for address in _DEVICE.findall(text) for gpu in owners.at(address.lower())}
    fatal = severity is None or severity[1] in {"fatal", "recoverable"}
    if gpus and fatal:
        addresses = ", ".join(dict.fromkeys(_DEVICE.findall(text)))
        yield warned(f"the previous boot ended with a PCIe error at {addresses}", shown, on=gpus.values())
    else:
        yield passed(f"the firmware's record of the previous boot ({what}) is not about a GPU's path", shown)


@gate(
    "klog.silent_hang",
    group="kernel-log",
    title="The previous boot ended in an orderly way",
    reads="/sys/fs/pstore, /var/lib/systemd/pstore, /var/crash; the reset reason in the kernel's log; at level standard"
    " the end of journald's previous boot",
    criterion="no crash dump of the previous boot, no reset by hardware, an orderly end in the journal",
    why="a GPU can hang a machine without leaving an Xid or a line: what the previous boot left behind is all there is",
    action="Look at the driver that the trace names; where nothing was logged, a heartbeat file and a hardware watchdog"
    " show when it happened.",
    source="NVIDIA/open-gpu-kernel-modules#1363; CachyOS/linux-cachyos#960",
    severity="info",
    needs_gpu=False,
    vendors=(),
)
def silent_hang(subject: Subject) -> Iterator[Finding]:
    """Gather what the previous boot left, and name the driver that its last trace names."""
    found = [*remains_in_files(subject), *_reset_reasons(subject)]
    if subject.level != "quick":
        found.extend(remains_in_journal(subject))
    bad = [each for each in found if each.problem]
    for each in bad:
        driver = f", in {each.module}" if each.module is not None else ""
        yield warned(f"the previous boot did not end in an orderly way: {each.words}{driver}", each.evidence())
    if bad:
        return
    read = [each for each in found if each.read]
    evidence = [each.evidence() for each in found]
    if any(each.decides for each in read):
        yield passed("the previous boot ended in an orderly way, as far as it left traces", *evidence)
    else:
        yield unknown("nothing here tells how the previous boot ended", *evidence)


def _reset_reasons(subject: Subject) -> Iterator[Remains]:
    """Read what AMD's platform says about the last reset."""
    evidence = log_evidence(subject)
    reasons = evidence.containing("Previous system reset reason")
    lines = [(record, match) for record in reasons if (match := _RESET.search(record.message)) is not None]
    orderly = any(match[2].startswith(_ORDERLY) for _record, match in lines)
    for record, match in lines:
        yield Remains(
            source=evidence.where(record),
            found=shorten(record.message),
            words=match[2].strip(),
            problem=not orderly and match[2] != "Unknown",
            decides=orderly,
        )


def bert_block(evidence: LogEvidence) -> list[Record]:
    """Return the firmware's record of the previous boot, as the kernel printed it; none where there is none."""
    headers = evidence.containing(_HEADER)
    if not headers:
        return []
    first, *rest = evidence.following(headers[0], _BLOCK)
    return [first, *takewhile(lambda record: "[Hardware Error]" in record.message, rest)]
