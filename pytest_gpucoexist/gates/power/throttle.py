"""What holds a board back at this moment. Nothing holds an idle board back, so a bit that is set tells something."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.gates.boards import Board, judge_boards, whole
from pytest_gpucoexist.gates.findings import Finding, passed, skipped, unknown, warned
from pytest_gpucoexist.gates.pcie.folders import asleep, folder
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.verdicts import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.model.machine import Gpu

# kernel amdgpu_smu.h, SMU_THROTTLER_…: the same on every generation.
_HOTSPOT = 36
_BITS = {
    **dict.fromkeys(range(8), "power"),
    **dict.fromkeys(range(16, 24), "current"),
    **dict.fromkeys(range(32, 44), "temperature"),
    **dict.fromkeys(range(44, 48), "an external signal of heat"),
}
_VIOLATIONS = {
    "prochot": "an external signal of heat",
    "power": "power",
    "socket": "temperature",
    "regulator": "temperature of the regulator",
    "memory": "temperature of the memory",
}


@gate(
    "pwr.amd.throttle",
    group="power",
    title="Nothing holds AMD boards back",
    reads="AMD SMI: violations now, and the throttle mask of gpu_metrics",
    criterion="no limit of power, current or temperature in force",
    why="Measurements on a board that is held back are not those of the board.",
    action="Look at fans and at the power supply; wait until the board is idle",
    source="flightlessmango/MangoHud#1690 (RDNA 3 sets the hotspot bit when cold); kernel amdgpu_smu.h",
    vendors=("amd",),
    level="standard",
    limits={"hotspot": 90},
)
def amd_throttle(subject: Subject) -> Iterator[Finding]:
    """Look at both; a hotspot bit of a board whose hotspot is cool is RDNA 3's own way, and is ignored."""
    cool = subject.limit("pwr.amd.throttle", "hotspot", 90)

    def judge(board: Board) -> Finding:
        violations = board.maybe("violations")
        held = []
        if isinstance(violations, dict):
            held = [words for name, words in _VIOLATIONS.items() if violations.get(name) is True]
        if violations is None:
            mask = whole(board.health("throttle_status"), "the throttle mask")
            if mask >> _HOTSPOT & 1 and _hotspot(board) < cool:
                mask &= ~(1 << _HOTSPOT)
            held = list(dict.fromkeys(words for bit, words in _BITS.items() if mask >> bit & 1))
            evidence = board.evidence("throttle mask", f"{mask:#x}", "0x0")
        else:
            evidence = board.evidence("violations", ", ".join(held) or "none", "none")
        if held:
            return warned(f"held back now by {', '.join(held)}", evidence, on=board.on)
        return passed("nothing holds it back now", evidence, on=board.on)

    yield from judge_boards(subject, "amd", judge)


def _hotspot(board: Board) -> float:
    """Return the temperature of the hotspot; infinite where it is not known, so that the bit counts."""
    temperatures: Any = board.maybe("temperatures")
    now = temperatures.get("hotspot", {}).get("now") if isinstance(temperatures, dict) else None
    return float("inf") if isinstance(now, bool) or not isinstance(now, int) else now


@gate(
    "pwr.intel.throttle",
    group="power",
    title="Nothing holds Intel boards back",
    reads="i915: gt/gt*/throttle_reason_*; xe: device/tile*/gt*/freq*/throttle/reason_*",
    criterion="no reason, or pl1 alone, which is the normal power limit",
    why="Measurements on a board that is held back are not those of the board.",
    action="Look at cooling and at the power limits of the firmware",
    source="intel/xpumanager cmd_health.cpp; kernel i915 intel_gt_sysfs_pm.c, xe_gt_throttle.c",
    vendors=("intel",),
    level="standard",
)
def intel_throttle(subject: Subject) -> Iterator[Finding]:
    """Read the reasons that the kernel driver shows for each engine group."""
    some = False
    for gpu in subject.gpus("intel"):
        some = True
        if gpu.pci_address is not None and asleep(subject, gpu):
            yield skipped("asleep; it is left asleep", on=[gpu])
            continue
        if gpu.kind == "integrated" and subject.wanted("intel") is None:
            # A notebook's processor holds its own GPU back all the time.
            yield skipped("nothing here asks for the processor's own GPU", on=[gpu])
            continue
        files = _reason_files(subject, gpu)
        if not files:
            yield skipped("its driver shows no reasons for throttling", on=[gpu])
            continue
        read = {path: (subject.read(path).text or "").strip() for path in files}
        odd = [path for path, value in read.items() if value not in {"0", "1"}]
        reasons = sorted({_reason(path) for path, value in read.items() if value == "1"} - {"status"})
        evidence = Evidence(
            source=f"{len(files)} files such as {files[0]}", found=", ".join(reasons) or "none", expected="none"
        )
        if set(reasons) - {"pl1"}:
            yield warned(f"held back now by {', '.join(reasons)}", evidence, on=[gpu])
        elif odd:
            yield unknown(f"{len(odd)} of {len(files)} reasons could not be read", evidence, on=[gpu])
        else:
            yield passed(
                "nothing but its normal power limit" if reasons else "nothing holds it back now", evidence, on=[gpu]
            )
    if not some:
        yield skipped("no Intel GPU here")


def _reason_files(subject: Subject, gpu: Gpu) -> list[str]:
    found = []
    if gpu.drm is not None and gpu.drm.card is not None:
        gts = f"/sys/class/drm/{gpu.drm.card}/gt"
        for gt in subject.names(gts):
            names = subject.names(f"{gts}/{gt}")
            found += [f"{gts}/{gt}/{name}" for name in names if name.startswith("throttle_reason_")]
    bases = [folder(subject, gpu)] if gpu.pci_address is not None else []
    if gpu.drm is not None and gpu.drm.card is not None and not bases:
        bases = [f"/sys/class/drm/{gpu.drm.card}/device"]
    for base in bases:
        for tile in _starting(subject, base, "tile"):
            for gt in _starting(subject, tile, "gt"):
                for frequency in _starting(subject, gt, "freq"):
                    throttle = f"{frequency}/throttle"
                    found += [f"{throttle}/{name}" for name in subject.names(throttle) if name.startswith("reason_")]
    return found


def _starting(subject: Subject, base: str, stem: str) -> list[str]:
    return [f"{base}/{name}" for name in subject.names(base) if name.startswith(stem) and name[len(stem) :].isdigit()]


def _reason(path: str) -> str:
    return path.rpartition("/")[2].removeprefix("throttle_").removeprefix("reason_")
