"""CUDA's driver API through the real cuda-bindings, in the words of `serve`."""

from __future__ import annotations

import ctypes
import importlib
from typing import Any

from tests.fakes.serve import Refused

__all__ = ["Cuda"]

driver: Any = importlib.import_module("cuda.bindings.driver")  # not everywhere installed, nor typed

_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def _well(answer: tuple[Any, ...]) -> Any:
    status, *values = answer
    if status != driver.CUresult.CUDA_SUCCESS:
        raise Refused(status.name)
    return values[0] if len(values) == 1 else values


def _text(raw: bytes) -> str:
    return raw.split(b"\0")[0].decode()


class Cuda:
    """A thread's view: contexts are primary ones, current after `use`. Handles are numbers."""

    def __init__(self) -> None:
        self._contexts: dict[int, Any] = {}
        self._kept: list[Any] = []
        self.calls: list[int] = []

    def start(self) -> int:
        _well(driver.cuInit(0))
        return int(_well(driver.cuDeviceGetCount()))

    def describe(self, device: int) -> dict[str, Any]:
        attribute = driver.CUdevice_attribute
        capability = [
            _well(driver.cuDeviceGetAttribute(which, device))
            for which in (
                attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            )
        ]
        return {
            "name": _text(_well(driver.cuDeviceGetName(128, device))),
            "pci_address": _text(_well(driver.cuDeviceGetPCIBusId(32, device))).lower(),
            "uuid": _well(driver.cuDeviceGetUuid(device)).bytes.hex(),
            "memory_total_bytes": _well(driver.cuDeviceTotalMem(device)),
            "target": ".".join(map(str, capability)),
        }

    def error(self, code: int) -> list[str]:
        status = driver.CUresult(code)
        return [_text(_well(call(status))) for call in (driver.cuGetErrorName, driver.cuGetErrorString)]

    def use(self, device: int) -> None:
        if device not in self._contexts:
            self._contexts[device] = _well(driver.cuDevicePrimaryCtxRetain(device))
        _well(driver.cuCtxSetCurrent(self._contexts[device]))

    def release(self, device: int) -> None:
        del self._contexts[device]
        _well(driver.cuDevicePrimaryCtxRelease(device))

    def create_context(self, device: int) -> None:
        parameters = (None,) if driver.CUDA_VERSION >= 13000 else ()
        _well(driver.cuCtxCreate(*parameters, 0, device))

    def address_of(self, function: str, version: int) -> int:
        return int(_well(driver.cuGetProcAddress(function.encode(), version, 0))[0])

    def memory(self) -> list[int]:
        return list(map(int, _well(driver.cuMemGetInfo())))

    def allocate(self, size_bytes: int) -> int:
        return int(_well(driver.cuMemAlloc(size_bytes)))

    def free(self, pointer: int) -> None:
        _well(driver.cuMemFree(pointer))

    def pinned(self, size_bytes: int) -> int:
        return int(_well(driver.cuMemHostAlloc(size_bytes, driver.CU_MEMHOSTALLOC_PORTABLE)))

    def free_pinned(self, address: int) -> None:
        _well(driver.cuMemFreeHost(address))

    def register(self, address: int, size_bytes: int) -> None:
        _well(driver.cuMemHostRegister(address, size_bytes, driver.CU_MEMHOSTREGISTER_PORTABLE))

    def register_here(self, address: int, size_bytes: int) -> None:
        _well(driver.cuMemHostRegister(address, size_bytes, 0))

    def unregister(self, address: int) -> None:
        _well(driver.cuMemHostUnregister(address))

    def stream(self) -> int:
        return int(_well(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_DEFAULT.value)))

    def stream_apart(self) -> int:
        return int(_well(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING.value)))

    def close_stream(self, stream: int) -> None:
        _well(driver.cuStreamDestroy(stream))

    def wait(self, stream: int = 0) -> None:
        _well(driver.cuStreamSynchronize(stream))

    def is_done(self, stream: int = 0) -> None:
        _well(driver.cuStreamQuery(stream))

    def to_device(self, pointer: int, address: int, size_bytes: int, stream: int | None = None) -> None:
        if stream is None:
            _well(driver.cuMemcpyHtoD(pointer, address, size_bytes))
        else:
            _well(driver.cuMemcpyHtoDAsync(pointer, address, size_bytes, stream))

    def to_host(self, address: int, pointer: int, size_bytes: int, stream: int | None = None) -> None:
        if stream is None:
            _well(driver.cuMemcpyDtoH(address, pointer, size_bytes))
        else:
            _well(driver.cuMemcpyDtoHAsync(address, pointer, size_bytes, stream))

    def on_device(self, target: int, source: int, size_bytes: int, stream: int = 0) -> None:
        _well(driver.cuMemcpyDtoDAsync(target, source, size_bytes, stream))

    def to_peer(self, target: int, owner: int, source: int, device: int, size_bytes: int, stream: int = 0) -> None:
        contexts = self._contexts
        _well(driver.cuMemcpyPeerAsync(target, contexts[owner], source, contexts[device], size_bytes, stream))

    def fill(self, pointer: int, byte: int, size_bytes: int, stream: int = 0) -> None:
        _well(driver.cuMemsetD8Async(pointer, byte, size_bytes, stream))

    def event(self) -> int:
        return int(_well(driver.cuEventCreate(driver.CUevent_flags.CU_EVENT_DEFAULT.value)))

    def close_event(self, event: int) -> None:
        _well(driver.cuEventDestroy(event))

    def record(self, event: int, stream: int = 0) -> None:
        _well(driver.cuEventRecord(event, stream))

    def happened(self, event: int) -> None:
        _well(driver.cuEventQuery(event))

    def wait_event(self, event: int) -> None:
        _well(driver.cuEventSynchronize(event))

    def await_event(self, stream: int, event: int) -> None:
        _well(driver.cuStreamWaitEvent(stream, event, 0))

    def elapsed_ms(self, first: int, last: int) -> float:
        return float(_well(driver.cuEventElapsedTime(first, last)))

    def call_later(self, stream: int, number: int) -> None:
        callback = _CALLBACK(lambda _data: self.calls.append(number))
        self._kept.append(callback)
        function = driver.CUhostFn(_ptr=ctypes.addressof(callback))
        _well(driver.cuLaunchHostFunc(stream, function, 0))

    def called(self) -> list[int]:
        return self.calls

    def can_access(self, device: int, peer: int) -> bool:
        return bool(_well(driver.cuDeviceCanAccessPeer(device, peer)))

    def enable_peer(self, peer: int) -> None:
        _well(driver.cuCtxEnablePeerAccess(self._contexts[peer], 0))

    def disable_peer(self, peer: int) -> None:
        _well(driver.cuCtxDisablePeerAccess(self._contexts[peer]))
