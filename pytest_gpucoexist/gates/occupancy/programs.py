"""Programs that share a GPU in their own way: MPS, monitors, profilers; and whether the GPUs are idle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.boards import Board, judge_boards
from pytest_gpucoexist.gates.findings import Finding, passed, skipped, unknown, warned
from pytest_gpucoexist.gates.occupancy.display import shows_desktop
from pytest_gpucoexist.gates.occupancy.table import Table, ours, process_table
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.programs import MONITORS, MPS, PROFILERS
from pytest_gpucoexist.model.verdicts import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.model.machine import Gpu

__all__ = ["monitors", "mps", "util_idle"]


@gate(
    "proc.mps",
    group="occupancy",
    title="CUDA's MPS does not run, or somebody declared it",
    reads="names in /proc/*/stat; CUDA_MPS_PIPE_DIRECTORY",
    criterion="nvidia-cuda-mps-control does not run unless CUDA_MPS_PIPE_DIRECTORY is set here",
    why="All clients of an MPS server share one context: a fault of one test ends the work of all, other users' too.",
    action="End it (`echo quit | nvidia-cuda-mps-control`), or set CUDA_MPS_PIPE_DIRECTORY to show that it is meant.",
    source="docs.nvidia.com Multi-Process Service: memory protection, error containment",
    vendors=("nvidia",),
)
def mps(subject: Subject) -> Iterator[Finding]:
    """Warn of an MPS server that nobody declared."""
    table = process_table(subject)
    if table.problem is not None:
        yield unknown(table.problem, Evidence(source="/proc", found=table.problem))
        return
    running = _named(table, MPS)
    declared = subject.host.environ.get("CUDA_MPS_PIPE_DIRECTORY")
    evidence = (
        Evidence(source="/proc/*/stat", found=", ".join(running) or "no nvidia-cuda-mps-*"),
        Evidence(source="CUDA_MPS_PIPE_DIRECTORY", found=declared or "unset"),
    )
    if running and not declared:
        yield warned(f"MPS runs ({', '.join(running)}), and CUDA_MPS_PIPE_DIRECTORY is not set", *evidence)
    elif running:
        yield passed(f"MPS runs and is declared by CUDA_MPS_PIPE_DIRECTORY={declared}", *evidence)
    elif table.gap is not None:
        yield unknown(f"no MPS seen; {table.gap}", *evidence)
    else:
        yield passed("MPS does not run", *evidence)


@gate(
    "proc.monitors",
    group="occupancy",
    title="No profiler holds the GPUs",
    reads="names in /proc/*/stat",
    criterion="no profiler runs outside of this run; monitors are recorded",
    why="A profiler locks the counters, serialises kernels and holds clocks; a monitor can too, and wakes GPUs.",
    action="End the profiler, or measure later.",
    source="NVIDIA/DCGM profiling pause; NVIDIA/NVSentinel#1748",
    severity="info",
)
def monitors(subject: Subject) -> Iterator[Finding]:
    """Record monitors, warn of profilers."""
    table = process_table(subject)
    if table.problem is not None:
        yield unknown(table.problem, Evidence(source="/proc", found=table.problem))
        return
    mine = ours(subject)
    profilers = _named(table, PROFILERS, but=mine)
    watching = _named(table, MONITORS, but=mine)
    found = ", ".join([*profilers, *watching]) or f"{len(table.processes)} processes, none of them known"
    evidence = Evidence(source="/proc/*/stat", found=found, expected="no profiler")
    if profilers:
        yield warned(f"profilers run: {', '.join(profilers)}", evidence)
    elif watching:
        yield passed(f"monitors run: {', '.join(watching)}", evidence)
    elif table.gap is not None:
        yield unknown(f"no monitor or profiler seen; {table.gap}", evidence)
    else:
        yield passed("no known monitor or profiler runs", evidence)


@gate(
    "proc.util_idle",
    group="occupancy",
    title="The GPUs are idle",
    reads="gpu_busy_percent of amdgpu; NVML's utilisation",
    criterion="utilisation below the limit; that of a card that shows a desktop below a higher one",
    why="A GPU that works for somebody else gives results that cannot be compared, and can be slow to answer.",
    action="Wait for the other work to end, or choose another GPU.",
    source="NVIDIA/DCGM#272",
    level="standard",
    severity="info",
    limits={"percent": 10.0, "desktop_percent": 30.0},
)
def util_idle(subject: Subject) -> Iterator[Finding]:
    """Warn of GPUs that are busy at this moment."""
    limit = subject.limit("proc.util_idle", "percent", 10.0)
    desktop = subject.limit("proc.util_idle", "desktop_percent", 30.0)
    if any(gpu.driver == "nvidia" for gpu in subject.functions("nvidia")):
        yield from judge_boards(subject, "nvidia", lambda board: _nvml(board, limit, desktop))
    if not subject.functions():
        yield skipped("the GPUs here have no PCI function; their utilisation is not asked for")
    for gpu in subject.functions():
        if gpu.driver == "nvidia":
            continue
        if gpu.runtime_status in {"suspended", "suspending"}:
            yield skipped("asleep, so idle; this gate does not wake it", on=[gpu])
            continue
        if gpu.driver != "amdgpu":
            yield skipped(f"driver {gpu.driver or 'none'} tells no utilisation in a file", on=[gpu])
            continue
        path = f"/sys/bus/pci/devices/{gpu.pci_address}/gpu_busy_percent"
        text = subject.read(path)
        if text.status == "absent":
            yield skipped("this GPU has no gpu_busy_percent", on=[gpu])
            continue
        if text.text is None or not text.text.isdecimal() or len(text.text) > 3 or int(text.text) > 100:
            found = text.detail if text.text is None else ascii(text.text[:20])
            yield unknown(f"gpu_busy_percent tells nothing: {found}", Evidence(source=path, found=str(found)), on=[gpu])
            continue
        most = max(limit, desktop) if shows_desktop(subject, gpu) else limit
        evidence = Evidence(source=path, found=f"{text.text} %", expected=f"below {most:g} %")
        yield _judged(int(text.text), most, evidence, [gpu])


def _nvml(board: Board, limit: float, desktop: float) -> Finding:
    if board.maybe("display_active") is True:
        limit = max(limit, desktop)
    told = board.health("utilization")
    busy = told.get("gpu") if isinstance(told, dict) else None
    evidence = board.evidence("utilization", f"{busy} %", f"below {limit:g} %")
    if not isinstance(busy, int) or not 0 <= busy <= 100:
        return unknown(f"the utilisation makes no sense: {told!r:.60}", evidence, on=board.on)
    return _judged(busy, limit, evidence, board.on)


def _judged(busy: int, limit: float, evidence: Evidence, on: Sequence[Gpu]) -> Finding:
    if busy >= limit:
        return warned(f"{busy} % busy", evidence, on=on)
    return passed(f"less than {limit:g} % busy", evidence, on=on)


def _named(table: Table, names: frozenset[str], *, but: frozenset[int] = frozenset()) -> list[str]:
    return [f"{each.name} ({pid})" for pid, each in table.processes.items() if each.name in names and pid not in but]
