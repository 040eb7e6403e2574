"""The functions of CUDA's driver API and of HIP's runtime that transfers need, as tables: operation, name, arguments.

Names and types: `cuda.h` of CUDA 12 and 13 (`_v2` is what the header's macros make of the plain name) and
`hip/hip_runtime_api.h` of ROCm 5 to 7. Every function returns a CUresult or a hipError_t, 0 for success, but
`hipGetErrorName` and `hipGetErrorString`, which return text. Codes are the same in both from 1 to 999, because HIP took
CUDA's.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["CUDA", "HIP", "KINDS", "NOT_READY", "PEER_ALREADY_ENABLED", "Function", "Table"]

_INT, _UINT, _BYTE, _SIZE = ctypes.c_int, ctypes.c_uint, ctypes.c_ubyte, ctypes.c_size_t
_HANDLE = ctypes.c_void_p  # CUcontext, CUstream, CUevent, hipStream_t, hipEvent_t
_HOST = ctypes.c_void_p
_DEVICE = ctypes.c_uint64  # CUdeviceptr; HIP has void *, of the same width
_TEXT = ctypes.c_char_p
_OUT = ctypes.c_void_p  # by reference: the type is the caller's

# CUDA_ERROR_NOT_READY, hipErrorNotReady; CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, hipErrorPeerAccessAlreadyEnabled.
NOT_READY = 600
PEER_ALREADY_ENABLED = 704

# Codes of both runtimes (cuda.h: cudaError_enum; hip_runtime_api.h: hipError_t), as the package's errors call them.
KINDS: Mapping[int, str] = {
    1: "argument",  # INVALID_VALUE
    2: "memory",  # OUT_OF_MEMORY
    17: "argument",  # hipErrorInvalidDevicePointer
    46: "lost",  # DEVICE_UNAVAILABLE
    100: "no-device",  # NO_DEVICE
    101: "no-device",  # INVALID_DEVICE
    201: "argument",  # INVALID_CONTEXT
    214: "lost",  # ECC_UNCORRECTABLE
    217: "peer",  # PEER_ACCESS_UNSUPPORTED
    400: "argument",  # INVALID_HANDLE
    600: "not-ready",  # NOT_READY
    700: "lost",  # ILLEGAL_ADDRESS: the context is of no use any more, as after the others from here to 719
    702: "lost",  # LAUNCH_TIMEOUT
    705: "peer",  # PEER_ACCESS_NOT_ENABLED
    709: "lost",  # CONTEXT_IS_DESTROYED
    711: "peer",  # TOO_MANY_PEERS
    712: "registered",  # HOST_MEMORY_ALREADY_REGISTERED
    713: "not-registered",  # HOST_MEMORY_NOT_REGISTERED
    714: "lost",  # HARDWARE_STACK_ERROR
    716: "lost",  # MISALIGNED_ADDRESS
    719: "lost",  # LAUNCH_FAILED
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """One function of a library."""

    name: str
    arguments: tuple[Any, ...]
    returns: Any = ctypes.c_int


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One runtime: where it is, whom it serves, and its functions by what they do here."""

    runtime: str
    title: str
    sonames: tuple[str, ...]
    folders: tuple[str, ...] = ()  # variables that name an installation whose `lib` has the library
    masks: tuple[str, ...] = ()
    functions: Mapping[str, Function]


def _functions(**rows: tuple[Any, ...]) -> dict[str, Function]:
    return {operation: Function(name=row[0], arguments=row[1:]) for operation, row in rows.items()}


