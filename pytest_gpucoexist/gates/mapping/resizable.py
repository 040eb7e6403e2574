"""Whether the processor sees all of a card's memory through its register (resizable BAR)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.findings import Finding, passed, skipped, unknown, warned
from pytest_gpucoexist.gates.mapping.addresses import MIB, size_words, sizes_of
from pytest_gpucoexist.gates.pcie.folders import ASLEEP, asleep, folder, label
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.verdicts import Evidence
from pytest_gpucoexist.probes.parse import number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.model.machine import Gpu

__all__ = ["SMALL_BYTES", "rebar_amd", "rebar_intel"]

SMALL_BYTES = 256 * MIB
"""What a register covers where the firmware does not resize it."""

_AMD_MEMORY, _INTEL_MEMORY = 0, 2
_RESIZABLE = ("gfx10", "gfx11", "gfx12")  # every card since RDNA has the capability
_COST = "the processor reaches the rest only through the driver's copies, and peers not at all"
_ACTION = "Enable Resizable BAR (and Above 4G decoding, without CSM) in the firmware."


@gate(
    "mem.rebar.amd",
    group="memory-mapping",
    title="The whole VRAM of an AMD card is visible",
    reads="mem_info_vis_vram_total, mem_info_vram_total and resource0_resize of each AMD card",
    criterion="visible and total VRAM are equal, where the card can do it",
    why="With a window of 256 MiB peer access between GPUs is off (ROCm needs a large BAR), and host access is slow.",
    action=_ACTION,
    source="ROCm/TransferBench, large-BAR check; ROCm/legacy-rocm-build#579",
    vendors=("amd",),
    level="quick",
)
def rebar_amd(subject: Subject) -> Iterator[Finding]:
    for gpu in subject.functions("amd"):
        yield _judge_amd(subject, gpu)
    if not subject.functions("amd"):
        yield skipped("no AMD GPU here has a PCI function")


@gate(
    "mem.rebar.intel",
    group="memory-mapping",
    title="The whole memory of an Intel card is visible",
    reads="the size of memory register 2 in `resource`, and resource2_resize, of each Intel card",
    criterion="the register is larger than 256 MiB, or as large as it can be",
    why="Arc cards are much slower without Resizable BAR.",
    action=_ACTION,
    source="xCuri0/ReBarUEFI#11; Intel's requirements for Arc",
    vendors=("intel",),
    level="quick",
)
def rebar_intel(subject: Subject) -> Iterator[Finding]:
    for gpu in subject.functions("intel"):
        yield _judge_intel(subject, gpu)
    if not subject.functions("intel"):
        yield skipped("no Intel GPU here has a PCI function")


def _judge_amd(subject: Subject, gpu: Gpu) -> Finding:
    if gpu.kind == "integrated":
        return skipped("integrated: its memory is the host's", on=[gpu])
    if asleep(subject, gpu):
        return skipped(ASLEEP, on=[gpu])
    at = folder(subject, gpu)
    texts = [subject.read(f"{at}/{name}") for name in ("mem_info_vis_vram_total", "mem_info_vram_total")]
    if all(text.status == "absent" for text in texts):
        return skipped("its driver does not tell how much memory is visible", on=[gpu])
    visible, total = (number(text.text or "", low=1) for text in texts)
    if not isinstance(visible, int) or not isinstance(total, int):
        return unknown("how much of its memory is visible cannot be read", on=[gpu])
    evidence = Evidence(source=texts[0].path, found=size_words(visible), expected=size_words(total))
    if visible >= total:
        return passed("all of its memory is visible", evidence, on=[gpu])
    sizes = sizes_of(subject, gpu, _AMD_MEMORY)
    words = f"{label(gpu)} shows {size_words(visible)} of {size_words(total)}: {_COST}"
    if sizes is None and not (gpu.arch or "").startswith(_RESIZABLE):
        return passed(
            f"a window of {size_words(visible)}, and no sign that this card can show more", evidence, on=[gpu]
        )
    if sizes is not None and sizes.largest_bytes is not None and sizes.largest_bytes <= visible:
        return passed(f"a window of {size_words(visible)}, the largest that this card can show", evidence, on=[gpu])
    return warned(words, evidence, on=[gpu])


def _judge_intel(subject: Subject, gpu: Gpu) -> Finding:
    if gpu.kind == "integrated":
        return skipped("integrated: its memory is the host's", on=[gpu])
    bar = next((each for each in gpu.bars or () if each.index == _INTEL_MEMORY), None)
    if bar is None:
        return unknown("its memory register cannot be read", on=[gpu])
    sizes = sizes_of(subject, gpu, _INTEL_MEMORY)
    largest = sizes.largest_bytes if sizes is not None else None
    expected = size_words(largest) if largest else f"more than {size_words(SMALL_BYTES)}"
    evidence = Evidence(source=f"{folder(subject, gpu)}/resource", found=size_words(bar.size_bytes), expected=expected)
    if bar.size_bytes > SMALL_BYTES:
        return passed("its memory register is large", evidence, on=[gpu])
    if largest is not None and largest <= bar.size_bytes:
        return passed(f"{size_words(bar.size_bytes)}, the largest that this card can show", evidence, on=[gpu])
    return warned(f"{label(gpu)} shows {size_words(bar.size_bytes)} of its memory: {_COST}", evidence, on=[gpu])
