"""Processes and memory of others on NVIDIA's GPUs. A shared workstation is used by right: these gates only warn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.gates.boards import Board, judge_boards, whole
from pytest_gpucoexist.gates.findings import Finding, passed, unknown, warned
from pytest_gpucoexist.gates.occupancy_l1.ours import is_ours, name_of, shown
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.programs import DESKTOP

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject


@gate(
    "proc.nv.compute",
    group="occupancy",
    title="Nobody else computes on the GPU",
    reads="NVML: compute and MPS processes; /proc for their names, without this process and its family",
    criterion="none",
    why="Somebody else's work takes memory and time: tests run out of the one and measure the other.",
    action="Wait, choose another GPU, or ask its owner",
    source="facebookresearch/gcm check_nvidia_smi.py running_procs; leptonai/gpud processes",
    vendors=("nvidia",),
    level="standard",
)
def compute(subject: Subject) -> Iterator[Finding]:
    """Name the processes of others; a PID that `/proc` does not show may be of another container, or a ghost."""

    def judge(board: Board) -> Finding:
        pids = {whole(each["pid"], "a PID") for each in _processes(board) if each["kind"] == "compute"}
        mps = board.maybe("mps_processes")
        pids |= {whole(pid, "a PID") for pid in mps or ()}
        return _judged(subject, board, pids, "computes on it", "nobody else computes on it")

    yield from judge_boards(subject, "nvidia", judge)


@gate(
    "proc.nv.graphics",
    group="occupancy",
    title="Only the desktop draws on the GPU",
    reads="NVML: graphics processes; /proc for their names",
    criterion="none but servers and compositors",
    why="Games and browsers take memory and time as much as computation does.",
    action="Close it, or test in a session without a desktop",
    source="NVIDIA/DCGM nvvs/src/Software.cpp checkForGraphicsProcesses",
    vendors=("nvidia",),
    level="standard",
)
def graphics(subject: Subject) -> Iterator[Finding]:
    """Name the processes that are no part of a desktop."""

    def judge(board: Board) -> Finding:
        pids = {whole(each["pid"], "a PID") for each in _processes(board) if each["kind"] == "graphics"}
        others = {pid for pid in pids if not (shown(subject, pid) and name_of(subject, pid) in DESKTOP)}
        return _judged(subject, board, others, "draws on it", "nobody but a desktop draws on it")

    yield from judge_boards(subject, "nvidia", judge)


@gate(
    "proc.nv.mem_used",
    group="occupancy",
    title="The GPU's memory is free",
    reads="NVML: memory in use without what the driver reserves, and whether a display is active",
    criterion="15 MiB without a display, 5 % of the memory with one",
    why="Memory that is not given back after a crash, or that others hold, is missing to the tests.",
    action="End what holds it (fuser -v /dev/nvidia*); after a crash, reset the GPU",
    source="facebookresearch/gcm gpu_mem_usage",
    vendors=("nvidia",),
    level="standard",
    limits={"headless_mib": 15, "display_percent": 5},
)
def mem_used(subject: Subject) -> Iterator[Finding]:
    """Compare the memory in use with what an idle board needs. The memory of this run's own processes is left out."""
    mib = subject.limit("proc.nv.mem_used", "headless_mib", 15)
    percent = subject.limit("proc.nv.mem_used", "display_percent", 5)

    def judge(board: Board) -> Finding:
        memory = board.field("memory")
        total, used = whole(memory["total"], "memory"), whole(memory["used"], "used memory")
        reserved = whole(board.health("reserved_memory"), "reserved memory")
        own = sum(each["memory"] or 0 for each in _processes(board) if is_ours(subject, each["pid"]))
        told = sum(each["memory"] or 0 for each in _processes(board) if _named(subject, each["pid"]))
        rest = max(0, used - reserved - own)
        desktop = board.maybe("display_active") is True or any(each["kind"] == "graphics" for each in _processes(board))
        limit = total * percent / 100 if desktop else mib * 2**20 * max(1, _instances(board))
        evidence = board.evidence(
            f"memory of {board.gpu.key}",
            f"{rest >> 20} MiB of {total >> 20} MiB in use",
            f"at most {int(limit) >> 20} MiB",
        )
        if rest > limit and rest - told <= limit:
            # One problem is said once, by the gate that can name its cause.
            words = "its memory is in use by processes that proc.nv.compute and proc.nv.graphics judge"
            return passed(words, evidence, on=board.on)
        if rest > limit:
            return warned("more of its memory is in use than an idle board needs", evidence, on=board.on)
        return passed("its memory is free", evidence, on=board.on)

    yield from judge_boards(subject, "nvidia", judge)


def _named(subject: Subject, pid: int) -> bool:
    """Whether a process is somebody else's, and has a name here."""
    return shown(subject, pid) and not is_ours(subject, pid)


def _processes(board: Board) -> list[dict[str, Any]]:
    found = board.field("processes")
    instances = board.cells.get("mig_devices")
    parts = instances.get("value") if isinstance(instances, dict) else None
    for part in parts if isinstance(parts, list) else ():
        cell = part.get("processes")
        found = [*found, *(cell.get("value") or ())] if isinstance(cell, dict) else found
    if not all(isinstance(each, dict) for each in found):
        raise ValueError(f"its processes are {found!r:.60}")
    return list(found)


def _instances(board: Board) -> int:
    """Count MIG instances: each keeps some memory for itself."""
    cell = board.cells.get("mig_devices")
    parts = cell.get("value") if isinstance(cell, dict) else None
    return len(parts) if isinstance(parts, list) else 0


def _judged(subject: Subject, board: Board, pids: set[int], verb: str, alone: str) -> Finding:
    others = sorted(pid for pid in pids if not is_ours(subject, pid))
    known = [pid for pid in others if shown(subject, pid)]
    listed = ", ".join(f"{name_of(subject, pid)} ({pid})" for pid in known)
    evidence = board.evidence("processes", listed or f"{len(others)} that /proc does not show", "none")
    if known:
        return warned(f"{listed} {verb}", evidence, on=board.on)
    if others:
        some = "1 process uses" if len(others) == 1 else f"{len(others)} processes use"
        words = f"{some} it under a PID that /proc does not show: of another user or container, or gone"
        return unknown(words, evidence, on=board.on)
    return passed(alone, board.evidence("processes", "none of others", "none"), on=board.on)
