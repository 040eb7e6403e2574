"""Who uses a device at this moment, and how much of its memory: asked before a lease, so it must cost little.

NVIDIA's driver tells nobody but NVML, which answers from a process of its own. amdgpu's memory in use and KFD's list
of computing processes are files; `/proc` is walked only where more memory is in use than those explain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.model.identity import normal_pci_address
from pytest_gpucoexist.probes.attributes import text_or_none
from pytest_gpucoexist.probes.cells import devices_of, fault_of, value_of
from pytest_gpucoexist.probes.reader import names_in
from pytest_gpucoexist.probes.usage import kfd_processes, walk_processes
from pytest_gpucoexist.probes.vendor import why_not_called

if TYPE_CHECKING:
    from pytest_gpucoexist.host.base import HelperReply, Host
    from pytest_gpucoexist.model.machine import Gpu

__all__ = ["LITTLE_BYTES", "Occupant", "Occupants", "needs_nvml", "occupants"]

LITTLE_BYTES = 512 << 20
"""Memory that a browser or a terminal holds on a desktop's card: nvidia-smi and amdgpu_top show 50 to 500 MiB each."""

_NVIDIA_DRIVERS = {"nvidia", "nvgpu", "gk20a", "dxgkrnl"}
_TOLD_BY_FILES = {"amdgpu", "xe", "i915", "nouveau"}
_DRM = "/sys/class/drm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupant:
    """A process that has the device open. `compute`: not only to draw. `local`: the PID is of this `/proc`."""

    pid: int
    compute: bool
    memory_bytes: int | None = None
    local: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupants:
    """Everybody on one device. `used_bytes` is without what the driver keeps for itself; None: it does not tell.

    `unseen` says who could not be looked into, `problem` why nothing at all is known. `display`: it draws a desktop, or
    the driver does not tell what it keeps for itself: some hundred MiB are nobody's.
    """

    processes: tuple[Occupant, ...] = ()
    total_bytes: int | None = None
    used_bytes: int | None = None
    display: bool = False
    unseen: str | None = None
    problem: str | None = None


def needs_nvml(host: Host, gpu: Gpu) -> bool:
    """Whether only NVML can tell who uses this GPU, and may be asked."""
    return gpu.driver in _NVIDIA_DRIVERS and why_not_called(host, "nvidia") is None


def occupants(host: Host, gpus: Sequence[Gpu], ask: Callable[[], HelperReply]) -> dict[str, Occupants]:
    """Return the occupants of each GPU by its key. Never raises; `ask` calls the helper `nvml_users`, at most once."""
    found: dict[str, Occupants] = {}
    nvidia = [gpu for gpu in gpus if needs_nvml(host, gpu)]
    if nvidia:
        found.update(_by_nvml(nvidia, ask()))
    found.update(_by_files(host, [gpu for gpu in gpus if gpu.driver in _TOLD_BY_FILES]))
    for gpu in gpus:
        why = f"driver {gpu.driver or 'none'} does not tell its processes"
        found.setdefault(gpu.key, Occupants(problem=why))
    return found


def _by_nvml(gpus: Sequence[Gpu], reply: HelperReply) -> dict[str, Occupants]:
    if reply.status != "ok":
        problem = Occupants(problem=f"NVML: {reply.detail or reply.status}")
        return {gpu.key: problem for gpu in gpus}
    try:
        devices = devices_of(reply.data)
    except ValueError as error:
        problem = Occupants(problem=f"NVML: {error}")
        return {gpu.key: problem for gpu in gpus}
    found = {gpu.key: _of_board(gpu, devices) for gpu in gpus}
    # The memory of Windows' desktop (WSL), or of the whole system (Jetson), says nothing about who computes.
    shared = [gpu.key for gpu in gpus if gpu.driver != "nvidia"]
    return found | {key: replace(found[key], used_bytes=None) for key in shared}


