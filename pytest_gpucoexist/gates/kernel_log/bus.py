"""PCIe, IOMMU and bounce buffers in the kernel's log: of the GPUs, their other functions, the ports above them."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.kernel_log.evidence import log_evidence
from pytest_gpucoexist.gates.kernel_log.lines import Event, events, judge_lines, judgement_of, unread
from pytest_gpucoexist.gates.kernel_log.rates import most_per_minute
from pytest_gpucoexist.gates.registry import gate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.findings import Finding
    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.model.machine import Gpu

__all__ = ["aer", "bar", "iommu", "power", "swiotlb"]

_READS = "the kernel's log of this boot: /dev/kmsg, else (level standard) journald"
_AER = {"warn_per_minute": 5.0, "fail_per_minute": 16.0, "fail_per_minute_gen5_x16": 32.0}
_CORRECTED = ("pci.aer_corr", "pci.aer_ghes")


@gate(
    "klog.pci.aer",
    group="kernel-log",
    title="No PCIe errors on the way to the GPUs",
    reads=_READS,
    criterion="no uncorrectable error, no lost link and no contained port on a GPU's path; of corrected errors no more"
    " than the limits in one minute",
    why="uncorrectable errors lose or stop the device; many corrected ones mean a bad contact, riser or slot, and"
    " transfers that are slow now and wrong later",
    action="Reseat the card, lower the link generation in the BIOS, switch ASPM off (`pcie_aspm=off`).",
    source="NVIDIA/DCGM nvvs pcie plugin (480 per 15 min on Gen5 x16, half elsewhere);"
    " NVIDIA/open-gpu-kernel-modules#1229",
    severity="fail",
    limits=_AER,
)
def aer(subject: Subject) -> Iterator[Finding]:
    """Judge PCIe errors of each GPU's path: what happened earlier this boot on a path that still works is a warning."""
    missing = unread(subject)
    if missing is not None:
        yield missing
        return
    grave = [
        event if event.in_session else event.weakened()
        for event in events(subject, ["pci.aer_uncorr", "pci.aer_norecover", "pci.dpc", "pci.link_down", "amd.pci_err"])
        if event.gpus
    ]
    yield from judgement_of(subject, [*grave, *_rated(subject)], what="PCIe error on the way to a GPU")


def _rated(subject: Subject) -> Iterator[Event]:
    """Grade corrected errors by how many there were in the worst minute, on each GPU's path."""
    found: dict[tuple[str, ...], list[Event]] = defaultdict(list)
    for event in events(subject, _CORRECTED):
        if event.gpus:
            found[tuple(gpu.key for gpu in event.gpus)].append(event)
    message = log_evidence(subject).message
    warn = subject.limit("klog.pci.aer", "warn_per_minute", _AER["warn_per_minute"])
    for about in found.values():
        now = [event for event in about if event.in_session]
        fail = _fail_limit(subject, about[0].gpus)
        rate = most_per_minute([(event.line, message(event.line)) for event in about])
        rate_now = most_per_minute([(event.line, message(event.line)) for event in now])
        grade: str | None = "FAIL" if rate_now > fail else "WARN" if rate > warn else None
        for event in about:
            graded = event.graded("FAIL" if grade == "FAIL" and event.in_session else "WARN" if grade else None)
            yield graded.noted(f"up to {rate} in one minute")


def _fail_limit(subject: Subject, gpus: tuple[Gpu, ...]) -> float:
    """Return the limit for the path: the fastest links carry twice as much, and may repair twice as often."""
    fast = any((gpu.link.max_speed_gtps or 0) >= 32 and (gpu.link.max_width or 0) >= 16 for gpu in gpus)
    name = "fail_per_minute_gen5_x16" if fast else "fail_per_minute"
    return subject.limit("klog.pci.aer", name, _AER[name])


@gate(
    "klog.pci.power",
    group="kernel-log",
    title="GPUs woke up",
    reads=_READS,
    criterion="no GPU, audio function or port above one that did not leave a low-power state",
    why="a device that does not wake answers all ones until a cold boot",
    action="Boot from cold; then `pcie_aspm=off`, and for AMD `amdgpu.runpm=0`.",
    source="system76/firmware-open#259; kata-containers/kata-containers#11708",
    severity="fail",
)
def power(subject: Subject) -> Iterator[Finding]:
    """Judge failed wake-ups; where a driver came up later the device woke after all."""

    def grade(event: Event) -> Event | None:
        if not event.gpus:
            return None
        if not event.in_session and all(gpu.driver is not None for gpu in event.gpus):
            event = event.weakened()
        return event.put_behind(subject, "registered", "found", "loaded")

    yield from judge_lines(subject, ["pci.d3cold"], what="GPU that did not wake", grade=grade)


@gate(
    "klog.pci.bar",
    group="kernel-log",
    title="The kernel assigned the GPUs' memory windows",
    reads=f"{_READS}; the BARs of each GPU",
    criterion="no memory BAR of a GPU that was left without an address (I/O and virtual functions' windows do not"
    " matter)",
    why="a driver cannot reach memory behind a BAR that has no address",
    action="Switch Above 4G Decoding and Resizable BAR on in the BIOS, or boot with `pci=realloc=on`.",
    source="HeyMeco/Rockchip-pcie-devices#2; RadeonOpenCompute/ROCm_Documentation#111; ROCm/legacy-rocm-build#1626",
    severity="fail",
)
def bar(subject: Subject) -> Iterator[Finding]:
    """Judge BARs beside what the GPU has now: a window that was assigned in a later attempt is no problem."""

    def grade(event: Event) -> Event | None:
        gpus = tuple(gpu for gpu in event.gpus if gpu.pci_address == event.line.pci_address)
        if not gpus:
            return None  # of a port, or of the card's audio function
        if event.grade == "WARN" or any(gpu.driver is not None for gpu in gpus):
            return event.graded(None if all(gpu.driver is not None for gpu in gpus) else "WARN")
        return event

    yield from judge_lines(subject, ["pci.bar_mem"], what="memory BAR of a GPU without an address", grade=grade)


@gate(
    "klog.iommu",
    group="kernel-log",
    title="The IOMMU refused no access of a GPU",
    reads=_READS,
    criterion="no IOMMU fault of a GPU or of a port above one in this session; earlier ones are a warning",
    why="transfers that the IOMMU refuses are lost: peer copies give old or wrong data without any error",
    action="Boot with `iommu=pt`, or switch peer access off.",
    source="NVIDIA/cuda-samples#48; Dasharo/dasharo-issues#641",
    severity="fail",
)
def iommu(subject: Subject) -> Iterator[Finding]:
    """Judge faults whose requester is a GPU granted here, or a port above one."""

    def grade(event: Event) -> Event | None:
        return event if event.gpus else None

    yield from judge_lines(
        subject, ["iommu.amd", "iommu.dmar"], what="IOMMU fault of a GPU", grade=grade, session_only=True
    )


@gate(
    "klog.swiotlb",
    group="kernel-log",
    title="Transfers do not run out of bounce buffer",
    reads=_READS,
    criterion="no exhausted bounce buffer of a GPU, or of a device that the line does not name",
    why="transfers go through a small copy in low memory; they are slow, and fail when it is full",
    action="Use the IOMMU in translating mode, or a larger buffer (`swiotlb=262144`); mind Xen and memory encryption.",
    source="NixOS/nixpkgs#37909; QubesOS/qubes-issues#5670",
)
def swiotlb(subject: Subject) -> Iterator[Finding]:
    """Judge lines about the bounce buffer."""
    yield from judge_lines(subject, ["dma.swiotlb"], what="exhausted bounce buffer")
