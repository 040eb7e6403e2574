"""Foreign processes that hold memory of a GPU, from KFD's list and from DRM's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.findings import Finding, passed, skipped, unknown, warned
from pytest_gpucoexist.gates.occupancy.table import in_first_namespace, ours, process_table
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.programs import DESKTOP
from pytest_gpucoexist.model.verdicts import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.model.machine import GpuProcess, Machine

__all__ = ["fdinfo", "kfd_processes"]

_KFD = "/sys/class/kfd/kfd/proc"
_MIB = 1 << 20


@gate(
    "proc.amd.kfd",
    group="occupancy",
    title="No foreign process computes on the AMD GPUs",
    reads="/sys/class/kfd/kfd/proc/<pid>/vram_<gpu_id>, and the name of each process",
    criterion="no process outside of this run holds memory of a GPU through KFD",
    why="Its memory is missing here, its work takes time from ours, and its faults can reset the GPU under us.",
    action="Stop the process, or choose another GPU.",
    source="amd/node-scraper plugins/inband/process",
    vendors=("amd",),
)
def kfd_processes(subject: Subject) -> Iterator[Finding]:
    """Warn of foreign processes; in a container PIDs cannot be matched."""
    gpus = {str(gpu.kfd.gpu_id): gpu for gpu in subject.gpus("amd") if gpu.kfd is not None and gpu.kfd.gpu_id}
    if not gpus:
        yield skipped("KFD lists no GPU")
        return
    try:
        pids = [int(name) for name in subject.host.list_dir(_KFD) if name.isdecimal()]
    except OSError as error:
        yield unknown(f"{_KFD} cannot be read: {error.strerror}", Evidence(source=_KFD, found=str(error.strerror)))
        return
    evidence = Evidence(source=_KFD, found=f"{len(pids)} processes", expected="none but ours")
    held = [(pid, gpu, size) for pid in pids for key, gpu in gpus.items() if (size := _vram(subject, pid, key))]
    if not held:
        opened = f"; {len(pids)} have it open" if pids else ""
        yield passed(f"no process holds memory through KFD{opened}", evidence, on=gpus.values())
        return
    table = process_table(subject)
    if not in_first_namespace(subject) or table.problem is not None or table.me is None:
        every = ", ".join(sorted({str(pid) for pid, _gpu, _size in held}))
        yield unknown(
            f"processes {every} hold memory; these are PIDs of the host, which cannot be matched with those here",
            evidence,
            on=[gpu for _pid, gpu, _size in held],
        )
        return
    mine = ours(subject)
    for pid, gpu, size in held:
        process = table.processes.get(pid)
        source = Evidence(source=f"{_KFD}/{pid}", found=f"{size} bytes of {gpu.key}", expected="no foreign process")
        if pid in mine:
            yield passed("only processes of this run hold memory through KFD", source, on=[gpu])
        elif process is None:
            yield unknown(f"process {pid} holds {_mib(size)} and is not in /proc", source, on=[gpu])
        else:
            yield warned(f"process {pid} ({process.name}) holds {_mib(size)}", source, on=[gpu])


@gate(
    "proc.fdinfo",
    group="occupancy",
    title="No foreign program holds much of a GPU's memory",
    reads="/proc/*/fdinfo/* of open DRM files: drm-pdev, drm-memory-vram, drm-resident-vram0",
    criterion="no process outside of this run, but for those that draw the desktop, holds more than the limit",
    why="What it holds is missing here, and what it draws or computes takes time from ours.",
    action="Close the program, or choose another GPU.",
    source="Documentation/gpu/drm-usage-stats.rst; Syllo/nvtop",
    level="standard",
    severity="info",
    limits={"memory_mib": 64.0},
)
def fdinfo(subject: Subject) -> Iterator[Finding]:
    """Warn of foreign DRM clients with much memory."""
    limit = subject.limit("proc.fdinfo", "memory_mib", 64.0) * _MIB
    mine = ours(subject)
    first = in_first_namespace(subject)
    for gpu in _looked_into(subject).gpus:
        if not any(gpu.key == each.key for each in subject.gpus()):
            continue
        fact = gpu.facts.get("processes")
        if gpu.vendor == "nvidia" and gpu.driver == "nvidia" and fact is not None and fact.source == "nvml":
            yield skipped("NVML tells who uses it: proc.nv.compute and proc.nv.graphics judge that", on=[gpu])
            continue
        if gpu.processes is None:
            reason = (fact.detail if fact else None) or "the processes of this GPU are not known"
            yield skipped(reason, on=[gpu]) if fact and fact.status == "unsupported" else unknown(reason, on=[gpu])
            continue
        big = [each for each in gpu.processes if each.pid not in mine and (each.memory_bytes or 0) > limit]
        foreign = [each for each in big if (each.name or "") not in DESKTOP]
        unmatched = [each for each in foreign if not each.visible and first is not True]
        evidence = [_evidence(each) for each in (foreign or gpu.processes)[:8]]
        if unmatched:
            yield unknown("PIDs of the host cannot be matched with those here", *evidence, on=[gpu])
        elif foreign:
            names = ", ".join(
                f"{each.name or 'process'} ({each.pid}): {_mib(each.memory_bytes or 0)}" for each in foreign
            )
            yield warned(f"held by others: {names}", *evidence, on=[gpu])
        elif fact is not None and fact.detail and not gpu.processes:
            yield unknown(f"no foreign process seen, but {fact.detail}", on=[gpu])
        else:
            found = evidence or [Evidence(source="/proc/*/fdinfo", found="no DRM client of this GPU")]
            yield passed(f"no foreign process holds more than {_mib(int(limit))}", *found, on=[gpu])


def _looked_into(subject: Subject) -> Machine:
    """Return the machine with its processes: discovery's own, else looked for now."""
    if any(gpu.processes is not None for gpu in subject.gpus()):
        return subject.machine
    from pytest_gpucoexist.probes.usage import processes

    return subject.shared(("occupancy.users",), lambda: processes(subject.host, subject.machine))


def _evidence(process: GpuProcess) -> Evidence:
    size = "an unknown amount" if process.memory_bytes is None else _mib(process.memory_bytes)
    return Evidence(source=process.source, found=f"{process.name or 'process'} ({process.pid}) holds {size}")


def _vram(subject: Subject, pid: int, gpu_id: str) -> int:
    text = subject.read(f"{_KFD}/{pid}/vram_{gpu_id}").text
    return int(text) if text is not None and text.isdecimal() and len(text) < 20 else 0


def _mib(size: int) -> str:
    return f"{size / _MIB:.0f} MiB"