def _of_board(gpu: Gpu, devices: Sequence[Mapping[str, Any]]) -> Occupants:
    lost = None
    for device in devices:
        fault = fault_of(device)
        if fault is not None:
            lost = fault[1]
            continue
        pci = value_of(device, "pci")
        address = normal_pci_address(str(pci.get("address"))) if isinstance(pci, Mapping) else None
        is_board = address == gpu.pci_address if gpu.pci_address is not None else value_of(device, "uuid") == gpu.uuid
        parts = [part for part in device.get("parts") or () if isinstance(part, Mapping)]
        if not is_board:
            continue
        try:
            if gpu.partition is None:
                reserved = value_of(device, "reserved")
                seen = _told(device, parts, reserved or 0)
                return seen if reserved is not None else replace(seen, display=True)
            for part in parts:
                if f"mig{value_of(part, 'gi')}.{value_of(part, 'ci')}" == gpu.partition:
                    # What an instance keeps for itself is not told apart: some 20 MiB.
                    return replace(_told(part, (), 0), display=False)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            return Occupants(problem=f"NVML's answer was not understood ({error})")
    return Occupants(problem=f"NVML: {lost}" if lost else "NVML does not list it")


def _told(board: Mapping[str, Any], parts: Sequence[Mapping[str, Any]], reserved: int) -> Occupants:
    found: dict[int, Occupant] = {}
    known = value_of(board, "processes") is not None
    for holder in (board, *parts):
        for each in value_of(holder, "processes") or ():
            _add(found, int(each["pid"]), compute=each["kind"] == "compute", memory=each.get("memory"))
    memory = value_of(board, "memory")
    told = isinstance(memory, Mapping)
    return Occupants(
        processes=tuple(found[pid] for pid in sorted(found)),
        total_bytes=int(memory["total"]) if told else None,
        used_bytes=max(0, int(memory["used"]) - int(reserved)) if told else None,
        display=value_of(board, "display") is True or any(not each.compute for each in found.values()),
        unseen=None if known else "NVML does not tell its processes",
    )


def _by_files(host: Host, gpus: Sequence[Gpu]) -> dict[str, Occupants]:
    if not gpus:
        return {}
    found: dict[str, Occupants] = {}
    computing = kfd_processes(host, gpus)
    walk = None
    for gpu in gpus:
        users: dict[int, Occupant] = {}
        for process in computing.get(gpu.key, ()):
            _add(users, process.pid, compute=True, memory=process.memory_bytes)
        used, total = _vram(host, gpu)
        explained = sum(each.memory_bytes or 0 for each in users.values())
        unseen = None
        # An integrated GPU has no memory of its own, and a partition shares its clients with the others.
        tells = gpu.partition is None and gpu.kind != "integrated"
        if tells and (used is None or used - explained > LITTLE_BYTES):
            walk = walk or walk_processes(host)
            unseen = walk.detail
            for address, process in walk.found:
                if address == gpu.pci_address:
                    _add(users, process.pid, compute=False, memory=process.memory_bytes, local=True)
        found[gpu.key] = Occupants(
            processes=tuple(users[pid] for pid in sorted(users)),
            total_bytes=total,
            used_bytes=used,
            display=_shows(host, gpu),
            unseen=unseen,
        )
    return found


def _add(found: dict[int, Occupant], pid: int, *, compute: bool, memory: int | None, local: bool = False) -> None:
    """Count a process once: a client of both kinds computes, and its memory is the larger of what both lists say."""
    known = found.get(pid, Occupant(pid=pid, compute=False))
    sizes = [size for size in (known.memory_bytes, memory) if size is not None]
    found[pid] = Occupant(
        pid=pid, compute=known.compute or compute, memory_bytes=max(sizes, default=None), local=known.local or local
    )


def _vram(host: Host, gpu: Gpu) -> tuple[int | None, int | None]:
    """Return amdgpu's memory in use and in all; it answers from the driver's own memory and wakes nothing."""
    if gpu.driver != "amdgpu" or gpu.partition is not None or gpu.pci_address is None:
        return None, None
    folder = f"/sys/bus/pci/devices/{gpu.pci_address}"
    texts = [text_or_none(host, f"{folder}/mem_info_vram_{name}") for name in ("used", "total")]
    used, total = (int(text) if text is not None and text.isdecimal() else None for text in texts)
    return used, total


def _shows(host: Host, gpu: Gpu) -> bool:
    """Whether a monitor is connected; the driver remembers that, nothing is asked of the monitor."""
    card = gpu.drm.card if gpu.drm is not None else None
    names = [name for name in names_in(host, _DRM) if card is not None and name.startswith(f"{card}-")]
    return any(text_or_none(host, f"{_DRM}/{name}/status") == "connected" for name in names)
