"""Helper `nvml`: what NVIDIA's management library knows, as JSON. Runs in a process of its own.

    {"client": {"distribution", "version", "path", "shadowed_by", "library": path of libnvidia-ml.so | null},
     "driver_version": CELL, "nvml_version": CELL, "cuda_driver_version": CELL,          "570.133.07", "12.570…", 12080
     "count": 2,
     "devices": [{"index": 0, "fault": null | {"status", "detail"},
                  "uuid": CELL, "pci": CELL, …},                                         every name in `FIELDS`
                 …]}

CELL is `{"value": …}` or `{"status", "detail"}`, with NVML's number as "code" where it broke. A device whose handle
fails has a `fault` and no fields; the others are not touched by it. Of the fields that are not plain numbers or texts:

    pci           {"address": "00000000:41:00.0", "device": "0x268410de", "subsystem": "0x16f410de"}
    memory        {"total": bytes, "used": bytes, "free": bytes}; bar1 likewise
    ecc, mig      {"current": bool, "pending": bool}
    pcie          {"generation", "width", "max_generation", "max_width"}: CELL each
    processes     [{"pid", "memory": bytes | null, "kind": "compute" | "graphics", "gi": id | null, "ci": id | null}]
    p2p           [{"peer": index, "read": "ok" | reason, "write": …, "atomics": …}]: one per other device
    mig_devices   [{"uuid", "name", "gi", "ci", "memory", "profile", "processes"}]: CELL each; [] when MIG is off

The request `{"health": true}` adds `health` to each device, and `confidential_compute` (`helpers/nvml_health.py`).
A refusal carries `{"cause"}`: `no-client`, `client`, `no-library`, `library`, `not-loaded`, `denied`, `mismatch`,
`lost` or `unknown`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pytest_gpucoexist.helpers.cells import Cell, NotKnown, plain_text
from pytest_gpucoexist.helpers.native import loaded_from
from pytest_gpucoexist.helpers.nvml_cells import nvml_cell
from pytest_gpucoexist.helpers.nvml_client import load_nvml_client, open_library_error
from pytest_gpucoexist.helpers.nvml_health import confidential_compute, health_of
from pytest_gpucoexist.helpers.protocol import HelperAbsent, HelperBroken, HelperDenied, HelperUnsupported

__all__ = ["FIELDS", "MIG_FIELDS", "answer", "initialise", "running_processes"]

Read = Callable[[Any, Any], Any]

_COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}

# nvml.h, nvmlGpuP2PStatus_t.
_P2P_STATUS = {
    0: "ok",
    1: "chipset not supported",
    2: "GPU not supported",
    3: "topology not supported",
    4: "disabled by registry key",
    5: "not supported",
}

# nvml.h, nvmlGpuP2PCapsIndex_t. As numbers, because nvidia-ml-py 13 defines NVML_P2P_CAPS_INDEX_READ as a tuple.
_P2P_CAPS = {"read": 0, "write": 1, "atomics": 3}

_NO_INSTANCE = 0xFFFFFFFF


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """Ask NVML for everything. Raises HelperAbsent, HelperUnsupported, HelperDenied or HelperBroken."""
    nvml, client = load_nvml_client()
    initialise(nvml)
    health = bool(request.get("health"))
    try:
        count = nvml.nvmlDeviceGetCount()
        return {
            "client": {**client, "library": loaded_from("libnvidia-ml.so")},
            "driver_version": nvml_cell(nvml, _text, nvml.nvmlSystemGetDriverVersion),
            "nvml_version": nvml_cell(nvml, _text, nvml.nvmlSystemGetNVMLVersion),
            "cuda_driver_version": nvml_cell(nvml, nvml.nvmlSystemGetCudaDriverVersion),
            "count": count,
            "devices": list(_devices(nvml, count, health=health)),
            **({"confidential_compute": nvml_cell(nvml, confidential_compute, nvml)} if health else {}),
        }
    finally:
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def initialise(nvml: Any) -> None:
    """Call nvmlInit. Raises HelperAbsent, HelperUnsupported, HelperDenied or HelperBroken in words."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        code = error.value
        if code == nvml.NVML_ERROR_LIBRARY_NOT_FOUND:
            reason = open_library_error()
            if "No such file" not in reason:
                raise HelperBroken(f"NVML cannot be loaded: {reason}", cause="library") from None
            raise HelperAbsent(f"NVML is not installed: {reason}", cause="no-library") from None
        if code == nvml.NVML_ERROR_DRIVER_NOT_LOADED:
            raise HelperUnsupported(
                "NVML is installed, but the nvidia driver is not loaded", cause="not-loaded"
            ) from None
        if code == nvml.NVML_ERROR_NO_PERMISSION:
            raise HelperDenied("NVML: no permission to talk to the nvidia driver", cause="denied") from None
        if code == nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
            raise HelperBroken(
                "driver/library version mismatch: the nvidia libraries were updated under the loaded kernel module;"
                " reboot or reload the module",
                cause="mismatch",
            ) from None
        cause = "lost" if code == nvml.NVML_ERROR_GPU_IS_LOST else "unknown"
        raise HelperBroken(f"NVML did not initialise: {error}", cause=cause) from None


