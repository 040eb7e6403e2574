"""What the helpers `nvml` and `amdsmi` would answer on a machine that is described here.

A machine made in code replays these replies, so that everything above the helpers runs as it would on the hardware. The
shapes are documented in `helpers/nvml.py` and `helpers/amdsmi.py`; the project's tests compare these replies, value by
value, with those of the real clients on fake drivers that got the same description.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

__all__ = ["AmdGpu", "GpuUser", "MigInstance", "NvmlGpu", "amdsmi_reply", "nvml_reply"]

_P2P_OK, _P2P_NO = "ok", "chipset not supported"
_CLIENT = {"distribution": "nvidia-ml-py", "version": "13.615.71", "path": None, "shadowed_by": None, "library": None}
_CODES = {"NVML: GPU is lost": 15}  # nvml.h


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUser:
    """A process that uses a GPU; `memory_bytes` is None where the driver does not tell."""

    pid: int
    memory_bytes: int | None = None
    kind: Literal["compute", "graphics"] = "compute"


@dataclass(frozen=True, slots=True, kw_only=True)
class MigInstance:
    """A MIG instance of an NVIDIA GPU. `slices` and `multiprocessors` are those of its profile (`1g.10gb`)."""

    uuid: str
    name: str
    gi: int
    ci: int = 0
    memory_total_bytes: int
    memory_used_bytes: int = 0
    slices: int = 1
    multiprocessors: int = 14
    processes: tuple[GpuUser, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlGpu:
    """A GPU as NVML sees it. None means that the board does not have the thing.

    `fault` is why the whole device cannot be asked: a GPU that fell off the bus is `("broken", "NVML: GPU is lost")`.
    """

    pci_address: str
    uuid: str | None
    name: str
    memory_total_bytes: int | None
    memory_used_bytes: int = 0
    compute_capability: str | None = None
    minor: int = 0
    device_id: str = "0x2684"
    subsystem_id: str = "0x10de:0x0000"
    vbios_version: str | None = None
    bar1_total_bytes: int | None = None
    bar1_used_bytes: int = 0
    ecc: bool | None = None
    mig: bool | None = None
    instances: tuple[MigInstance, ...] = ()
    memory_nodes: tuple[int, ...] | None = None
    pcie_generation: int | None = None
    pcie_max_generation: int | None = None
    pcie_width: int | None = None
    pcie_max_width: int | None = None
    persistence: bool | None = None
    processes: tuple[GpuUser, ...] = ()
    fault: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AmdGpu:
    """A GPU, or a partition of one, as AMD SMI sees it. None means that the board does not have the thing."""

    pci_address: str
    uuid: str | None
    name: str | None
    target: str | None
    memory_total_bytes: int | None
    memory_used_bytes: int = 0
    device_id: str = "0x744c"
    compute_units: int | None = None
    vbios_version: str | None = None
    vbios_part_number: str | None = None
    compute_partition: str | None = None
    memory_partition: str | None = None
    kfd_id: int = 1
    kfd_node: int | None = None
    partition_id: int = 0
    numa_node: int | None = None
    ecc_blocks: int | None = None
    pcie_mtps: int | None = None
    pcie_width: int | None = None
    pcie_max_mtps: int | None = None
    pcie_max_width: int | None = None
    processes: tuple[GpuUser, ...] = ()


def nvml_reply(
    gpus: Sequence[NvmlGpu],
    *,
    driver_version: str = "570.133.07",
    cuda_driver_version: int = 12080,
    p2p: Collection[tuple[int, int]] = (),
) -> dict[str, Any]:
    """Build the reply of helper `nvml`. `p2p` names the pairs of indices, lower first, that reach each other."""
    alive = [index for index, gpu in enumerate(gpus) if gpu.fault is None]
    return {
        "client": dict(_CLIENT),
        "driver_version": {"value": driver_version},
        "nvml_version": {"value": f"{cuda_driver_version // 1000}.{driver_version}"},
        "cuda_driver_version": {"value": cuda_driver_version},
        "count": len(gpus),
        "devices": [
            _nvml_device(index, gpu, [peer for peer in alive if peer != index], p2p) for index, gpu in enumerate(gpus)
        ],
    }


def _nvml_device(index: int, gpu: NvmlGpu, peers: list[int], p2p: Collection[tuple[int, int]]) -> dict[str, Any]:
    if gpu.fault is not None:
        status, detail = gpu.fault
        code = {"code": _CODES[detail]} if detail in _CODES else {}
        return {"index": index, "fault": {"status": status, "detail": detail, **code}}
    subvendor, _, subdevice = gpu.subsystem_id.partition(":")
    address = f"{int(gpu.pci_address.split(':')[0], 16):08X}{gpu.pci_address[-8:].upper()}"
    pci = {"address": address, "device": f"{gpu.device_id}10de", "subsystem": f"{subdevice}{subvendor[2:]}"}
    return {
        "index": index,
        "fault": None,
        "uuid": _nvml(gpu.uuid),
        "pci": {"value": pci},
        "name": {"value": gpu.name},
        "minor": {"value": gpu.minor},
        "vbios_version": _nvml(gpu.vbios_version),
        "compute_capability": _nvml(gpu.compute_capability),
        "memory": _nvml(_memory(gpu.memory_total_bytes, gpu.memory_used_bytes)),
        "bar1": _nvml(_memory(gpu.bar1_total_bytes, gpu.bar1_used_bytes)),
        "ecc": _nvml(_mode(gpu.ecc)),
        "mig": _nvml(_mode(gpu.mig)),
        "mig_devices": _nvml(None if gpu.mig is None else [_instance(each) for each in gpu.instances if gpu.mig]),
        "memory_nodes": _nvml(None if gpu.memory_nodes is None else list(gpu.memory_nodes)),
        "memory_numa_node": _nvml(None),
        "pcie": {
            "value": {
                "generation": _nvml(gpu.pcie_generation),
                "width": _nvml(gpu.pcie_width),
                "max_generation": _nvml(gpu.pcie_max_generation),
                "max_width": _nvml(gpu.pcie_max_width),
            }
        },
        "compute_mode": {"value": "default"},
        "persistence": _nvml(gpu.persistence),
        "processes": {"value": _users(gpu.processes)},
        "p2p": {"value": [_peer(index, peer, p2p) for peer in peers]},
    }


def _nvml(value: Any) -> dict[str, Any]:
    return {"status": "unsupported", "detail": "NVML: Not Supported"} if value is None else {"value": value}


def _memory(total: int | None, used: int) -> dict[str, int] | None:
    return None if total is None else {"total": total, "used": used, "free": total - used}


def _mode(enabled: bool | None) -> dict[str, bool] | None:
    return None if enabled is None else {"current": enabled, "pending": enabled}


def _peer(index: int, peer: int, p2p: Collection[tuple[int, int]]) -> dict[str, Any]:
    text = _P2P_OK if (min(index, peer), max(index, peer)) in p2p else _P2P_NO
    return {"peer": peer, "read": text, "write": text, "atomics": text}


def _users(users: Sequence[GpuUser], gi: int | None = None, ci: int | None = None) -> list[dict[str, Any]]:
    return [
        {"pid": user.pid, "memory": user.memory_bytes, "kind": kind, "gi": gi, "ci": ci}
        for kind in ("compute", "graphics")
        for user in users
        if user.kind == kind
    ]


def _instance(part: MigInstance) -> dict[str, Any]:
    return {
        "uuid": {"value": part.uuid},
        "name": {"value": part.name},
        "gi": {"value": part.gi},
        "ci": {"value": part.ci},
        "memory": {"value": _memory(part.memory_total_bytes, part.memory_used_bytes)},
        "profile": {
            "value": {
                "gpu_slices": part.slices,
                "compute_slices": part.slices,
                "memory_mib": part.memory_total_bytes >> 20,
                "multiprocessors": part.multiprocessors,
            }
        },
        "processes": {"value": _users(part.processes, part.gi, part.ci)},
    }


def amdsmi_reply(
    gpus: Sequence[AmdGpu],
    *,
    driver_version: str | None = "6.14.14",
    library_version: str = "26.0.2",
    p2p: Collection[tuple[int, int]] = (),
    link: Literal["pcie", "xgmi"] = "pcie",
    hops: int = 2,
) -> dict[str, Any]:
    """Build the reply of helper `amdsmi`. `p2p` names the pairs of indices, lower first, that reach each other."""
    return {
        "client": {"distribution": "amdsmi", "version": "7.0.2", "path": None},
        "library_version": {"value": library_version},
        "rocm_version": {"status": "absent", "detail": "Could not find librocm-core.so"},
        "count": len(gpus),
        "devices": [
            {
                **_amd_device(index, gpu, driver_version),
                "links": {
                    "value": [
                        {
                            "peer": peer,
                            "type": {"value": link},
                            "hops": {"value": hops},
                            "p2p": {"value": (min(index, peer), max(index, peer)) in p2p},
                        }
                        for peer in range(len(gpus))
                        if peer != index
                    ]
                },
            }
            for index, gpu in enumerate(gpus)
        ],
    }


def _amd_device(index: int, gpu: AmdGpu, driver_version: str | None) -> dict[str, Any]:
    used = None if gpu.memory_total_bytes is None else {"total": gpu.memory_total_bytes, "used": gpu.memory_used_bytes}
    no_uuid = {"status": "unsupported", "detail": "the driver gives no text"}
    return {
        "index": index,
        "fault": None,
        "bdf": {"value": gpu.pci_address},
        "uuid": no_uuid if gpu.uuid is None else {"value": gpu.uuid},
        "asic": {
            "value": {
                "market_name": gpu.name,
                "target": gpu.target,
                "device_id": gpu.device_id,
                "compute_units": gpu.compute_units,
            }
        },
        "memory": _amd(used),
        "driver": {"value": {"name": "amdgpu", "version": driver_version}},
        "vbios": {"value": {"version": gpu.vbios_version, "part_number": gpu.vbios_part_number}},
        "compute_partition": _amd(gpu.compute_partition),
        "memory_partition": _amd(gpu.memory_partition),
        "kfd": _amd(
            None
            if gpu.kfd_node is None
            else {"kfd_id": gpu.kfd_id, "node_id": gpu.kfd_node, "partition_id": gpu.partition_id}
        ),
        "numa_node": {"value": gpu.numa_node},
        "ecc": _amd(
            None
            if gpu.ecc_blocks is None
            else {"enabled_blocks": gpu.ecc_blocks, "correctable": None, "uncorrectable": None, "deferred": None}
        ),
        "pcie": _amd(
            None
            if gpu.pcie_mtps is None
            else {
                "speed_mtps": gpu.pcie_mtps,
                "width": gpu.pcie_width,
                "max_speed_mtps": gpu.pcie_max_mtps,
                "max_width": gpu.pcie_max_width,
            }
        ),
        "processes": {
            "value": [{"pid": user.pid, "memory": user.memory_bytes, "name": None} for user in gpu.processes]
        },
    }


def _amd(value: Any) -> dict[str, Any]:
    detail = "AMD SMI: AMDSMI_STATUS_NOT_SUPPORTED - Feature not supported"
    return {"status": "unsupported", "detail": detail} if value is None else {"value": value}
