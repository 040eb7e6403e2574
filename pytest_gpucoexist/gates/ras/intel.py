"""What Level Zero's Sysman says about the memory of Intel's boards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.boards import no_reply
from pytest_gpucoexist.gates.findings import Finding, failed, passed, skipped, unknown, warned
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.gates.vendors import vendor_reply
from pytest_gpucoexist.model.verdicts import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.model.machine import Gpu

# zes_api.h, zes_mem_health_t.
_OK, _DEGRADED, _CRITICAL, _REPLACE = 1, 2, 3, 4


@gate(
    "ras.intel.mem_health",
    group="ras",
    title="Memory of Intel boards is healthy",
    reads="Level Zero Sysman: zesMemoryGetState.health of each memory module",
    criterion="OK; degraded warns",
    why="Critical memory has lost data; the driver wants the board replaced.",
    action="Replace the board",
    source="intel/xpumanager ial/cmn/cmd_health.cpp; zes_api.h zes_mem_health_t",
    vendors=("intel",),
    level="standard",
    severity="fail",
)
def mem_health(subject: Subject) -> Iterator[Finding]:
    """Judge the modules of all boards; the board is named where there is only one."""
    gpus = subject.gpus("intel")
    on: list[Gpu] = gpus if len(gpus) == 1 else []
    reply = vendor_reply(subject, "intel")
    if reply.status != "ok":
        yield no_reply(reply, "Level Zero", tuple(on))
        return
    memories = reply.data.get("memories") if isinstance(reply.data, dict) else None
    if not isinstance(memories, list):
        yield unknown("what Level Zero says makes no sense: no list of memories", on=on)
        return
    cells = [cell for board in memories if isinstance(board, list) for cell in board if isinstance(cell, dict)]
    values = [cell.get("value") for cell in cells]
    known = [value for value in values if type(value) is int and value in {_OK, _DEGRADED, _CRITICAL, _REPLACE}]
    evidence = Evidence(source="Level Zero: zesMemoryGetState", found=f"health {known}", expected="1 (OK)")
    if any(value in {_CRITICAL, _REPLACE} for value in known):
        yield failed("memory is critical or to be replaced", evidence, on=on)
    elif _DEGRADED in known:
        yield warned("memory is degraded", evidence, on=on)
    elif known:
        yield passed(f"{len(known)} memory modules are healthy", evidence, on=on)
    elif cells:
        yield unknown("Level Zero does not tell the health of memory", on=on)
    else:
        yield skipped("these boards have no memory of their own that Sysman shows", on=on)
