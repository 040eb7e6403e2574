"""What NVML counts of memory errors on NVIDIA's boards. Most GeForce boards have no ECC, and say so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.gates.boards import Board, flag, judge_boards, whole
from pytest_gpucoexist.gates.findings import Finding, failed, passed, warned
from pytest_gpucoexist.gates.registry import gate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject

_RESET = "Reset the GPU when nothing uses it (nvidia-smi --gpu-reset -i ADDRESS), or reboot"


@gate(
    "ras.nv.ecc_mode",
    group="ras",
    title="ECC is in the mode that was asked for",
    reads="NVML: the ECC mode now and after the next reset",
    criterion="both are the same",
    why="Until the reset the board counts errors, and has memory, as before the change.",
    action=_RESET,
    source="leptonai/gpud components/accelerator/nvidia/ecc/ecc_mode.go",
    vendors=("nvidia",),
    level="standard",
)
def ecc_mode(subject: Subject) -> Iterator[Finding]:
    """Compare the current ECC mode with the pending one."""

    def judge(board: Board) -> Finding:
        mode = board.field("ecc")
        now, pending = (_switch(mode[name]) for name in ("current", "pending"))
        evidence = board.evidence("ecc mode", f"{now} now, {pending} after a reset", "the same")
        if now != pending:
            return warned(f"ECC is {now}, and will be {pending} after a reset", evidence, on=board.on)
        return passed(f"ECC is {now}", evidence, on=board.on)

    yield from judge_boards(subject, "nvidia", judge)


@gate(
    "ras.nv.unc_volatile",
    group="ras",
    title="No uncorrectable memory errors since the driver loaded",
    reads="NVML: uncorrected ECC errors since the driver was loaded, and the rows remapped for them",
    criterion="0, or each was taken out by a row remap that is in force",
    why="Data was lost in the GPU's memory: results are wrong or the next access to it ends the process.",
    action=_RESET,
    source="facebookresearch/gcm check_nvidia_smi.py; leptonai/gpud#108",
    vendors=("nvidia",),
    level="standard",
    severity="fail",
    blocking=True,
)
def unc_volatile(subject: Subject) -> Iterator[Finding]:
    """Look for uncorrectable errors. One whose row was remapped is over (gpud#108), and is told."""

    def judge(board: Board) -> Finding:
        errors = board.health("ecc_errors")
        count = whole(errors["uncorrected_volatile"], "uncorrected errors")
        ever = whole(errors["uncorrected_aggregate"], "uncorrected errors in all")
        evidence = board.evidence("uncorrected ECC errors", f"{count} since the driver loaded, {ever} in all", "0")
        if count == 0:
            return passed("no uncorrectable memory error since the driver loaded", evidence, on=board.on)
        words = f"{count} uncorrectable memory error{'s' if count > 1 else ''} since the driver loaded"
        if _remapped(board.maybe("remapped_rows")):
            return warned(f"{words}; a row remap took the cells out of use", evidence, on=board.on)
        return failed(words, evidence, on=board.on)

    yield from judge_boards(subject, "nvidia", judge)


@gate(
    "ras.nv.corr_volatile",
    group="ras",
    title="Few corrected memory errors",
    reads="NVML: corrected ECC errors since the driver was loaded, in all and in SRAM",
    criterion="fewer than the limits that operators of large clusters use",
    why="Corrected errors are harmless by themselves; very many announce uncorrectable ones.",
    action="Watch the count; replace the board when it keeps growing",
    source="facebookresearch/gcm check_nvidia_smi.py; Azure/azurehpc-health-checks customTests/azure_gpu_ecc.nhc",
    vendors=("nvidia",),
    level="standard",
    limits={"total": 5e7, "sram": 10_000},
)
def corr_volatile(subject: Subject) -> Iterator[Finding]:
    """Compare the counts of corrected errors with the limits."""
    total = subject.limit("ras.nv.corr_volatile", "total", 5e7)
    sram_limit = subject.limit("ras.nv.corr_volatile", "sram", 10_000)

    def judge(board: Board) -> Finding:
        count = whole(board.health("ecc_errors")["corrected_volatile"], "corrected errors")
        sram = board.maybe("sram")
        in_sram = 0 if sram is None else whole(sram["correctable"], "corrected errors in SRAM")
        evidence = board.evidence(
            "corrected ECC errors", f"{count}, in SRAM {in_sram}", f"below {total:g}, in SRAM below {sram_limit:g}"
        )
        if count >= total or in_sram >= sram_limit:
            return warned("very many corrected memory errors since the driver loaded", evidence, on=board.on)
        return passed("few or no corrected memory errors since the driver loaded", evidence, on=board.on)

    yield from judge_boards(subject, "nvidia", judge)


@gate(
    "ras.nv.sram",
    group="ras",
    title="SRAM errors are below the board's own threshold",
    reads="NVML: SRAM ECC status: the threshold flag, uncorrectable errors in all",
    criterion="the flag is not set, and at most 4 uncorrectable errors in the board's life",
    why="SRAM has no spare rows: a board over its threshold is to be replaced.",
    action="Replace the board: this is the vendor's own criterion for a return",
    source="NVIDIA/DCGM sram_threshold; scitix/sichek check_ecc_sram",
    vendors=("nvidia",),
    level="standard",
    severity="fail",
    limits={"uncorrectable": 4},
)
def sram(subject: Subject) -> Iterator[Finding]:
    """Look at the flag and the count. The count alone warns: DCGM and sichek disagree about it."""
    limit = subject.limit("ras.nv.sram", "uncorrectable", 4)

    def judge(board: Board) -> Finding:
        status = board.health("sram")
        exceeded = flag(status["threshold_exceeded"])
        count = whole(status["uncorrectable_aggregate"], "uncorrectable errors in SRAM")
        evidence = board.evidence(
            "sram", f"threshold exceeded: {exceeded}, uncorrectable in all: {count}", f"False, at most {limit:g}"
        )
        if exceeded:
            return failed("the board says that its SRAM errors exceed the threshold", evidence, on=board.on)
        if count > limit:
            return warned(f"{count} uncorrectable SRAM errors in the board's life", evidence, on=board.on)
        return passed("SRAM errors are below the threshold", evidence, on=board.on)

    yield from judge_boards(subject, "nvidia", judge)


def _remapped(rows: Any) -> bool:
    """Whether a remap is in force that took out what failed: nothing pends, nothing failed to remap."""
    if not isinstance(rows, dict):
        return False
    uncorrectable = rows.get("uncorrectable")
    some = isinstance(uncorrectable, int) and uncorrectable > 0
    return some and rows.get("pending") is False and rows.get("failure") is False


def _switch(value: Any) -> str:
    return "on" if flag(value) else "off"
