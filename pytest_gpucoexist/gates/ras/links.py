"""Errors on the links between GPUs: NVLink and XGMI."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.boards import Board, judge_boards, whole
from pytest_gpucoexist.gates.findings import Finding, passed, skipped, unknown, warned
from pytest_gpucoexist.gates.registry import gate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject

_XGMI = {1: "one error", 2: "several errors"}


@gate(
    "ras.nv.nvlink_err",
    group="ras",
    title="No NVLink has recovered from errors",
    reads="NVML: recoveries, replays and CRC errors of each NVLink since the driver was loaded",
    criterion="no recovery; replays and CRC errors are only recorded, for want of a second reading",
    why="A link that recovers stalls both GPUs and announces a cable or bridge that is loose.",
    action="Reseat the bridge or the board; watch the counters under load",
    source="NVIDIA/DCGM pcie plugin (NVLink recovery and CRC thresholds)",
    vendors=("nvidia",),
    level="standard",
    limits={"recoveries": 0},
)
def nvlink_err(subject: Subject) -> Iterator[Finding]:
    """Look at the links that are up. Counters are since the driver loaded, so a rate cannot be told."""
    limit = subject.limit("ras.nv.nvlink_err", "recoveries", 0)

    def judge(board: Board) -> Finding:
        links = board.health("nvlinks")
        if not links:
            return skipped("no NVLink of this board is up", on=board.on)
        told = [(link["link"], link["recovery"]) for link in links if "value" in link["recovery"]]
        if not told:
            return unknown("the counters of its NVLinks could not be read", on=board.on)
        counts = {number: whole(cell["value"], "recoveries") for number, cell in told}
        evidence = board.evidence(
            "NVLink recoveries", ", ".join(f"link {number}: {count}" for number, count in counts.items()), f"{limit:g}"
        )
        bad = [str(number) for number, count in counts.items() if count > limit]
        if bad:
            words = f"NVLink{'s' if len(bad) > 1 else ''} {', '.join(bad)} recovered from errors"
            return warned(words, evidence, on=board.on)
        return passed(f"no recovery on {len(counts)} NVLink{'s' * (len(counts) > 1)}", evidence, on=board.on)

    yield from judge_boards(subject, "nvidia", judge)


@gate(
    "ras.amd.xgmi",
    group="ras",
    title="No XGMI errors",
    reads="AMD SMI: the XGMI error status since it was last reset",
    criterion="no error",
    why="Copies between GPUs over such a link may be slow or wrong.",
    action="Note it, then reset the counter (amdsmi_reset_gpu_xgmi_error) and look again under load",
    source="ROCm/amdsmi amdsmi_gpu_xgmi_error_status; Azure/azurehpc-health-checks azure_gpu_amd_xgmi.nhc",
    vendors=("amd",),
    level="standard",
)
def xgmi(subject: Subject) -> Iterator[Finding]:
    """Look at the status that AMD SMI keeps."""

    def judge(board: Board) -> Finding:
        status = whole(board.health("xgmi_error"), "the XGMI error status")
        evidence = board.evidence("XGMI error status", status, "0")
        if status == 0:
            return passed("no XGMI error", evidence, on=board.on)
        if status not in _XGMI:
            return unknown(f"the XGMI error status is {status}, which is none", evidence, on=board.on)
        return warned(f"{_XGMI[status]} on its XGMI links", evidence, on=board.on)

    yield from judge_boards(subject, "amd", judge)