def _text(read: Callable[..., object], *arguments: Any) -> str:
    return plain_text(read(*arguments))


def _devices(nvml: Any, count: int, *, health: bool) -> Iterator[dict[str, Any]]:
    handles = [nvml_cell(nvml, nvml.nvmlDeviceGetHandleByIndex, index) for index in range(count)]
    for index, handle in enumerate(handles):
        if "value" not in handle:
            yield {"index": index, "fault": handle}
            continue
        device = handle["value"]
        fields = {name: nvml_cell(nvml, read, nvml, device) for name, read in FIELDS.items()}
        fields["p2p"] = nvml_cell(nvml, _peers, nvml, index, handles)
        if health:
            fields["health"] = health_of(nvml, device)
        yield {"index": index, "fault": None, **fields}


def _pci(nvml: Any, device: Any) -> dict[str, Any]:
    info = nvml.nvmlDeviceGetPciInfo(device)
    return {
        "address": plain_text(info.busId),
        "device": f"{info.pciDeviceId:#010x}",
        "subsystem": f"{info.pciSubSystemId:#010x}",
    }


def _memory(nvml: Any, device: Any) -> dict[str, int]:
    info = nvml.nvmlDeviceGetMemoryInfo(device)
    return {"total": info.total, "used": info.used, "free": info.free}


def _bar1(nvml: Any, device: Any) -> dict[str, int]:
    info = nvml.nvmlDeviceGetBAR1MemoryInfo(device)
    return {"total": info.bar1Total, "used": info.bar1Used, "free": info.bar1Free}


def _switch(modes: list[int]) -> dict[str, bool]:
    current, pending = modes
    return {"current": bool(current), "pending": bool(pending)}


def _pcie(nvml: Any, device: Any) -> dict[str, Cell]:
    reads = {
        "generation": nvml.nvmlDeviceGetCurrPcieLinkGeneration,
        "width": nvml.nvmlDeviceGetCurrPcieLinkWidth,
        "max_generation": nvml.nvmlDeviceGetMaxPcieLinkGeneration,
        "max_width": nvml.nvmlDeviceGetMaxPcieLinkWidth,
    }
    return {name: nvml_cell(nvml, read, device) for name, read in reads.items()}


def _memory_nodes(nvml: Any, device: Any) -> list[int]:
    """NUMA nodes whose memory is nearest, from a bit mask; 16 words are enough for the kernel's limit of 1024."""
    words = nvml.nvmlDeviceGetMemoryAffinity(device, 16, nvml.NVML_AFFINITY_SCOPE_NODE)
    return [64 * at + bit for at, word in enumerate(words) for bit in range(64) if word >> bit & 1]


def running_processes(nvml: Any, device: Any) -> list[dict[str, Any]]:
    """Compute and graphics processes. The counter part of a driver that is older than the client is tried next."""
    found: list[dict[str, Any]] = []
    for kind, stem in (
        ("compute", "nvmlDeviceGetComputeRunningProcesses"),
        ("graphics", "nvmlDeviceGetGraphicsRunningProcesses"),
    ):
        for each in _newest(nvml, stem, device):
            instances = [getattr(each, name, None) for name in ("gpuInstanceId", "computeInstanceId")]
            gi, ci = (None if number in {None, _NO_INSTANCE} else number for number in instances)
            found.append({"pid": each.pid, "memory": each.usedGpuMemory, "kind": kind, "gi": gi, "ci": ci})
    return found


