"""Whether data gets from one device to another: straight between peers, and staged between vendors.

A pair that calls itself peers and delivers nothing is the platform's fault, so it takes out no device: copies between
them can be staged. Bytes that arrive wrong are another matter, and block.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.findings import Finding, failed, passed
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.gates.transfer.looking import arrow, gpus_of, nothing, untried_of
from pytest_gpucoexist.gates.transfer.wrongs import (
    evidence_of,
    integrity_of,
    is_empty,
    judge_integrity,
    right,
    wrong_finding,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject

_verified = partial(gate, group="transfer-integrity", severity="fail")


@_verified(
    "xfer.p2p.nv",
    title="NVIDIA peers exchange data unharmed",
    reads="each ordered pair that calls itself peers, eight bytes first, then 4 MiB, in a process of its own",
    criterion="what arrives is right to the bit; that nothing arrives is told by xfer.p2p.lie",
    why="Bytes that are changed on the way between two cards are seen by no other gate.",
    action="NCCL_P2P_DISABLE=1 and staged copies, until the cause is found.",
    source="NVIDIA/DCGM BrokenP2P; CAPS-UMU/FIDESlib#28; NVIDIA/cuda-samples#390",
    vendors=("nvidia",),
    level="transfer",
    blocking=True,
)
def p2p_nv(subject: Subject) -> Iterator[Finding]:
    yield from _peers(subject, "nvidia")


@_verified(
    "xfer.p2p.amd",
    title="AMD peers exchange data unharmed",
    reads="the same through HIP, at level full alone",
    criterion="what arrives is right to the bit; that nothing arrives is told by xfer.p2p.lie",
    why="A broken peer path can take the display down with it, so it is tried only when asked for.",
    action="Leave peer access off; large BAR and the IOMMU as ROCm's documentation says.",
    source="ROCm/legacy-rocm-build#1495, #1902",
    vendors=("amd",),
    level="full",
    blocking=True,
)
def p2p_amd(subject: Subject) -> Iterator[Finding]:
    yield from _peers(subject, "amd")


@_verified(
    "xfer.p2p.lie",
    title="A pair that calls itself peers is one",
    reads="what the runtime says about peer access, and whether anything arrived",
    criterion="what peers copy arrives",
    why="The cause is the platform, not the card: replacing the card mends nothing.",
    action="Look at mem.iommu.p2p_nv and pcie.acs; set iommu=pt, ACS off, or NCCL_P2P_DISABLE=1 and copy staged.",
    source="NVIDIA/cuda-samples#48; tinygrad/open-gpu-kernel-modules#18",
    vendors=("nvidia", "amd"),
    level="transfer",
)
def p2p_lie(subject: Subject) -> Iterator[Finding]:
    some = False
    for each in integrity_of(subject, "p2p"):
        some = True
        gpus = gpus_of(subject, each.source, each.target)
        if is_empty(each):
            words = f"the runtime calls {arrow(each.source, each.target)} peers, and what is copied does not arrive"
            yield failed(f"{words}: {each.wrong[0].sentence}", *evidence_of(each, each.wrong), on=gpus)
        else:
            yield passed("what peers copy arrives", on=gpus)
    if not some:
        yield from _untried_or_nothing(subject)


@_verified(
    "xfer.staged.cross",
    title="Data crosses from one vendor to the other",
    reads="each ordered pair of vendors through pinned host memory, in a ring of slots between two processes, checked"
    " between the hops; up to 64 MiB and a tail at level full",
    criterion="every bit",
    why="It is the only way between two vendors with stock drivers.",
    action="The hop that broke is named: source, destination or host memory.",
    source="pattern of tinygrad's staging ring; no tool that was surveyed tests it",
    vendors=("nvidia", "amd"),
    level="transfer",
    blocking=True,
)
def staged_cross(subject: Subject) -> Iterator[Finding]:
    yield from judge_integrity(subject, "staged")


def _peers(subject: Subject, vendor: str) -> Iterator[Finding]:
    some = False
    for each in integrity_of(subject, "p2p", vendor):
        some = True
        if not each.wrong or is_empty(each):
            yield right(subject, each, "nothing that arrived was changed")
        else:
            yield wrong_finding(each, each.wrong, gpus_of(subject, each.source, each.target))
    if not some:
        yield from _untried_or_nothing(subject, vendor)


def _untried_or_nothing(subject: Subject, *vendors: str) -> Iterator[Finding]:
    found = list(untried_of(subject, ("p2p",), *vendors))
    yield from found or [nothing(subject.trials)]
