"""Who uses each GPU: processes by DRM fdinfo and KFD, beside those that NVML and amdsmi told.

Walking `/proc` costs a read for each open GPU file, so this runs only when somebody asked. Another user's descriptors
cannot be read: such processes are counted as unseen, never as gone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_gpucoexist.model.machine import Gpu, GpuProcess, Machine
from pytest_gpucoexist.model.readings import Fact
from pytest_gpucoexist.probes.attributes import text_or_none
from pytest_gpucoexist.probes.fdinfo import Client, parse_fdinfo

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_gpucoexist.host.base import Host

__all__ = ["Walk", "kfd_processes", "processes", "walk_processes"]

_FDINFO = "drm fdinfo"
_KFD = "kfd"
_KFD_PROCESSES = "/sys/class/kfd/kfd/proc"
# Drivers that write no `drm-pdev` and no memory: only the vendor's library knows who uses their GPUs.
_SILENT = {"nvidia", "nvgpu", "gk20a", "dxgkrnl", "radeon", "vfio-pci"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """What `/proc` showed: (address, process) pairs, the PIDs there, and what could not be seen."""

    found: tuple[tuple[str, GpuProcess], ...] = ()
    pids: frozenset[int] = frozenset()
    unseen: int = 0
    readable: bool = True

    @property
    def detail(self) -> str | None:
        """Say what is missing; None when everything was seen."""
        if not self.readable:
            return "/proc cannot be read"
        if self.unseen:
            processes = "1 process" if self.unseen == 1 else f"{self.unseen} processes"
            return f"{processes} could not be looked into (another user's, or protected)"
        if self.pids and 1 not in self.pids:
            # PID 1 exists in every PID namespace, so its absence is a mount option, not an exit.
            return "/proc hides the processes of other users (hidepid)"
        return None


def processes(host: Host, machine: Machine) -> Machine:
    """Set `Gpu.processes` and `facts["processes"]`.

    A PID that a vendor library named and that is not in this `/proc` is kept with `visible` False: it may be another
    PID namespace's (NVML gives the host's PIDs to a container). Memory comes from the vendor's library where it told
    it, else from the larger of KFD and fdinfo, which count different allocations of one process.
    """
    walk = walk_processes(host)
    kfd = kfd_processes(host, machine.gpus)
    return replace(machine, gpus=tuple(_with_processes(host, gpu, walk, kfd) for gpu in machine.gpus))


def _with_processes(host: Host, gpu: Gpu, walk: Walk, kfd: dict[str, list[GpuProcess]]) -> Gpu:
    told = gpu.processes
    silent = gpu.driver in _SILENT or gpu.driver is None or gpu.pci_address is None
    if told is None and silent:
        detail = f"driver {gpu.driver or 'none'} does not tell its processes through the kernel"
        return _with_fact(gpu, Fact(source=_FDINFO, status="unsupported", detail=detail))
    merged: dict[int, GpuProcess] = {process.pid: process for process in told or ()}
    # A partition shares its PCI function with others; fdinfo cannot tell them apart.
    clients = () if gpu.partition is not None else walk.found
    here = [process for address, process in clients if address == gpu.pci_address]
    for process in (*here, *kfd.get(gpu.key, ())):
        merged[process.pid] = _merge(merged.get(process.pid), process)
    found = tuple(_seen(host, process, walk) for _pid, process in sorted(merged.items()))
    source = _FDINFO if told is None else gpu.facts["processes"].source if "processes" in gpu.facts else "vendor"
    if told is None and not walk.readable:
        return _with_fact(gpu, Fact(source="/proc", status="denied", detail=walk.detail))
    return replace(_with_fact(gpu, Fact(source=source, detail=walk.detail)), processes=found)


def _merge(known: GpuProcess | None, process: GpuProcess) -> GpuProcess:
    if known is None:
        return process
    if known.source in {_FDINFO, _KFD}:
        sizes = [size for size in (known.memory_bytes, process.memory_bytes) if size is not None]
        return replace(known, memory_bytes=max(sizes, default=None))
    return known if known.memory_bytes is not None else replace(known, memory_bytes=process.memory_bytes)


def _seen(host: Host, process: GpuProcess, walk: Walk) -> GpuProcess:
    visible = process.pid in walk.pids
    name = process.name
    if name is None and visible:
        name = text_or_none(host, f"/proc/{process.pid}/comm")
    return replace(process, visible=visible, name=name)


def _with_fact(gpu: Gpu, fact: Fact) -> Gpu:
    return replace(gpu, facts={**gpu.facts, "processes": fact})


def walk_processes(host: Host) -> Walk:
    """Read the DRM clients of every process that this user may look into. Never raises."""
    try:
        pids = [int(name) for name in host.list_dir("/proc") if name.isdecimal()]
    except OSError:
        return Walk(readable=False)
    found: list[tuple[str, GpuProcess]] = []
    unseen = 0
    for pid in pids:
        try:
            clients = _clients(host, pid)
        except PermissionError:
            unseen += 1
            continue
        except OSError:
            continue  # it ended while we looked
        memory: dict[str, int | None] = {}
        for client in clients:
            if client.pci_address is not None:
                memory[client.pci_address] = _add(memory.get(client.pci_address), client.memory_bytes)
        for address, size in memory.items():
            found.append((address, GpuProcess(pid=pid, source=_FDINFO, memory_bytes=size)))
    return Walk(found=tuple(found), pids=frozenset(pids), unseen=unseen)


def _add(left: int | None, right: int | None) -> int | None:
    return right if left is None else left if right is None else left + right


def _clients(host: Host, pid: int) -> list[Client]:
    """Read the DRM clients of a process, each once. Raises OSError when its descriptors cannot be listed."""
    clients: dict[tuple[str, str | None, str], Client] = {}
    for number in host.list_dir(f"/proc/{pid}/fdinfo"):
        if not _may_be_drm(host, pid, number):
            continue
        client = parse_fdinfo(text_or_none(host, f"/proc/{pid}/fdinfo/{number}") or "")
        if client is not None:
            # Without an id each descriptor counts for itself.
            identity = client.client_id or f"fd {number}"
            clients[client.driver, client.pci_address, identity] = client
    return list(clients.values())


def _may_be_drm(host: Host, pid: int, number: str) -> bool:
    """Whether a descriptor can be a GPU's: one readlink saves most of the reads."""
    try:
        return host.read_link(f"/proc/{pid}/fd/{number}").startswith("/dev/dri/")
    except OSError:
        return True


def kfd_processes(host: Host, gpus: Iterable[Gpu]) -> dict[str, list[GpuProcess]]:
    """Read `/sys/class/kfd/kfd/proc/<pid>/vram_<gpu_id>`: the bytes that a ROCm process allocated on each GPU."""
    keys = {str(gpu.kfd.gpu_id): gpu.key for gpu in gpus if gpu.kfd is not None and gpu.kfd.gpu_id is not None}
    found: dict[str, list[GpuProcess]] = {}
    try:
        pids = host.list_dir(_KFD_PROCESSES) if keys else []
    except OSError:
        return found
    for pid in filter(str.isdecimal, pids):
        for gpu_id, key in keys.items():
            size = text_or_none(host, f"{_KFD_PROCESSES}/{pid}/vram_{gpu_id}")
            if size is not None and size.isdecimal() and int(size) > 0:
                found.setdefault(key, []).append(GpuProcess(pid=int(pid), source=_KFD, memory_bytes=int(size)))
    return found
