"""Modes of NVIDIA's boards that tests stumble over: MIG, compute mode, persistence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.boards import Board, flag, judge_boards
from pytest_gpucoexist.gates.container.place import container_of
from pytest_gpucoexist.gates.findings import Finding, failed, passed, warned
from pytest_gpucoexist.gates.registry import gate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject

# SMBIOS, 7.4.1: portable, laptop, notebook, sub notebook, tablet, convertible, detachable.
_NOTEBOOKS = {"8", "9", "10", "14", "30", "31", "32"}
_COMPUTE_MODES = {"default", "exclusive thread", "exclusive process", "prohibited"}


@gate(
    "drv.nv.mig",
    group="driver",
    title="MIG is in the mode that was asked for",
    reads="NVML: the MIG mode now and after the next reset, and the instances that there are",
    criterion="both are the same; at least one instance where MIG is on",
    why="CUDA sees no device on a board whose MIG is on and that has no instance.",
    action="nvidia-smi -mig 0 (or make instances: nvidia-smi mig -cgi …), then reset the GPU",
    source="NVIDIA/DCGM nvvs (tests that MIG does not allow); MIG User Guide",
    vendors=("nvidia",),
    level="standard",
    severity="fail",
)
def mig(subject: Subject) -> Iterator[Finding]:
    """Compare both modes, and look for instances."""

    def judge(board: Board) -> Finding:
        mode = board.field("mig")
        now, pending = flag(mode["current"]), flag(mode["pending"])
        evidence = board.evidence("MIG mode", f"{_word(now)} now, {_word(pending)} after a reset", "the same")
        if now != pending:
            words = f"MIG is {_word(now)}, and will be {_word(pending)} after a reset"
            return warned(words, evidence, on=board.on)
        if not now:
            return passed("MIG is off", evidence, on=board.on)
        instances = board.field("mig_devices")
        if not isinstance(instances, list):
            raise ValueError(f"its instances are {instances!r:.60}")  # noqa: TRY004
        if not instances:
            return warned("MIG is on and there is no instance: CUDA sees no device", evidence, on=board.on)
        return passed(f"MIG is on, with {len(instances)} instances", evidence, on=board.on)

    yield from judge_boards(subject, "nvidia", judge)


@gate(
    "drv.nv.compute_mode",
    group="driver",
    title="Several processes may use the GPU",
    reads="NVML: the compute mode",
    criterion="default; exclusive warns, prohibited fails",
    why="In exclusive mode the second worker of pytest-xdist gets no context; prohibited gives none to anybody.",
    action="nvidia-smi -c 0 -i ADDRESS",
    source="nvml.h nvmlComputeMode_t",
    vendors=("nvidia",),
    level="standard",
)
def compute_mode(subject: Subject) -> Iterator[Finding]:
    """Look at the mode."""

    def judge(board: Board) -> Finding:
        mode = board.field("compute_mode")
        if mode not in _COMPUTE_MODES:
            raise ValueError(f"its compute mode is {mode!r:.60}")
        evidence = board.evidence("compute mode", mode, "default")
        if mode == "prohibited":
            return failed("its compute mode gives no process a context", evidence, on=board.on)
        if mode != "default":
            return warned("its compute mode gives a context to one process only", evidence, on=board.on)
        return passed("several processes may use it", evidence, on=board.on)

    yield from judge_boards(subject, "nvidia", judge)


@gate(
    "drv.nv.persistence",
    group="driver",
    title="The driver keeps the GPU initialised",
    reads="NVML: persistence mode, and whether a display keeps the GPU in use",
    criterion="on, or a display is active; in a container and on a notebook it may be off",
    why="Without it each first use takes seconds, and counters of errors start again from zero.",
    action="Enable nvidia-persistenced, or nvidia-smi -pm 1",
    source="NVIDIA/DCGM nvvs/src/Software.cpp checkPersistenceMode; Azure customTests/azure_gpu_persistence.nhc",
    vendors=("nvidia",),
    level="standard",
)
def persistence(subject: Subject) -> Iterator[Finding]:
    """Look at the mode; a GPU that shows a desktop stays initialised anyway, that of a notebook is to sleep."""
    container = container_of(subject)
    notebook = (subject.read("/sys/class/dmi/id/chassis_type", 64).text or "").strip() in _NOTEBOOKS

    def judge(board: Board) -> Finding:
        on = flag(board.field("persistence"))
        display = board.maybe("display_active") is True
        evidence = board.evidence("persistence mode", f"{_word(on)}, display active: {display}", "on")
        if on:
            return passed("persistence mode is on", evidence, on=board.on)
        if display:
            return passed("a display keeps it initialised", evidence, on=board.on)
        if container is not None:
            return passed("persistence mode is off, which is the host's to set", evidence, on=board.on)
        if notebook:
            return passed("persistence mode is off, so that a notebook's GPU can sleep", evidence, on=board.on)
        return warned("persistence mode is off: each first use initialises the GPU anew", evidence, on=board.on)

    yield from judge_boards(subject, "nvidia", judge)


def _word(on: bool) -> str:
    return "on" if on else "off"
