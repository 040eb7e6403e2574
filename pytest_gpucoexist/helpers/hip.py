"""Helper `hip`: whether AMD's runtimes initialise, as JSON. No context is made. Runs in a process of its own.

    {"hsa": {"library": …, "path": …, "init": CELL} | {"status", "detail"},     hsa_init: 0, or hsa_status_t
     "hip": {"library": …, "path": …, "init": CELL, "count": CELL} | {"status", "detail"}}

HSA comes first, because HIP's own error hides the reason that HSA gives. A library that is not installed has a status
in place of its answers; the helper itself refuses only when both are missing. `init` is the library's number: 0;
100 (hipErrorNoDevice); 4104 (HSA_STATUS_ERROR_OUT_OF_RESOURCES) where /dev/kfd may not be opened.
"""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.helpers.native import called, load, loaded_from
from pytest_gpucoexist.helpers.protocol import HelperAbsent, HelperRefusal

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["answer"]


def answer(_request: Mapping[str, Any]) -> dict[str, Any]:
    """Initialise HSA and HIP. Raises HelperAbsent when neither library is installed."""
    hsa, hip = _guarded(_hsa), _guarded(_hip)
    if hsa.get("status") == hip.get("status") == "absent":
        raise HelperAbsent(f"neither HSA nor HIP is installed: {hip['detail']}", cause="no-library")
    return {"hsa": hsa, "hip": hip}


def _guarded(read: Any) -> dict[str, Any]:
    try:
        return read()  # type: ignore[no-any-return]
    except HelperRefusal as refusal:
        return {"status": refusal.status, "detail": str(refusal)}


def _names(stem: str, *versions: str) -> list[str]:
    """List where ROCm's loader configuration, or its own folder, has a library."""
    roots = [os.environ.get("ROCM_PATH"), os.environ.get("ROCM_HOME"), "/opt/rocm"]
    names = [f"{stem}.{version}" for version in versions]
    return names + [os.path.join(root, "lib", name) for root in dict.fromkeys(roots) if root for name in names]


def _hsa() -> dict[str, Any]:
    library, name = load(*_names("libhsa-runtime64.so", "1"))
    found = {"library": name, "path": loaded_from("libhsa-runtime64"), "init": called(library, "hsa_init")}
    if found["init"] == {"value": 0}:
        called(library, "hsa_shut_down")
    return found


def _hip() -> dict[str, Any]:
    library, name = load(*_names("libamdhip64.so", "7", "6", "5"))
    init = called(library, "hipInit", ctypes.c_uint(0))
    count = ctypes.c_int(-1)
    status = called(library, "hipGetDeviceCount", ctypes.byref(count))
    if status == {"value": 0}:
        status = {"value": count.value}
    elif "value" in status:
        code = status["value"]
        status = {"status": "broken", "detail": f"hipGetDeviceCount returned {code}", "code": code}
    return {"library": name, "path": loaded_from("libamdhip64"), "init": init, "count": status}
