"""i915 and xe in the kernel's log: hangs, resets, a device that the driver gave up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.kernel_log.lines import judge_lines
from pytest_gpucoexist.gates.registry import gate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.findings import Finding
    from pytest_gpucoexist.gates.kernel_log.lines import Event
    from pytest_gpucoexist.gates.subject import Subject

__all__ = ["hang", "reset"]

_READS = "the kernel's log of this boot: /dev/kmsg, else (level standard) journald"
_DRIVERS = frozenset({"i915", "xe"})
_AT_START = frozenset({"intel.guc_load", "intel.probe_fail", "intel.force_probe"})


@gate(
    "klog.intel.hang",
    group="kernel-log",
    title="No Intel GPU hung or given up",
    reads=f"{_READS}; the bound driver of each GPU",
    criterion="no device that xe declared wedged (unless it was bound again), no hang and no failed reset in this"
    " session, no driver that declined the GPU",
    why="a wedged device refuses all work until it is bound again; a hang costs the context of the program",
    action="Bind the driver again or reboot; use a newer GuC (70.72.1 repaired a reset of Battlemage).",
    source="clearlinux/distribution#2907; geerlingguy/raspberry-pi-pcie-devices#695; vllm-project/vllm#55425",
    vendors=("intel",),
    severity="fail",
    blocking=True,
)
def hang(subject: Subject) -> Iterator[Finding]:
    """Judge hangs; only a wedged device is taken out."""

    def grade(event: Event) -> Event:
        rule = event.line.rule
        if rule == "intel.xe_wedged":
            return event.put_behind(subject, "registered", "found")
        event = event.graded(event.grade, blocking=False)
        if rule in _AT_START:
            if rule != "intel.guc_load" and event.gpus and all(gpu.driver in _DRIVERS for gpu in event.gpus):
                return event.graded(None)  # declined by one driver, taken by the other
            if subject.wanted("intel") is None:
                event = event.weakened()
        elif not event.in_session:
            event = event.weakened()
        return event.put_behind(subject, "registered", "found")

    yield from judge_lines(
        subject,
        [
            *("intel.hang", "intel.reset_fail", "intel.xe_wedged", "intel.xe_timedout"),
            *_AT_START,
        ],
        "intel",
        what="hang of an Intel GPU",
        grade=grade,
    )


@gate(
    "klog.intel.reset",
    group="kernel-log",
    title="No reset of an Intel GPU",
    reads=_READS,
    criterion="no reset of the GPU or an engine and no unresolved fault in this session",
    why="after repeated resets host memory that the GPU wrote to cannot be trusted either",
    action="Look at the program that ran; after repeated resets reboot before you trust host memory.",
    source="intel/compute-runtime#944, #946, #966",
    vendors=("intel",),
)
def reset(subject: Subject) -> Iterator[Finding]:
    """Judge resets of this session; one earlier this boot is only told."""

    def grade(event: Event) -> Event:
        return event if event.in_session else event.graded(None)

    yield from judge_lines(
        subject,
        ["intel.reset_chip", "intel.xe_engine_reset", "intel.fault_resp"],
        "intel",
        what="reset of an Intel GPU",
        grade=grade,
        session_only=True,
    )
