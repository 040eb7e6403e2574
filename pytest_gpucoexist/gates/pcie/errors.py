"""What the kernel's Advanced Error Reporting has counted since boot, at the GPU and at every port above it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.findings import Finding, failed, passed, skipped, unknown, warned
from pytest_gpucoexist.gates.pcie.folders import folder, is_removable, label
from pytest_gpucoexist.gates.pcie.path import walk
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.verdicts import Evidence
from pytest_gpucoexist.probes.pci import BUS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.model.machine import Gpu
    from pytest_gpucoexist.probes.reader import Text

__all__ = ["aer_counters", "counters_of", "uptime_minutes"]

_PER_MINUTE = 5.0
_LEAST_MINUTES = 10.0
_LINE = re.compile(r"([A-Za-z_][A-Za-z0-9_ ]{0,40}) ([0-9]{1,20})")

_HARMLESS = {"UnsupReq", "ACSViol", "Unsupported Request", "ACS Violation"}
"""Counted on healthy machines while functions are enumerated or an access is turned away: many are told, none fails."""

_FEW = 16
"""So many of these are no more than enumeration leaves."""

_UNPLUGGED = {"SDES", "DLP", "Surprise Down Error", "Data Link Protocol"}
"""What a cable that is pulled out leaves behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Count:
    path: str
    address: str
    total: int
    kinds: Mapping[str, int] = field(default_factory=dict)

    @property
    def words(self) -> str:
        kinds = ", ".join(f"{name} {count}" for name, count in self.kinds.items())
        return f"{self.total} at {self.address}" + (f" ({kinds})" if kinds else "")


def counters_of(text: str) -> tuple[int, dict[str, int]] | None:
    """Read `RxErr 0`, …, `TOTAL_ERR_COR 0` (aer_stats_dev_attr, drivers/pci/pcie/aer.c): total, and what is not zero.

    None when a line is no counter, or the total is not there.
    """
    total: int | None = None
    kinds: dict[str, int] = {}
    for line in text.splitlines():
        match = _LINE.fullmatch(line.strip())
        if match is None:
            return None
        name, count = match[1], int(match[2])
        if name.startswith("TOTAL_ERR_"):
            total = count
        elif count:
            kinds[name] = count
    return None if total is None else (total, kinds)


def uptime_minutes(subject: Subject) -> float | None:
    """Return how long the machine has been up, at least ten minutes: a rate over less is noise."""
    first = (subject.read("/proc/uptime").text or "").split(" ")[0]
    if re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,6})?", first) is None:
        return None
    return max(float(first) / 60, _LEAST_MINUTES)


@gate(
    "pcie.aer_counters",
    group="pcie-link",
    title="No PCIe errors counted since boot",
    reads="aer_dev_fatal, aer_dev_nonfatal and aer_dev_correctable of the GPU and of each port above it; /proc/uptime",
    criterion="no fatal and no non-fatal error since boot; at most 5 corrected errors a minute",
    why="An uncorrectable error means that a packet was lost: what the GPU computed with it is not to be trusted."
    " Corrected errors cost time, and come before the others.",
    action="Reseat the card, replace the riser or cable, or set the slot to a lower PCIe generation in the firmware;"
    " the counters start again at boot.",
    source="Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats; amd/node-scraper, plugins/inband/pcie",
    level="quick",
    severity="fail",
    limits={"corrected_per_minute": _PER_MINUTE},
)
def aer_counters(subject: Subject) -> Iterator[Finding]:
    limit = subject.limit("pcie.aer_counters", "corrected_per_minute", _PER_MINUTE)
    for gpu in subject.functions():
        yield from _judge(subject, gpu, limit)
    if not subject.functions():
        yield skipped("no GPU here has a PCI function")


def _judge(subject: Subject, gpu: Gpu, limit: float) -> Iterator[Finding]:
    own = folder(subject, gpu)
    places = [(own, gpu.pci_address or ""), *((f"{BUS}/{address}", address) for address in gpu.upstream or ())]
    counts: dict[str, list[_Count]] = {"fatal": [], "nonfatal": [], "correctable": []}
    broken: list[Text] = []
    for path, address in places:
        for kind, found in counts.items():
            text = subject.read(f"{path}/aer_dev_{kind}")
            if text.status == "absent":
                continue
            read = None if text.text is None else counters_of(text.text)
            if read is None:
                broken.append(text)
            else:
                found.append(_Count(path=text.path, address=address, total=read[0], kinds=read[1]))
    if not any(counts.values()):
        if broken:
            yield unknown(f"{broken[0].path} cannot be read: {broken[0].detail or 'no counters in it'}", on=[gpu])
        else:
            yield skipped("no error counters: neither the GPU nor a port above it reports errors to Linux", on=[gpu])
        return
    wrong = [*_uncorrected(subject, gpu, counts), *_corrected(subject, gpu, counts["correctable"], limit)]
    yield from wrong
    if broken:
        yield unknown(f"{broken[0].path} cannot be read: {broken[0].detail or 'no counters in it'}", on=[gpu])
    elif not wrong:
        read_count = sum(len(each) for each in counts.values())
        evidence = Evidence(source=f"{own}/aer_dev_*", found=f"{read_count} files, all within limits", expected="0")
        turned_away = [count.words for kind in ("fatal", "nonfatal") for count in counts[kind] if count.total]
        words = "no uncorrected error counted since boot"
        if turned_away:
            words += f" but some requests that were turned away: {', '.join(turned_away)}"
        yield passed(words, evidence, on=[gpu])


def _uncorrected(subject: Subject, gpu: Gpu, counts: Mapping[str, list[_Count]]) -> list[Finding]:
    findings: list[Finding] = []
    hop = walk(subject, gpu).card
    card = {gpu.pci_address, *((hop.upper, hop.lower) if hop is not None else ())}
    for kind, said in (("fatal", "fatal"), ("nonfatal", "uncorrected (non-fatal)")):
        for count in counts[kind]:
            if not count.total:
                continue
            evidence = Evidence(source=count.path, found=count.words, expected="0")
            words = f"{said} PCIe errors since boot: {count.words}"
            harmless = bool(count.kinds) and set(count.kinds) <= _HARMLESS
            if harmless and count.total <= _FEW:
                continue
            if harmless:
                findings.append(warned(f"{words}; requests that were turned away, no data lost", evidence, on=[gpu]))
            elif count.kinds and set(count.kinds) <= _UNPLUGGED and is_removable(subject, gpu):
                findings.append(warned(f"{words}; an external GPU that was unplugged", evidence, on=[gpu]))
            elif count.address not in card:
                words += f"; on the way to {label(gpu)}, other devices share it"
                findings.append(warned(words, evidence, on=[gpu]))
            else:
                findings.append(failed(words, evidence, on=[gpu]))
    return findings


def _corrected(subject: Subject, gpu: Gpu, counts: list[_Count], limit: float) -> list[Finding]:
    minutes = uptime_minutes(subject)
    noisy = [count for count in counts if count.total and (minutes is None or count.total / minutes > limit)]
    if minutes is None and noisy:
        evidence = Evidence(source=noisy[0].path, found=noisy[0].words)
        return [
            unknown("corrected PCIe errors since boot, but how long ago that was cannot be read", evidence, on=[gpu])
        ]
    return [
        warned(
            f"{count.total / (minutes or 1):.0f} corrected PCIe errors a minute since boot: {count.words}",
            Evidence(source=count.path, found=count.words, expected=f"at most {limit:g} a minute"),
            on=[gpu],
        )
        for count in noisy
    ]
