"""What the drivers themselves say, asked with `ctypes` alone and by nothing of the package.

Imported by processes of a vendor, and run as a program (`python oracles.py nvml`), so that the process of the tests
never opens a device.
"""

from __future__ import annotations

import ctypes
import json
import re
import sys
from typing import Any

_LIBRARIES = {"cuda": ("libcuda.so.1",), "hip": ("libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5")}
_NAMES = {
    "cuda": ("cuInit", "cuDeviceGetCount", "cuDeviceGetPCIBusId"),
    "hip": ("hipInit", "hipGetDeviceCount", "hipDeviceGetPCIBusId"),
}
_ROCM = "/opt/rocm/lib/libamdhip64.so"


def slot(address: str) -> str:
    """Return a PCI address without its function, which HIP always gives as 0."""
    return address.lower().strip("\0").rpartition(".")[0]


def devices_of(runtime: str) -> list[str]:
    """Return the slots of the devices that a runtime counts in this process, in its order; none where it has none."""
    library = _load(runtime)
    if library is None:
        return []
    initialise, count, address = (getattr(library, name) for name in _NAMES[runtime])
    number = ctypes.c_int(0)
    if initialise(0) or count(ctypes.byref(number)):
        return []
    found = []
    for index in range(number.value):
        text = ctypes.create_string_buffer(64)
        code = address(text, len(text), index)
        if code:
            raise RuntimeError(f"{_NAMES[runtime][2]}({index}) answered {code}")
        found.append(slot(text.value.decode()))
    return found


def mapped_libraries(pattern: str) -> list[str]:
    """Return the mapped files of this process that match."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        paths = {fields[5] for line in file if len(fields := line.split(maxsplit=5)) == 6}
    return sorted(path.strip() for path in paths if re.search(pattern, path))


def nvml_devices() -> list[dict[str, Any]]:
    """Return what NVML says of each device: address, UUID, name, memory, compute capability."""
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    _check(nvml.nvmlInit_v2(), "nvmlInit_v2")
    count = ctypes.c_uint(0)
    _check(nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)), "nvmlDeviceGetCount_v2")
    found = [_nvml_device(nvml, index) for index in range(count.value)]
    nvml.nvmlShutdown()
    return found


def _nvml_device(nvml: ctypes.CDLL, index: int) -> dict[str, Any]:
    handle = ctypes.c_void_p()
    _check(nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)), "nvmlDeviceGetHandleByIndex_v2")
    # nvmlPciInfo_t of nvml.h: the legacy address (16), five unsigned, the address (32).
    pci = ctypes.create_string_buffer(16 + 5 * 4 + 32)
    uuid, name = ctypes.create_string_buffer(96), ctypes.create_string_buffer(96)
    memory = (ctypes.c_ulonglong * 3)()  # nvmlMemory_t: total, free, used
    major, minor = ctypes.c_int(0), ctypes.c_int(0)
    _check(nvml.nvmlDeviceGetPciInfo_v3(handle, pci), "nvmlDeviceGetPciInfo_v3")
    _check(nvml.nvmlDeviceGetUUID(handle, uuid, 96), "nvmlDeviceGetUUID")
    _check(nvml.nvmlDeviceGetName(handle, name, 96), "nvmlDeviceGetName")
    _check(nvml.nvmlDeviceGetMemoryInfo(handle, memory), "nvmlDeviceGetMemoryInfo")
    code = nvml.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor))
    _check(code, "nvmlDeviceGetCudaComputeCapability")
    return {
        "slot": slot(pci.raw[36:].split(b"\0")[0].decode()[-12:]),
        "uuid": uuid.value.decode(),
        "name": name.value.decode(),
        "memory_bytes": memory[0],
        "arch": f"{major.value}.{minor.value}",
    }


def _check(code: int, function: str) -> None:
    if code:
        raise RuntimeError(f"{function} answered {code}")


def _load(runtime: str) -> ctypes.CDLL | None:
    for name in (*_LIBRARIES[runtime], *([_ROCM] if runtime == "hip" else [])):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


if __name__ == "__main__":
    print(json.dumps(nvml_devices() if sys.argv[1] == "nvml" else devices_of(sys.argv[1])))