def _newest(nvml: Any, stem: str, device: Any) -> list[Any]:
    for suffix in ("_v3", "_v2"):
        function = getattr(nvml, stem + suffix, None)
        if function is None:
            continue
        try:
            return list(function(device))
        except nvml.NVMLError as error:
            if error.value != nvml.NVML_ERROR_FUNCTION_NOT_FOUND:
                raise
    raise NotKnown("broken", f"this driver has no {stem}_v2 or newer")


def _peers(nvml: Any, index: int, handles: list[Cell]) -> list[dict[str, Any]]:
    device, peers = handles[index]["value"], []
    for peer, handle in enumerate(handles):
        if peer == index or "value" not in handle:
            continue
        answers = {
            name: nvml_cell(nvml, nvml.nvmlDeviceGetP2PStatus, device, handle["value"], capability)
            for name, capability in _P2P_CAPS.items()
        }
        peers.append({"peer": peer} | {name: _p2p_text(status) for name, status in answers.items()})
    return peers


def _p2p_text(status: Cell) -> str:
    return _P2P_STATUS.get(status["value"], "unknown") if "value" in status else str(status["detail"])


def _mig_devices(nvml: Any, device: Any) -> list[dict[str, Cell]]:
    if not nvml.nvmlDeviceGetMigMode(device)[0]:
        return []
    instances = []
    for slot in range(nvml.nvmlDeviceGetMaxMigDeviceCount(device)):
        handle = nvml_cell(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex, device, slot)
        if handle.get("status") == "absent":
            continue  # slots are numbered to the most that the board can have; empty ones are NOT_FOUND
        if "value" not in handle:
            instances.append(dict.fromkeys(MIG_FIELDS, handle))
            continue
        instance = handle["value"]
        instances.append({name: nvml_cell(nvml, read, nvml, instance) for name, read in MIG_FIELDS.items()})
    return instances


def _profile(nvml: Any, instance: Any) -> dict[str, int]:
    attributes = nvml.nvmlDeviceGetAttributes(instance)
    return {
        "gpu_slices": attributes.gpuInstanceSliceCount,
        "compute_slices": attributes.computeInstanceSliceCount,
        "memory_mib": attributes.memorySizeMB,
        "multiprocessors": attributes.multiprocessorCount,
    }


FIELDS: Mapping[str, Read] = {
    "uuid": lambda nvml, device: plain_text(nvml.nvmlDeviceGetUUID(device)),
    "pci": _pci,
    "name": lambda nvml, device: plain_text(nvml.nvmlDeviceGetName(device)),
    "minor": lambda nvml, device: nvml.nvmlDeviceGetMinorNumber(device),
    "vbios_version": lambda nvml, device: plain_text(nvml.nvmlDeviceGetVbiosVersion(device)),
    "compute_capability": lambda nvml, device: ".".join(map(str, nvml.nvmlDeviceGetCudaComputeCapability(device))),
    "memory": _memory,
    "bar1": _bar1,
    "ecc": lambda nvml, device: _switch(nvml.nvmlDeviceGetEccMode(device)),
    "mig": lambda nvml, device: _switch(nvml.nvmlDeviceGetMigMode(device)),
    "mig_devices": _mig_devices,
    "memory_nodes": _memory_nodes,
    "memory_numa_node": lambda nvml, device: nvml.nvmlDeviceGetNumaNodeId(device),
    "pcie": _pcie,
    "compute_mode": lambda nvml, device: _COMPUTE_MODES.get(nvml.nvmlDeviceGetComputeMode(device), "unknown"),
    "persistence": lambda nvml, device: bool(nvml.nvmlDeviceGetPersistenceMode(device)),
    "processes": running_processes,
}
"""How each field of a device is read (`p2p` stands apart: it needs the other devices)."""

MIG_FIELDS: Mapping[str, Read] = {
    "uuid": lambda nvml, instance: plain_text(nvml.nvmlDeviceGetUUID(instance)),
    "name": lambda nvml, instance: plain_text(nvml.nvmlDeviceGetName(instance)),
    "gi": lambda nvml, instance: nvml.nvmlDeviceGetGpuInstanceId(instance),
    "ci": lambda nvml, instance: nvml.nvmlDeviceGetComputeInstanceId(instance),
    "memory": _memory,
    "profile": _profile,
    "processes": running_processes,
}
