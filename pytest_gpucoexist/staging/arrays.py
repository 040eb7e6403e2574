"""Arrays of frameworks in a vendor's process: where their memory is, and views of ours for them. Sent there as source.

Two protocols: `__cuda_array_interface__`, which torch, CuPy and Numba have on CUDA and on ROCm alike, and DLPack, of
which only the capsule's structure is read (dlpack.h, version 0.8 and 1.0), so that no framework is imported here.
"""

from __future__ import annotations

import ctypes
from typing import Any

from pytest_gpucoexist.errors import TransferError

__all__ = ["DeviceView", "check_device", "memory_of"]

# dlpack.h: DLDeviceType, by the runtimes that can use the memory. kDLCUDAManaged is of either, kDLCPU a simulated one.
_KINDS = {
    "cuda": {2: "kDLCUDA", 13: "kDLCUDAManaged"},
    "hip": {10: "kDLROCM", 13: "kDLCUDAManaged"},
    "host": {1: "kDLCPU"},
}


class DeviceView:
    """Device memory of a transfer as bytes, for frameworks: `torch.as_tensor(view, device=…)`, `cupy.asarray(view)`."""

    def __init__(self, pointer: int, size_bytes: int) -> None:
        self.pointer = pointer
        self.size_bytes = size_bytes

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3 of the protocol (numba.readthedocs.io, "CUDA Array Interface")."""
        return {
            "shape": (self.size_bytes,),
            "typestr": "|u1",
            "data": (self.pointer, False),
            "strides": None,
            "version": 3,
        }


def memory_of(array: Any, runtime: str) -> tuple[int, int]:
    """Return pointer and size (bytes) of an array on a device. Raises TransferError for what cannot be copied whole."""
    kind = f"{type(array).__module__}.{type(array).__qualname__}"
    if runtime == "host" and hasattr(array, "__array_interface__"):
        return _of_interface(array.__array_interface__, kind)
    try:
        interface = getattr(array, "__cuda_array_interface__", None)  # torch raises for what is on no such device
    except Exception as error:  # it is the framework's
        raise TransferError(f"{kind} gives no memory of a device: {type(error).__name__}: {error}") from error
    if interface is not None:
        return _of_interface(interface, kind)
    if hasattr(array, "__dlpack__"):
        return _of_capsule(array, kind, runtime)
    raise TransferError(
        f"{kind} has neither __cuda_array_interface__ nor __dlpack__: return a tensor or an array on the device"
    )


def check_device(array: Any, runtime: str, number: int) -> None:
    """Raise TransferError for an array that says it is on another device than the runtime's `number`.

    Only DLPack says so; what does not have it is taken at its word, which the driver checks.
    """
    where = getattr(array, "__dlpack_device__", None)
    if where is None:
        return
    kind, index = (int(each) for each in where())
    if kind in _KINDS[runtime] and index != number:
        name = f"{type(array).__module__}.{type(array).__qualname__}"
        raise TransferError(
            f"{name} is on device {index} of this process, and was to be on its device {number}: make it there"
        )


def _of_interface(interface: dict[str, Any], kind: str) -> tuple[int, int]:
    shape, strides, typestr = interface["shape"], interface.get("strides"), str(interface["typestr"])
    item = int(typestr[2:])
    _whole(shape, None if strides is None else [each // item for each in strides], kind)
    if interface.get("mask") is not None:
        raise TransferError(f"{kind} has a mask: copy what it shows into an array without one")
    return int(interface["data"][0] or 0), _count(shape) * item


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


def _of_capsule(array: Any, kind: str, runtime: str) -> tuple[int, int]:
    capsule = (
        array.__dlpack__()
    )  # without a version a producer gives the structure of 0.8; it frees it with the capsule
    api: Any = ctypes.pythonapi
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
    tensor = _Tensor.from_address(api.PyCapsule_GetPointer(capsule, b"dltensor"))
    if tensor.device_type not in _KINDS[runtime]:
        wanted = " or ".join(_KINDS[runtime].values())
        raise TransferError(f"{kind} is on a device of DLPack's type {tensor.device_type}, not {wanted}")
    shape = [tensor.shape[at] for at in range(tensor.ndim)]
    strides = [tensor.strides[at] for at in range(tensor.ndim)] if tensor.strides else None
    _whole(shape, strides, kind)
    bits = tensor.bits * tensor.lanes
    if bits % 8:
        raise TransferError(f"{kind} has items of {bits} bits: convert it to one of whole bytes")
    return (tensor.data or 0) + tensor.byte_offset, _count(shape) * bits // 8


def _whole(shape: Any, strides: Any, kind: str) -> None:
    """Raise TransferError for memory that is not one piece in the order of its items."""
    expected = 1
    for size, stride in zip(reversed(list(shape)), reversed(list(strides or [])), strict=False):
        if size > 1 and stride != expected:
            raise TransferError(
                f"{kind} of shape {tuple(shape)} is not contiguous: make it so (.contiguous(), .copy())"
            )
        expected *= size
    if _count(shape) == 0:
        raise TransferError(f"{kind} of shape {tuple(shape)} is empty: there is nothing to copy")


def _count(shape: Any) -> int:
    count = 1
    for size in shape:
        count *= int(size)
    return count
