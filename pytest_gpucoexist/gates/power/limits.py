"""Power limits and clocks that somebody has set: nothing is broken, and measurements differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.gates.boards import Board, NotTold, judge_boards, whole
from pytest_gpucoexist.gates.findings import Finding, passed, skipped, unknown, warned
from pytest_gpucoexist.gates.pcie.folders import asleep, folder
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.verdicts import Evidence
from pytest_gpucoexist.probes.reader import excerpt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject

_LEVELS = {
    *("auto", "low", "high", "manual", "perf_determinism"),
    *("profile_standard", "profile_min_sclk", "profile_min_mclk", "profile_peak", "profile_exit"),
}


@gate(
    "pwr.nv.limits",
    group="power",
    title="Power limit and clocks are the default ones",
    reads="NVML: the power limit against its default; application clocks against theirs",
    criterion="a limit of at least 0.9 of the default; default application clocks",
    why="A board that was limited by hand is slower, and looks broken to a test of performance.",
    action="nvidia-smi -pl DEFAULT -i ADDRESS; nvidia-smi -rac -i ADDRESS",
    source="Azure/azurehpc-health-checks customTests/azure_gpu_app_clocks.nhc",
    vendors=("nvidia",),
    level="standard",
    severity="info",
    limits={"share": 0.9},
)
def nvidia_limits(subject: Subject) -> Iterator[Finding]:
    """Compare what is set with the defaults. A notebook's limit changes by itself and cannot be set: not judged."""
    share = subject.limit("pwr.nv.limits", "share", 0.9)

    def judge(board: Board) -> Finding:
        power = board.health("power")
        limit, default = _value(power, "limit_mw"), _value(power, "default_mw")
        clocks = board.maybe("clocks") or {}
        now, usual = (_maybe(clocks, name) for name in ("applications_mhz", "default_applications_mhz"))
        evidence = board.evidence(
            "limits",
            f"{limit / 1000:g} W of {default / 1000:g} W, application clock {now or '?'} of {usual or '?'} MHz",
            f"at least {share * default / 1000:g} W, the default clock",
        )
        if default and limit < share * default:
            words = f"its power is limited to {limit / 1000:g} W, of {default / 1000:g} W"
            undo = f"nvidia-smi -pl {default / 1000:g}"
            return warned(words, evidence, on=board.on, action=f"nothing, if that is meant; else {undo}")
        if now is not None and usual is not None and now < usual:
            return warned(f"its application clock is set to {now} MHz, of {usual} MHz", evidence, on=board.on)
        return passed("power limit and clocks are the default ones", evidence, on=board.on)

    yield from judge_boards(subject, "nvidia", judge)


@gate(
    "pwr.amd.limits",
    group="power",
    title="Power limit and performance level are the default ones",
    reads="hwmon power1_cap against power1_cap_default; power_dpm_force_performance_level",
    criterion="a cap of at least 0.9 of the default; level auto",
    why="A board that was limited by hand is slower, and looks broken to a test of performance.",
    action="rocm-smi --resetpoweroverdrive; rocm-smi --setperflevel auto",
    source="ROCm/amdsmi; ilya-zlobintsev/LACT; kernel amdgpu_pm.c",
    vendors=("amd",),
    level="standard",
    severity="info",
    limits={"share": 0.9},
)
def amd_limits(subject: Subject) -> Iterator[Finding]:
    """Compare what is set with the defaults, as amdgpu shows it."""
    share = subject.limit("pwr.amd.limits", "share", 0.9)
    some = False
    for gpu in subject.functions("amd"):
        some = True
        on = [each for each in subject.gpus("amd") if each.pci_address == gpu.pci_address]
        if asleep(subject, gpu):
            yield skipped("asleep; it is left asleep", on=on)
            continue
        path = folder(subject, gpu)
        level = subject.read(f"{path}/power_dpm_force_performance_level")
        caps = [
            (_watts(subject, f"{base}/power1_cap"), _watts(subject, f"{base}/power1_cap_default"))
            for base in (f"{path}/hwmon/{name}" for name in subject.names(f"{path}/hwmon"))
        ]
        cap, default = next((pair for pair in caps if None not in pair), (None, None))
        if cap is None and level.text is None:
            yield skipped("its driver shows neither a power cap nor a performance level", on=on)
            continue
        evidence = Evidence(
            source=f"{path}: power1_cap, power_dpm_force_performance_level",
            found=f"{cap if cap is not None else '?'} of {default if default is not None else '?'} W,"
            f" level {excerpt(level.text)[1:-1] if level.text else '?'}",
            expected="the default cap, level auto",
        )
        if level.text is not None and level.text not in _LEVELS:
            yield unknown(f"its performance level makes no sense: {excerpt(level.text)}", evidence, on=on)
        elif cap is not None and default and cap < share * default:
            yield warned(f"its power is limited to {cap:g} W, of {default:g} W", evidence, on=on)
        elif level.text not in {None, "auto"}:
            yield warned(f"its performance level is set to {level.text}", evidence, on=on)
        else:
            yield passed("power cap and performance level are the default ones", evidence, on=on)
    if not some:
        yield skipped("no AMD GPU with a PCI function here")


def _value(holder: Any, name: str) -> int:
    """Return a value of a dictionary of cells. Raises NotTold or ValueError."""
    cell = holder[name]
    if "value" not in cell:
        raise NotTold(str(cell.get("status")), str(cell.get("detail")))
    return whole(cell["value"], name)


def _maybe(holder: Any, name: str) -> int | None:
    try:
        return _value(holder, name)
    except (KeyError, NotTold, TypeError):
        return None


def _watts(subject: Subject, path: str) -> float | None:
    """Read microwatts."""
    text = subject.read(path).text
    good = text is not None and text.isascii() and text.isdigit() and len(text) < 16
    return int(text) / 1e6 if good and text is not None else None
