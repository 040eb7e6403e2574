"""Temperatures against the limits that the boards state themselves. A hot board warns, and never fails."""

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

_IDLE = 0x1
# nvml.h, nvmlClocksEventReasons.
_HEAT = {0x8: "hardware slowdown", 0x20: "software thermal slowdown", 0x40: "hardware thermal slowdown"}
_PLAUSIBLE = range(-40, 200)


@gate(
    "pwr.nv.temp",
    group="power",
    title="NVIDIA boards are below their slowdown temperature",
    reads="NVML: temperature of GPU and memory, the board's own thresholds, slowdowns in force now",
    criterion="10 degrees below the slowdown; memory below 95; below 75 when idle; no slowdown for heat",
    why="A board that slows down for heat makes timing tests wrong, and one that gets hotter switches off.",
    action="Look at fans, dust, and the boards that stand beside it",
    source="scitix/sichek check_temperature.go; leptonai/gpud temperature margin",
    vendors=("nvidia",),
    level="standard",
    limits={"margin": 10, "memory": 95, "idle": 75},
)
def nvidia_temperature(subject: Subject) -> Iterator[Finding]:
    """Compare temperatures with the thresholds of the board."""
    margin, hot_memory, hot_idle = (
        subject.limit("pwr.nv.temp", name, default) for name, default in (("margin", 10), ("memory", 95), ("idle", 75))
    )

    def judge(board: Board) -> Finding:
        now = _degrees(board.health("temperature"))
        thresholds = board.maybe("thresholds")
        slowdown = _cell(thresholds, "slowdown")
        left = board.maybe("temperature_margin")
        memory = board.maybe("memory_temperature")
        reasons = board.maybe("clocks_event_reasons")
        reasons = 0 if reasons is None else whole(reasons, "the reasons for slower clocks")
        evidence = board.evidence(
            "temperature",
            f"{now} C, slowdown at {slowdown if slowdown is not None else '?'} C, memory {memory or '?'} C",
            f"{margin:g} C below the slowdown",
        )
        heat = [words for bit, words in _HEAT.items() if reasons & bit]
        if heat:
            return warned(f"{' and '.join(heat)} in force now", evidence, on=board.on)
        if slowdown is not None and slowdown > 0 and now > slowdown - margin:
            return warned(f"{now} C, less than {margin:g} C below its slowdown at {slowdown} C", evidence, on=board.on)
        if isinstance(left, int) and slowdown is None and left < margin:
            return warned(f"{left} C below its slowdown", evidence, on=board.on)
        if memory is not None and _degrees(memory) >= hot_memory:
            return warned(f"its memory has {memory} C", evidence, on=board.on)
        if reasons & _IDLE and now >= hot_idle:
            return warned(f"{now} C although it is idle", evidence, on=board.on)
        return passed("cool enough", evidence, on=board.on)

    yield from judge_boards(subject, "nvidia", judge)


@gate(
    "pwr.amd.temp",
    group="power",
    title="AMD boards are below their critical temperature",
    reads="hwmon of each AMD GPU that is awake: temp*_input against temp*_crit",
    criterion="each sensor 10 degrees below its critical value",
    why="A board that slows down for heat makes timing tests wrong, and one that gets hotter switches off.",
    action="Look at fans, dust, and the boards that stand beside it",
    source="ROCm/ROCmValidationSuite gst; ilya-zlobintsev/LACT; kernel amdgpu_pm.c",
    vendors=("amd",),
    level="standard",
    limits={"margin": 10},
)
def amd_temperature(subject: Subject) -> Iterator[Finding]:
    """Read the sensors that amdgpu shows, in thousandths of a degree."""
    margin = subject.limit("pwr.amd.temp", "margin", 10)
    some = False
    for gpu in subject.functions("amd"):
        some = True
        on = [each for each in subject.gpus("amd") if each.pci_address == gpu.pci_address]
        if asleep(subject, gpu):
            yield skipped("asleep; it is left asleep", on=on)
            continue
        base = f"{folder(subject, gpu)}/hwmon"
        paths = [f"{base}/{name}" for name in subject.names(base)]
        sensors = [sensor for path in paths for sensor in _sensors(subject, path)]
        if not any(name.startswith("temp") for path in paths for name in subject.names(path)):
            yield skipped("it shows no temperatures", on=on)
            continue
        if not sensors:
            yield unknown("its temperatures could not be read", on=on)
            continue
        found = ", ".join(
            f"{label} {now:g} C (critical {crit:g})" if crit else f"{label} {now:g} C" for label, now, crit in sensors
        )
        evidence = Evidence(source=f"{base}/*/temp*_input", found=found, expected=f"{margin:g} C below critical")
        hot = [f"{label} {now:g} C" for label, now, crit in sensors if crit and now > crit - margin]
        if hot:
            yield warned(f"near its critical temperature: {', '.join(hot)}", evidence, on=on)
        else:
            yield passed("cool enough", evidence, on=on)
    if not some:
        yield skipped("no AMD GPU with a PCI function here")


def _sensors(subject: Subject, path: str) -> Iterator[tuple[str, float, float | None]]:
    """Give label, temperature and critical temperature of each sensor that makes sense."""
    for name in subject.names(path):
        if not (name.startswith("temp") and name.endswith("_input")):
            continue
        stem = name.removesuffix("_input")
        now = _thousandths(subject.read(f"{path}/{name}").text)
        if now is None:
            continue
        label = subject.read(f"{path}/{stem}_label").text or stem
        yield label, now, _thousandths(subject.read(f"{path}/{stem}_crit").text) or None


def _thousandths(text: str | None) -> float | None:
    if text is None or not text.lstrip("-").isascii() or not text.lstrip("-").isdigit() or len(text) > 9:
        return None
    degrees = int(text) / 1000
    return degrees if int(degrees) in _PLAUSIBLE else None


def _degrees(value: Any) -> int:
    """Return degrees C. Raises ValueError for what no board can have."""
    if isinstance(value, bool) or not isinstance(value, int) or value not in _PLAUSIBLE:
        raise ValueError(f"a temperature is {value!r:.60}")
    return value


def _cell(holder: Any, name: str) -> int | None:
    cell = holder.get(name) if isinstance(holder, dict) else None
    value = cell.get("value") if isinstance(cell, dict) else None
    return None if value is None else _degrees(value)
