"""Every memory register of a GPU has a place, and peers can reach it."""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.findings import Finding, failed, passed, skipped, unknown, warned
from pytest_gpucoexist.gates.mapping.addresses import regions_of, size_words
from pytest_gpucoexist.gates.mapping.translation import translation
from pytest_gpucoexist.gates.pcie.folders import folder, label
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.verdicts import Evidence
from pytest_gpucoexist.probes.parse import number
from pytest_gpucoexist.probes.reader import excerpt

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pytest_gpucoexist.gates.mapping.addresses import Region
    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.model.machine import Gpu

__all__ = ["bar_assigned", "dma_mask", "reach"]


@gate(
    "mem.bar_assigned",
    group="memory-mapping",
    title="Memory registers have a place",
    reads="lines 0 to 5 of /sys/bus/pci/devices/<address>/resource",
    criterion="no memory register is without an address",
    why="The firmware found no room for the card: its driver cannot reach registers or memory, and refuses it"
    " (`BAR1 is 0M @ 0x0`) or fails later.",
    action="Enable Above 4G decoding in the firmware; then pci=realloc on the kernel's command line.",
    source="Dunedan/mbp-2016-linux#60; ROCm/ROCmValidationSuite, smqt.so",
    level="quick",
    severity="fail",
)
def bar_assigned(subject: Subject) -> Iterator[Finding]:
    for gpu in subject.functions():
        yield _judge(subject, gpu)
    if not subject.functions():
        yield skipped("no GPU here has a PCI function")


@gate(
    "mem.dma_mask",
    group="memory-mapping",
    title="AMD GPUs can address each other",
    reads="dma_mask_bits of each AMD GPU that amdgpu holds, `resource` of the others, the mode of the IOMMU",
    criterion="no memory of a peer lies above what a GPU can address, or the IOMMU translates",
    why="A GPU with 44 address bits cannot reach a register at 0x380000000000: peer access is off, or fails.",
    action="Let the IOMMU translate (no iommu=pt), or let the firmware place 64-bit registers lower (MMIOH base).",
    source="ROCm/ROCR-Runtime#355",
    vendors=("amd",),
    level="quick",
    severity="info",
)
def dma_mask(subject: Subject) -> Iterator[Finding]:
    gpus = [gpu for gpu in subject.functions("amd") if gpu.driver == "amdgpu" and gpu.kind != "integrated"]
    if len(gpus) < 2:
        yield skipped("fewer than two AMD cards with their driver: no peers")
    yield from reach(subject, gpus)


def reach(subject: Subject, gpus: Iterable[Gpu]) -> Iterator[Finding]:
    """Say of each pair of GPUs whether the first can address the memory of the second."""
    for first, second in permutations(gpus, 2):
        yield _judge_pair(subject, first, second)


def _regions(subject: Subject, gpu: Gpu) -> tuple[tuple[Region, ...] | None, Evidence]:
    text = subject.read(f"{folder(subject, gpu)}/resource")
    found = None if text.text is None else regions_of(text.text)
    shown = text.detail or "" if text.text is None else excerpt(text.text.strip())
    return found, Evidence(source=text.path, found=shown)


def _judge(subject: Subject, gpu: Gpu) -> Finding:
    regions, shown = _regions(subject, gpu)
    if regions is None:
        return unknown(f"its address registers cannot be read: {shown.found}", shown, on=[gpu])
    if not regions:
        return unknown("it shows no memory register", shown, on=[gpu])
    missing = [region for region in regions if not region.assigned]
    if not missing:
        sizes = ", ".join(f"{region.index}: {size_words(region.size_bytes)}" for region in regions)
        evidence = Evidence(source=shown.source, found=sizes, expected="an address each")
        return passed("every memory register has a place", evidence, on=[gpu])
    names = ", ".join(f"{region.index} ({size_words(region.size_bytes)})" for region in missing)
    evidence = Evidence(source=shown.source, found=f"no address for {names}", expected="an address each")
    words = f"{label(gpu)}: memory register {names} has no place"
    if subject.wanted(gpu.vendor) is None:
        return warned(words, evidence, on=[gpu])
    return failed(words, evidence, on=[gpu])


def _judge_pair(subject: Subject, first: Gpu, second: Gpu) -> Finding:
    text = subject.read(f"{folder(subject, first)}/dma_mask_bits")
    bits = None if text.text is None else number(text.text, low=1, high=64)
    regions, shown = _regions(subject, second)
    if not isinstance(bits, int):
        return unknown(f"how far {first.id} can address cannot be read", on=[first])
    if not regions:
        return unknown(f"where the memory of {second.id} lies cannot be read", shown, on=[second])
    end = max(region.end for region in regions)
    evidence = [
        Evidence(source=text.path, found=f"{bits} bits"),
        Evidence(source=shown.source, found=f"up to {end:#x}"),
    ]
    if end < 1 << bits:
        return passed("each can address the other", *evidence, on=[first, second])
    mode = translation(subject, first)
    if mode.kind == "translated":
        return passed("the IOMMU translates, so each can reach the other", *evidence, on=[first, second])
    words = f"{first.id} addresses {bits} bits, memory of {second.id} ends at {end:#x}"
    if mode.kind == "unknown":
        return unknown(f"{words}; whether the IOMMU translates cannot be read", *evidence, on=[first, second])
    return warned(f"{words}: no peer access that way", *evidence, on=[first, second])
