"""Functions that the tests call in vendor processes."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

held: list[Any] = []


class Capsule:
    """An array that has DLPack alone, of a kind of device that is told."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self) -> Any:
        return self.array.__dlpack__()


class OnDevice:
    """An array whose memory is that of a device, as torch and CuPy describe it."""

    def __init__(
        self, pointer: int, shape: tuple[int, ...], typestr: str, strides: Any = None, mask: Any = None
    ) -> None:
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": typestr,
            "data": (pointer, False),
            "strides": strides,
            "mask": mask,
            "version": 3,
        }


def numbers(count: int) -> Any:
    return np.arange(count, dtype=np.float32)


def capsule(count: int) -> Any:
    return Capsule(np.arange(count, dtype=np.float32))


def apart(count: int) -> Any:
    return np.arange(2 * count, dtype=np.float32)[::2]


def nothing() -> Any:
    return np.empty((0, 3))


def a_list() -> Any:
    return [1, 2]


def total(array: Any) -> float:
    return float(array.sum())


def set_to(array: Any, value: float) -> None:
    array[:] = value


def interface_of(view: Any) -> Any:
    interface = dict(view.__cuda_array_interface__)
    return {**interface, "shape": list(interface["shape"]), "data": list(interface["data"])}


def cuda_memory(size: int) -> Any:
    """Allocate with the library that is loaded, as a framework does."""
    library = ctypes.CDLL("libcuda.so.1")
    assert library.cuInit(0) == 0
    device, context, pointer = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    assert library.cuDeviceGet(ctypes.byref(device), 0) == 0
    assert library.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    assert library.cuCtxSetCurrent(context) == 0
    assert library.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(4 * size)) == 0
    values = numbers(size)
    assert library.cuMemcpyHtoD_v2(pointer, ctypes.c_void_p(values.ctypes.data), ctypes.c_size_t(4 * size)) == 0
    return OnDevice(pointer.value, (size,), "<f4")


def broken() -> Any:
    raise ValueError("on purpose")


def cuda_memory_of(size: int, index: int) -> Any:
    """Allocate as `cuda_memory`, and say of which device it is, as DLPack's producers do."""
    array = cuda_memory(size)
    array.__dlpack_device__ = lambda: (2, index)
    return array