CUDA = Table(
    runtime="cuda",
    title="CUDA",
    sonames=("libcuda.so.1",),
    masks=("CUDA_VISIBLE_DEVICES",),
    functions=_functions(
        initialise=("cuInit", _UINT),
        count=("cuDeviceGetCount", _OUT),
        device=("cuDeviceGet", _OUT, _INT),
        by_pci=("cuDeviceGetByPCIBusId", _OUT, _TEXT),
        pci=("cuDeviceGetPCIBusId", _TEXT, _INT, _INT),
        error_name=("cuGetErrorName", _INT, _OUT),
        error_text=("cuGetErrorString", _INT, _OUT),
        retain=("cuDevicePrimaryCtxRetain", _OUT, _INT),
        release=("cuDevicePrimaryCtxRelease_v2", _INT),
        push=("cuCtxPushCurrent_v2", _HANDLE),
        pop=("cuCtxPopCurrent_v2", _OUT),
        allocate=("cuMemAlloc_v2", _OUT, _SIZE),
        free=("cuMemFree_v2", _DEVICE),
        memory=("cuMemGetInfo_v2", _OUT, _OUT),
        register=("cuMemHostRegister_v2", _HOST, _SIZE, _UINT),
        unregister=("cuMemHostUnregister", _HOST),
        to_host=("cuMemcpyDtoHAsync_v2", _HOST, _DEVICE, _SIZE, _HANDLE),
        from_host=("cuMemcpyHtoDAsync_v2", _DEVICE, _HOST, _SIZE, _HANDLE),
        on_device=("cuMemcpyDtoDAsync_v2", _DEVICE, _DEVICE, _SIZE, _HANDLE),
        to_peer=("cuMemcpyPeerAsync", _DEVICE, _HANDLE, _DEVICE, _HANDLE, _SIZE, _HANDLE),
        synchronise=("cuCtxSynchronize",),
        fill=("cuMemsetD8Async", _DEVICE, _BYTE, _SIZE, _HANDLE),
        new_stream=("cuStreamCreate", _OUT, _UINT),
        end_stream=("cuStreamDestroy_v2", _HANDLE),
        query_stream=("cuStreamQuery", _HANDLE),
        new_event=("cuEventCreate", _OUT, _UINT),
        end_event=("cuEventDestroy_v2", _HANDLE),
        record=("cuEventRecord", _HANDLE, _HANDLE),
        query_event=("cuEventQuery", _HANDLE),
        elapsed=("cuEventElapsedTime", _OUT, _HANDLE, _HANDLE),
        can_access=("cuDeviceCanAccessPeer", _OUT, _INT, _INT),
        enable_peer=("cuCtxEnablePeerAccess", _HANDLE, _UINT),
    ),
)

HIP = Table(
    runtime="hip",
    title="HIP",
    sonames=("libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"),
    folders=("ROCM_PATH", "ROCM_HOME"),
    masks=("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"),
    functions=_functions(
        initialise=("hipInit", _UINT),
        forget=("hipGetLastError",),
        count=("hipGetDeviceCount", _OUT),
        by_pci=("hipDeviceGetByPCIBusId", _OUT, _TEXT),
        pci=("hipDeviceGetPCIBusId", _TEXT, _INT, _INT),
        current=("hipGetDevice", _OUT),
        select=("hipSetDevice", _INT),
        allocate=("hipMalloc", _OUT, _SIZE),
        free=("hipFree", _DEVICE),
        memory=("hipMemGetInfo", _OUT, _OUT),
        register=("hipHostRegister", _HOST, _SIZE, _UINT),
        unregister=("hipHostUnregister", _HOST),
        copy=("hipMemcpyAsync", _DEVICE, _DEVICE, _SIZE, _INT, _HANDLE),
        to_peer=("hipMemcpyPeerAsync", _DEVICE, _INT, _DEVICE, _INT, _SIZE, _HANDLE),
        synchronise=("hipDeviceSynchronize",),
        fill=("hipMemsetAsync", _DEVICE, _INT, _SIZE, _HANDLE),
        new_stream=("hipStreamCreateWithFlags", _OUT, _UINT),
        end_stream=("hipStreamDestroy", _HANDLE),
        query_stream=("hipStreamQuery", _HANDLE),
        new_event=("hipEventCreateWithFlags", _OUT, _UINT),
        end_event=("hipEventDestroy", _HANDLE),
        record=("hipEventRecord", _HANDLE, _HANDLE),
        query_event=("hipEventQuery", _HANDLE),
        elapsed=("hipEventElapsedTime", _OUT, _HANDLE, _HANDLE),
        can_access=("hipDeviceCanAccessPeer", _OUT, _INT, _INT),
        enable_peer=("hipDeviceEnablePeerAccess", _INT, _UINT),
    )
    | {
        "error_name": Function(name="hipGetErrorName", arguments=(_INT,), returns=ctypes.c_char_p),
        "error_text": Function(name="hipGetErrorString", arguments=(_INT,), returns=ctypes.c_char_p),
    },
)
