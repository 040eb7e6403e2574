"""Processes that wait for a GPU's driver and cannot be killed, and those that died and still hold a GPU."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.findings import Finding, failed, passed, unknown, warned
from pytest_gpucoexist.gates.kernel_log.evidence import log_evidence
from pytest_gpucoexist.gates.occupancy.table import Process, Table, process_table
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.verdicts import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_gpucoexist.gates.subject import Subject

__all__ = ["blocked_s", "blocked_tasks", "driver_in", "dstate", "zombie"]

_GATE = "proc.dstate"
_SECONDS = 60.0
_LOOKED_AT = 64
_MODULES = r"nvidia(?:_uvm|_drm|_modeset)?|amdgpu|amdkfd|i915|xe|nouveau|nova_core|radeon"
# Functions by the prefixes that these drivers give them, in wchan and in stacks.
_FUNCTION = re.compile(
    r"(?P<nvidia>nv_|nvidia_|nvkms|uvm_|os_acquire_|rm_)|(?P<amdgpu>amdgpu_|kfd_|kgd2kfd_|svm_range_)"
    r"|(?P<i915>i915_|intel_(?:gt|guc|engine|context)_)|(?P<xe>xe_)|(?P<nouveau>nouveau_|nvkm_)|(?P<drm>drm_|dma_fence_|ttm_)"
)
_MODULE = re.compile(rf"\[({_MODULES})\]")
# `INFO: task python3:4242 blocked for more than 120 seconds.` (kernel/hung_task.c)
_HUNG = re.compile(r"INFO: task (.{1,20}):(\d{1,10}) blocked(?: in I/O wait)? for more than (\d{1,10}) seconds")


@gate(
    _GATE,
    group="occupancy",
    title="No process hangs in a GPU's driver",
    reads="/proc/*/stat; of processes in state D: wchan, stack, sched; hung-task lines of the kernel",
    criterion="no process waits in a GPU's driver, uninterruptibly, for more than 60 s",
    why="Such a process cannot be killed, and the next one that opens the GPU may wait beside it.",
    action="Save what is needed and reboot: nothing else ends a process that the driver does not let go.",
    source="facebookresearch/gcm check_dstate.py; leptonai/gpud components/os/blocked_processes.go",
    severity="fail",
    limits={"seconds": _SECONDS},
)
def dstate(subject: Subject) -> Iterator[Finding]:
    """Judge the processes in state D. A process that waits for a moment is healthy."""
    table = process_table(subject)
    if table.problem is not None:
        yield unknown(table.problem, Evidence(source="/proc", found=table.problem))
        return
    waiting = [each for each in table.processes.values() if each.state == "D"]
    limit = subject.limit(_GATE, "seconds", _SECONDS)
    found = False
    for process in waiting[:_LOOKED_AT]:
        evidence, driver, told = _where(subject, process)
        seconds = blocked_s(subject, process.pid)
        if driver is None:
            if not told and (seconds is None or seconds >= limit):
                found = True
                since = "" if seconds is None else f" since about {seconds:.0f} s"
                yield unknown(f"process {process.pid} ({process.name}) waits{since}; for what, this user is not told")
            continue
        found = True
        logged = _hung(subject).get((process.name, process.pid))
        who = f"process {process.pid} ({process.name}) waits in {driver}"
        if logged is not None:
            evidence = (*evidence, Evidence(source="the kernel's log", found=f"blocked for more than {logged:g} s"))
        if seconds is not None:
            evidence = (*evidence, Evidence(source=f"/proc/{process.pid}/sched", found=f"ran {seconds:.0f} s ago"))
        if logged is not None and logged >= limit and (seconds is None or seconds >= limit):
            yield failed(f"{who}, for more than {logged:g} s, and cannot be killed", *evidence)
        elif seconds is None:
            yield warned(f"{who}; since when is not known", *evidence)
        elif seconds >= limit:
            # The clocks of two CPUs differ by the time that each spent in interrupts: not sure enough to fail.
            yield warned(f"{who}, since about {seconds:.0f} s", *evidence)
        else:
            yield passed(f"{who} for a moment", *evidence)
    if not found:
        yield _nothing(table, waiting, "waits in a GPU's driver")


def driver_in(text: str) -> str | None:
    """Return the GPU driver that a wchan or a stack names; None for all others.

    >>> driver_in("[<0>] amdgpu_gem_va_ioctl+0x1f/0x30 [amdgpu]")
    'amdgpu'
    """
    module = _MODULE.search(text)
    if module is not None:
        return module[1]
    for word in re.findall(r"[A-Za-z_]\w{2,}", text):
        match = _FUNCTION.match(word)
        if match is not None:
            return match.lastgroup
    return None


def blocked_tasks(log: str) -> dict[tuple[str, int], float]:
    """Return the tasks that the kernel has called hung, by name and PID, with the longest time that it told."""
    found: dict[tuple[str, int], float] = {}
    for name, pid, seconds in _HUNG.findall(log):
        key = (name, int(pid))
        found[key] = max(found.get(key, 0.0), float(seconds))
    return found


def blocked_s(subject: Subject, pid: int) -> float | None:
    """Return for how long a process has not run, from the scheduler's clock; None where the kernel does not tell.

    `se.exec_start` is when a task last ran, in milliseconds (kernel/sched/debug.c); that of the reader is now.
    """
    then = _exec_start(subject.read(f"/proc/{pid}/sched").text)
    now = _exec_start(subject.read("/proc/self/sched").text)
    return None if then is None or now is None or now < then else (now - then) / 1000


def _hung(subject: Subject) -> dict[tuple[str, int], float]:
    return subject.shared(("occupancy.blocked", "hung"), lambda: blocked_tasks(log_evidence(subject).log.text))


def _exec_start(text: str | None) -> float | None:
    match = re.search(r"^se\.exec_start\s*:\s*(\d{1,15}(?:\.\d{1,9})?)$", text or "", re.MULTILINE)
    return float(match[1]) if match else None


def _where(subject: Subject, process: Process) -> tuple[tuple[Evidence, ...], str | None, bool]:
    """Find what a process waits for: evidence, the driver if it is a GPU's, and whether anything was told.

    To whom it does not trust the kernel writes `0` as wchan (proc_pid_wchan), and the stack is for root.
    """
    told = False
    for name in ("wchan", "stack"):
        path = f"/proc/{process.pid}/{name}"
        text = subject.read(path).text or ""
        told = told or text not in {"", "0"}
        driver = driver_in(text)
        if driver is not None:
            evidence = Evidence(source=path, found=text[:200], expected="no function of a GPU's driver")
            return (evidence,), driver, True
    return (), None, told


def _nothing(table: Table, seen: Sequence[Process], what: str) -> Finding:
    """Pass, unless there may be one that was not seen."""
    evidence = Evidence(source="/proc/*/stat", found=f"{len(table.processes)} processes")
    if table.gap is not None:
        return unknown(f"none of {len(table.processes)} processes {what}; {table.gap}", evidence)
    if seen:
        names = ", ".join(sorted({each.name for each in seen})[:8])
        return passed(f"none {what} ({names} wait for something else, or end)", evidence)
    return passed(f"none of {len(table.processes)} processes {what}", evidence)


@gate(
    "proc.zombie",
    group="occupancy",
    title="No dead process holds a GPU",
    reads="/proc/*/stat: state Z; /proc/<pid>/task: threads that are left; KFD's and the vendors' lists of processes",
    criterion="no process in state Z is in a GPU's list, or still has threads in a driver",
    why="Its memory on the GPU is not given back before its parent has collected it or its last thread has ended.",
    action="End the parent process; where a thread hangs in a driver, reboot.",
    source="facebookresearch/gcm check_zombie.py",
)
def zombie(subject: Subject) -> Iterator[Finding]:
    """Judge the processes in state Z by who still lists them."""
    table = process_table(subject)
    if table.problem is not None:
        yield unknown(table.problem, Evidence(source="/proc", found=table.problem))
        return
    dead = [each for each in table.processes.values() if each.state == "Z"]
    holding = {process.pid: gpu for gpu in subject.gpus() for process in gpu.processes or ()}
    listed = {int(name) for name in subject.names("/sys/class/kfd/kfd/proc") if name.isdecimal()}
    found = False
    for each in dead[:_LOOKED_AT]:
        who = f"process {each.pid} ({each.name}) is dead"
        evidence = Evidence(
            source=f"/proc/{each.pid}/stat", found=f"state Z, parent {each.parent}", expected="no state Z"
        )
        threads = [name for name in subject.names(f"/proc/{each.pid}/task") if name != str(each.pid)]
        if each.pid in holding:
            found = True
            yield warned(f"{who} and still holds memory of a GPU", evidence, on=[holding[each.pid]])
        elif each.pid in listed:
            found = True
            listing = Evidence(source=f"/sys/class/kfd/kfd/proc/{each.pid}", found="still there", expected="gone")
            yield warned(f"{who} and KFD still lists it", evidence, listing)
        elif any(driver_in(subject.read(f"/proc/{each.pid}/task/{name}/wchan").text or "") for name in threads[:8]):
            found = True
            yield warned(f"{who}, but threads of it wait in a GPU's driver", evidence)
    if found:
        return
    unlisted = [gpu for gpu in subject.gpus("nvidia") if gpu.processes is None]
    if dead and unlisted:
        names = ", ".join(f"{each.name} ({each.pid})" for each in dead[:8])
        yield unknown(f"{names} are dead; whether they hold memory of a GPU, only NVML can tell", on=unlisted)
    else:
        yield _nothing(table, dead, "is dead and holds a GPU")
