"""What NVIDIA's boards did about memory that failed: rows remapped (Ampere and later), pages retired (before)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.boards import Board, NotTold, flag, judge_boards, whole
from pytest_gpucoexist.gates.findings import Finding, failed, passed, warned
from pytest_gpucoexist.gates.registry import gate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject

_REPLACE = "Replace the board: its spare rows are used up, which is the vendor's criterion for a return"


@gate(
    "ras.nv.row_remap",
    group="ras",
    title="Row remaps are in force",
    reads="NVML: remapped rows, whether one waits for a reset, whether one failed",
    criterion="none waits, none failed, fewer than 512 rows for uncorrectable errors",
    why="Until a pending remap is applied the bad cells stay in use; after a failed one they stay for ever.",
    action=_REPLACE,
    source="NVIDIA/DCGM nvvs/src/Software.cpp; leptonai/gpud remapped-rows; Azure/azurehpc-health-checks",
    vendors=("nvidia",),
    level="standard",
    severity="fail",
    blocking=True,
    limits={"uncorrectable": 512},
)
def row_remap(subject: Subject) -> Iterator[Finding]:
    """Look at the rows that were remapped, and at what still has to happen."""
    limit = subject.limit("ras.nv.row_remap", "uncorrectable", 512)

    def judge(board: Board) -> Finding:
        rows = board.health("remapped_rows")
        pending, failure = flag(rows["pending"]), flag(rows["failure"])
        correctable, uncorrectable = (whole(rows[name], name) for name in ("correctable", "uncorrectable"))
        evidence = board.evidence(
            "remapped rows",
            f"{uncorrectable} uncorrectable, {correctable} correctable, pending {pending}, failure {failure}",
            f"pending False, failure False, fewer than {limit:g} uncorrectable",
        )
        if failure:
            return failed("a row of memory could not be remapped: no spare row was left", evidence, on=board.on)
        if uncorrectable >= limit:
            return failed(f"{uncorrectable} rows of memory are remapped", evidence, on=board.on)
        if pending:
            address = board.gpu.pci_address or "ADDRESS"
            action = f"Reset the GPU when nothing uses it: nvidia-smi --gpu-reset -i {address}; or reboot"
            return failed(
                "a row remap waits for a reset of the GPU: cells that failed are still in use",
                evidence,
                on=board.on,
                action=action,
            )
        return passed("no row remap waits, none failed", evidence, on=board.on)

    yield from judge_boards(subject, "nvidia", judge)


@gate(
    "ras.nv.row_histogram",
    group="ras",
    title="Every bank of memory has spare rows",
    reads="NVML: banks by the spare rows that are left",
    criterion="no bank without one",
    why="The next error in such a bank cannot be remapped (Xid 64).",
    action="Plan to replace the board",
    source="nvml.h nvmlRowRemapperHistogramValues_t; Xid 64, 'All reserved rows for bank are remapped'",
    vendors=("nvidia",),
    level="standard",
)
def row_histogram(subject: Subject) -> Iterator[Finding]:
    """Count the banks that have no spare row left."""

    def judge(board: Board) -> Finding:
        banks = {name: whole(count, name) for name, count in board.health("row_histogram").items()}
        without = banks["none"]
        evidence = board.evidence(
            "row histogram", ", ".join(f"{name} {count}" for name, count in banks.items()), "none 0"
        )
        if without:
            return warned(f"{without} banks of memory have no spare row left", evidence, on=board.on)
        return passed("every bank of memory has spare rows", evidence, on=board.on)

    yield from judge_boards(subject, "nvidia", judge)


@gate(
    "ras.nv.retired_pages",
    group="ras",
    title="Few retired pages, and none waits",
    reads="NVML: pages retired for single-bit and double-bit errors, and whether one waits for a reboot",
    criterion="none waits; fewer than 15, and never 63",
    why="A page that waits is still in use; a board with 63 or more is to be replaced.",
    action="Reboot to retire the page; replace the board when there are 63 or more",
    source="NVIDIA/DCGM nvvs/src/Software.cpp; facebookresearch/gcm",
    vendors=("nvidia",),
    level="standard",
    severity="fail",
    limits={"warn": 15, "fail": 63},
)
def retired_pages(subject: Subject) -> Iterator[Finding]:
    """Count retired pages. Boards that remap rows have none."""
    warn, fail = (subject.limit("ras.nv.retired_pages", name, n) for name, n in (("warn", 15), ("fail", 63)))

    def judge(board: Board) -> Finding:
        pages = board.health("retired_pages")
        single, double = (whole(pages[name], name) for name in ("single_bit", "double_bit"))
        try:
            pending = flag(board.health("retired_pending"))
        except NotTold as why:
            if why.status != "unsupported":
                raise
            pending = False
        evidence = board.evidence(
            "retired pages",
            f"{single} single-bit, {double} double-bit, pending {pending}",
            f"fewer than {warn:g}, pending False",
        )
        total = single + double
        if pending:
            return failed("a page of memory waits for a reboot to be retired", evidence, on=board.on)
        if total >= fail:
            return failed(f"{total} pages of memory are retired", evidence, on=board.on)
        if total >= warn:
            return warned(f"{total} pages of memory are retired", evidence, on=board.on)
        return passed("few or no retired pages, and none waits", evidence, on=board.on)

    yield from judge_boards(subject, "nvidia", judge)


@gate(
    "ras.nv.mem_unrepairable",
    group="ras",
    title="No memory that cannot be repaired",
    reads="NVML: the flag for unrepairable memory; repairs of channels and TPCs that wait for a reset",
    criterion="the flag is not set and no repair waits",
    why="Such a board gives errors again and again, whatever is reset.",
    action="Replace the board",
    source="NVIDIA/DCGM memory_health; nvml.h nvmlDeviceGetUnrepairableMemoryFlag_v1",
    vendors=("nvidia",),
    level="standard",
    severity="fail",
)
def mem_unrepairable(subject: Subject) -> Iterator[Finding]:
    """Look at the flag; where a driver has only the status of repairs, at that."""

    def judge(board: Board) -> Finding:
        repair = board.maybe("repair")
        try:
            broken = flag(board.health("unrepairable_memory"))
            evidence = board.evidence("unrepairable memory", broken, "False")
        except NotTold:
            if repair is None:
                raise
            broken = False
            evidence = board.evidence("repairs that wait", "see below", "none")
        if broken:
            return failed("the board has memory that cannot be repaired", evidence, on=board.on)
        if repair is not None:
            waiting = [name.removesuffix("_pending") for name, value in repair.items() if flag(value)]
            evidence = board.evidence("repairs that wait", ", ".join(waiting) or "none", "none")
            if waiting:
                action = "Reset the GPU when nothing uses it, or reboot, so that the repair is made"
                return warned(
                    f"a repair of the board waits for a reset: {', '.join(waiting)}",
                    evidence,
                    on=board.on,
                    action=action,
                )
        return passed("no unrepairable memory, and no repair waits", evidence, on=board.on)

    yield from judge_boards(subject, "nvidia", judge)
