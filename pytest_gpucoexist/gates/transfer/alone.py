"""Whether data comes back from each device, and from each within itself, as it was sent."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.gates.transfer.wrongs import judge_integrity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.findings import Finding
    from pytest_gpucoexist.gates.subject import Subject

_verified = partial(
    gate, group="transfer-integrity", level="transfer", severity="fail", blocking=True, vendors=("nvidia", "amd")
)


@_verified(
    "xfer.roundtrip",
    title="Data comes back as it was sent",
    reads="pinned copies to each GPU and back, of sizes that are no multiple of anything; up to 64 MiB at level full",
    criterion="every bit, and the red zones on both sides untouched",
    why="A wrong byte here makes every later result wrong.",
    action="Read which of stale, shifted, torn or flipped it is: the report names the first wrong offset.",
    source="nvbandwidth verifies a pattern with a period of 2 MiB, p2pBandwidthLatencyTest nothing",
)
def roundtrip(subject: Subject) -> Iterator[Finding]:
    yield from judge_integrity(subject, "roundtrip")


@_verified(
    "xfer.pageable",
    title="Pageable memory is copied right",
    reads="the same with memory that is not pinned",
    criterion="every bit",
    why="The driver stages such copies itself, through another path than pinned ones.",
    action="Update the driver; report it with the offsets.",
    source="NVIDIA/DCGM, plugin pcie",
)
def pageable(subject: Subject) -> Iterator[Finding]:
    yield from judge_integrity(subject, "pageable")


@_verified(
    "xfer.epoch",
    title="No data of an earlier copy",
    reads="twenty copies, each tagged with its number in every word",
    criterion="no word of an earlier copy",
    why="Data that was right a moment ago looks right to a fixed pattern.",
    action="Suspect a missing flush or wait, an IOMMU, a cache.",
    source="no tool that was surveyed can see it",
)
def epoch(subject: Subject) -> Iterator[Finding]:
    yield from judge_integrity(subject, "epoch")


@_verified(
    "xfer.d2d_local",
    title="Copies within a GPU are right",
    reads="data copied inside the GPU, then read back",
    criterion="every bit",
    why="It tells the GPU's memory from the way to it.",
    action="Replace the card when it repeats.",
    source="NVIDIA/DCGM, plugin memory",
)
def d2d_local(subject: Subject) -> Iterator[Finding]:
    yield from judge_integrity(subject, "d2d_local")
