"""Helper `cuda`: whether the CUDA driver library initialises, as JSON. No context is made. In a process of its own.

{"library": "libcuda.so.1", "path": "/usr/lib/…/libcuda.so.570.133.07" | null,
 "init": CELL,              the CUresult of cuInit(0): 0, 100 no device, 803 driver and library differ, 999, …
 "driver_version": CELL,    12080; cuDriverGetVersion works without a device
 "count": CELL}             devices that the masks of this environment leave; absent when cuInit failed
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.helpers.native import called, load, loaded_from

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucoexist.helpers.cells import Cell

__all__ = ["answer"]


def answer(_request: Mapping[str, Any]) -> dict[str, Any]:
    """Initialise CUDA. Raises HelperAbsent or HelperBroken where libcuda cannot be loaded."""
    library, name = load("libcuda.so.1")
    init = called(library, "cuInit", ctypes.c_uint(0))
    return {
        "library": name,
        "path": loaded_from("libcuda.so"),
        "init": init,
        "driver_version": _number(library, "cuDriverGetVersion"),
        "count": _number(library, "cuDeviceGetCount")
        if init.get("value") == 0
        else {"status": "absent", "detail": "CUDA is not initialised"},
    }


def _number(library: ctypes.CDLL, function: str) -> Cell:
    value = ctypes.c_int(-1)
    status = called(library, function, ctypes.byref(value))
    if status.get("value") == 0:
        return {"value": value.value}
    if "value" in status:
        return {"status": "broken", "detail": f"{function} returned {status['value']}", "code": status["value"]}
    return status
