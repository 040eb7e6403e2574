"""Errors of the host's own memory, through which copies between vendors go."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.findings import Finding, failed, passed, skipped, unknown, warned
from pytest_gpucoexist.gates.pcie.errors import uptime_minutes
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.verdicts import Evidence
from pytest_gpucoexist.probes.reader import excerpt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject

_FOLDER = "/sys/devices/system/edac/mc"


@gate(
    "ras.host.edac",
    group="ras",
    title="No uncorrectable errors of host memory",
    reads="ue_count and ce_count of each memory controller in /sys/devices/system/edac/mc",
    criterion="ue 0; more than 10 ce a day since boot warn: a server's memory has one now and then",
    why="Data between GPUs of two vendors goes through host memory: a flipped bit there is a wrong result.",
    action="Find the module in the kernel log (EDAC lines), test it (memtest), replace it",
    source="ovro-lwa/lwa-issues#117; mchehab/rasdaemon",
    vendors=(),
    severity="fail",
    limits={"corrected_per_day": 10},
)
def edac(subject: Subject) -> Iterator[Finding]:
    """Add up the counts of all memory controllers."""
    days = max(1.0, (uptime_minutes(subject) or 0.0) / 1440)
    limit = subject.limit("ras.host.edac", "corrected_per_day", 10) * days
    controllers = [name for name in subject.names(_FOLDER) if name.startswith("mc") and name[2:].isdigit()]
    if not controllers:
        yield skipped("no memory controller is watched by EDAC (no ECC memory, or its driver is not loaded)")
        return
    totals = {"ue": 0, "ce": 0}
    shown, unread = [], []
    for name in controllers:
        for kind in totals:
            text = subject.read(f"{_FOLDER}/{name}/{kind}_count")
            if text.text is None or not (text.text.isascii() and text.text.isdigit() and len(text.text) < 20):
                unread.append(f"{text.path}: {text.detail or excerpt(text.text or '')}")
                continue
            totals[kind] += int(text.text)
            shown.append(f"{name} {kind} {text.text}")
    evidence = Evidence(source=f"{_FOLDER}/mc*", found=", ".join(shown) or "nothing", expected="ue 0, ce 0")
    if totals["ue"]:
        yield failed(f"{totals['ue']} uncorrectable errors of host memory since boot", evidence)
    elif unread:
        yield unknown(f"counts of memory errors could not be read: {'; '.join(unread)}", evidence)
    elif totals["ce"] > limit:
        yield warned(f"{totals['ce']} corrected errors of host memory since boot", evidence)
    else:
        few = f"{totals['ce']} corrected and no uncorrectable" if totals["ce"] else "no"
        words = f"{few} errors of host memory on {len(controllers)} memory controllers since boot"
        yield passed(words, evidence)
