"""Helper `nvml_users`: who uses NVIDIA's GPUs, and nothing else, so that it is cheap to ask again and again.

    {"devices": [{"index": 0, "fault": null | {"status", "detail"}, "uuid": CELL, "pci": {"value": {"address"}},
                  "memory": CELL, "reserved": CELL, "display": CELL, "processes": CELL,
                  "parts": [{"uuid", "gi", "ci", "memory", "processes"}]},               CELL each; [] without MIG
                 …]}

`memory` is {"total", "used", "free"} in bytes; `used` counts what the driver keeps for itself, which `reserved` is.
`processes` are those of `helpers/nvml.py`, and the clients of MPS as `compute`. `keep` holds the library open between
questions: nvmlInit is what costs, and on a board that nobody uses it also wakes the GPU.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.helpers.cells import Cell, plain_text
from pytest_gpucoexist.helpers.nvml import initialise, running_processes
from pytest_gpucoexist.helpers.nvml_cells import nvml_cell
from pytest_gpucoexist.helpers.nvml_client import load_nvml_client

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["answer", "keep"]


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """Ask once. Raises HelperAbsent, HelperUnsupported, HelperDenied or HelperBroken."""
    with keep() as ask:
        return ask(request)


@contextlib.contextmanager
def keep() -> Iterator[Callable[[Mapping[str, Any]], dict[str, Any]]]:
    """Open NVML and give the function that asks it; closed at the end. Raises what `answer` raises."""
    nvml, _client = load_nvml_client()
    initialise(nvml)
    try:
        yield lambda _request: {"devices": [_device(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]}
    finally:
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def _device(nvml: Any, index: int) -> dict[str, Any]:
    handle = nvml_cell(nvml, nvml.nvmlDeviceGetHandleByIndex, index)
    if "value" not in handle:
        return {"index": index, "fault": handle}
    device = handle["value"]
    return {
        "index": index,
        "fault": None,
        "uuid": nvml_cell(nvml, _uuid, nvml, device),
        "pci": nvml_cell(nvml, _address, nvml, device),
        "memory": nvml_cell(nvml, _memory, nvml, device),
        "reserved": nvml_cell(nvml, _reserved, nvml, device),
        "display": nvml_cell(nvml, lambda: bool(nvml.nvmlDeviceGetDisplayActive(device))),
        "processes": nvml_cell(nvml, _processes, nvml, device),
        "parts": _parts(nvml, device),
    }


def _uuid(nvml: Any, device: Any) -> str:
    return plain_text(nvml.nvmlDeviceGetUUID(device))


def _address(nvml: Any, device: Any) -> dict[str, str]:
    return {"address": plain_text(nvml.nvmlDeviceGetPciInfo(device).busId)}


def _memory(nvml: Any, device: Any) -> dict[str, int]:
    info = nvml.nvmlDeviceGetMemoryInfo(device)
    return {"total": info.total, "used": info.used, "free": info.free}


def _reserved(nvml: Any, device: Any) -> int:
    version = getattr(nvml, "nvmlMemory_v2", 0x2000028)
    return int(nvml.nvmlDeviceGetMemoryInfo(device, version=version).reserved)


def _processes(nvml: Any, device: Any) -> list[dict[str, Any]]:
    found = running_processes(nvml, device)
    shared = getattr(nvml, "nvmlDeviceGetMPSComputeRunningProcesses_v3", None)
    if shared is not None:
        with contextlib.suppress(nvml.NVMLError):  # an older driver; without MPS the list is empty anyway
            found += [{"pid": each.pid, "memory": each.usedGpuMemory, "kind": "compute"} for each in shared(device)]
    return found


def _parts(nvml: Any, device: Any) -> list[dict[str, Cell]]:
    mode = nvml_cell(nvml, nvml.nvmlDeviceGetMigMode, device)
    if not mode.get("value", (0,))[0]:
        return []
    found = []
    for slot in range(nvml.nvmlDeviceGetMaxMigDeviceCount(device)):
        handle = nvml_cell(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex, device, slot)
        if "value" not in handle:
            continue
        part = handle["value"]
        found.append(
            {
                "uuid": nvml_cell(nvml, _uuid, nvml, part),
                "gi": nvml_cell(nvml, nvml.nvmlDeviceGetGpuInstanceId, part),
                "ci": nvml_cell(nvml, nvml.nvmlDeviceGetComputeInstanceId, part),
                "memory": nvml_cell(nvml, _memory, nvml, part),
                "processes": nvml_cell(nvml, running_processes, nvml, part),
            }
        )
    return found
