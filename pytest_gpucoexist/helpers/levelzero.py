"""Helper `levelzero`: whether Intel's Level Zero initialises, as JSON. Runs in a process of its own.

    {"library": "libze_loader.so.1", "path": …, "init": CELL,      ze_result_t: 0, 0x78000001 no driver, …
     "drivers": CELL, "count": CELL,                               drivers; GPUs of all drivers, whole cards
     "memories": [[CELL, …], …]}                                   per GPU: zes_mem_health_t of each memory, 1 is good

The health of memory needs Sysman (`ZES_ENABLE_SYSMAN=1` before zeInit), which the helper switches on for itself.
"""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.helpers.native import called, load, loaded_from

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucoexist.helpers.cells import Cell

__all__ = ["answer"]

_GPU_ONLY = 1  # ze_init_flags_t; else an NPU is a device too
_Handle = ctypes.c_void_p


class _MemoryState(ctypes.Structure):
    """zes_api.h, zes_mem_state_t."""

    _fields_ = (
        ("stype", ctypes.c_uint32),
        ("pNext", ctypes.c_void_p),
        ("health", ctypes.c_uint32),
        ("free", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
    )


_STYPE_MEMORY_STATE = 0x1E  # ZES_STRUCTURE_TYPE_MEM_STATE


def answer(_request: Mapping[str, Any]) -> dict[str, Any]:
    """Initialise Level Zero. Raises HelperAbsent or HelperBroken where its loader cannot be loaded."""
    os.environ["ZES_ENABLE_SYSMAN"] = "1"
    os.environ["ZE_FLAT_DEVICE_HIERARCHY"] = "COMPOSITE"  # a card with two tiles is one device
    library, name = load("libze_loader.so.1")
    init = called(library, "zeInit", ctypes.c_uint32(_GPU_ONLY))
    found: dict[str, Any] = {"library": name, "path": loaded_from("libze_loader"), "init": init, "memories": []}
    if init != {"value": 0}:
        missing = {"status": "absent", "detail": "Level Zero is not initialised"}
        return {**found, "drivers": missing, "count": missing}
    drivers, cell = _handles(library, "zeDriverGet")
    devices: list[Any] = []
    for driver in drivers:
        more, status = _handles(library, "zeDeviceGet", driver)
        if "value" not in status:
            return {**found, "drivers": cell, "count": status}
        devices += more
    return {
        **found,
        "drivers": cell,
        "count": {"value": len(devices)},
        "memories": [_memories(library, device) for device in devices],
    }


def _handles(library: ctypes.CDLL, function: str, *owner: Any) -> tuple[list[Any], Cell]:
    """Call one of the functions that fill an array: once for the length, once for the handles."""
    count = ctypes.c_uint32(0)
    arguments = [_Handle(each) for each in owner]
    status = called(library, function, *arguments, ctypes.byref(count), None)
    handles = (_Handle * count.value)()
    if status == {"value": 0} and count.value:
        status = called(library, function, *arguments, ctypes.byref(count), handles)
    if status != {"value": 0}:
        code = status.get("value")
        detail = status.get("detail") or f"{function} returned {code:#x}"
        return [], {"status": "broken", "detail": detail}
    return list(handles), {"value": len(handles)}


def _memories(library: ctypes.CDLL, device: Any) -> list[Cell]:
    handles, status = _handles(library, "zesDeviceEnumMemoryModules", device)
    if "value" not in status:
        return [status]
    cells: list[Cell] = []
    for handle in handles:
        state = _MemoryState(stype=_STYPE_MEMORY_STATE)
        code = called(library, "zesMemoryGetState", _Handle(handle), ctypes.byref(state))
        told: Cell = {"value": state.health}
        cells.append(told if code == {"value": 0} else {"status": "broken", "detail": f"zesMemoryGetState: {code}"})
    return cells
