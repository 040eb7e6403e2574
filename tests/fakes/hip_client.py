"""HIP's runtime API through the real rocm-bindings-hip, in the words of `serve`."""

from __future__ import annotations

import ctypes
import importlib
from typing import Any

from tests.fakes.serve import Refused

__all__ = ["Hip"]

hip: Any = importlib.import_module("rocm.bindings.hip")  # not everywhere installed, nor typed

_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_TO_DEVICE = hip.hipMemcpyKind.hipMemcpyHostToDevice
_TO_HOST = hip.hipMemcpyKind.hipMemcpyDeviceToHost
_ON_DEVICE = hip.hipMemcpyKind.hipMemcpyDeviceToDevice


def _well(answer: tuple[Any, ...]) -> Any:
    status, *values = answer
    if status != hip.hipError_t.hipSuccess:
        raise Refused(status.name)
    return values[0] if len(values) == 1 else values


class Hip:
    """A thread's view: work goes to the device of the last `use`. Handles are numbers."""

    def __init__(self) -> None:
        self._kept: list[Any] = []
        self.calls: list[int] = []

    def start(self) -> int:
        _well(hip.hipInit(0))
        return int(_well(hip.hipGetDeviceCount()))

    def describe(self, device: int) -> dict[str, Any]:
        properties = _well(hip.hipGetDeviceProperties(device))
        address = f"{properties.pciDomainID:04x}:{properties.pciBusID:02x}:{properties.pciDeviceID:02x}.0"
        return {
            "name": properties.name,
            "pci_address": address,
            "uuid": bytes(properties.uuid.bytes).decode(),
            "memory_total_bytes": properties.totalGlobalMem,
            "target": properties.gcnArchName,
        }

    def error(self, code: int) -> list[str]:
        status = hip.hipError_t(code)
        return [status.name, str(hip.hipGetErrorString(status))]

    def last_error(self) -> str:
        return str(hip.hipGetLastError()[0].name)

    def use(self, device: int) -> None:
        _well(hip.hipSetDevice(device))

    def memory(self) -> list[int]:
        return list(map(int, _well(hip.hipMemGetInfo())))

    def allocate(self, size_bytes: int) -> int:
        return int(_well(hip.hipMalloc(size_bytes)))

    def free(self, pointer: int) -> None:
        _well(hip.hipFree(pointer))

    def pinned(self, size_bytes: int) -> int:
        return int(_well(hip.hipHostMalloc(size_bytes, hip.hipHostMallocPortable)))

    def free_pinned(self, address: int) -> None:
        _well(hip.hipHostFree(address))

    def register(self, address: int, size_bytes: int) -> None:
        _well(hip.hipHostRegister(address, size_bytes, hip.hipHostRegisterPortable))

    def register_here(self, address: int, size_bytes: int) -> None:
        _well(hip.hipHostRegister(address, size_bytes, hip.hipHostRegisterDefault))

    def unregister(self, address: int) -> None:
        _well(hip.hipHostUnregister(address))

    def stream(self) -> int:
        return int(_well(hip.hipStreamCreate()))

    def stream_apart(self) -> int:
        return int(_well(hip.hipStreamCreateWithFlags(hip.hipStreamNonBlocking)))

    def close_stream(self, stream: int) -> None:
        _well(hip.hipStreamDestroy(stream))

    def wait(self, stream: int = 0) -> None:
        _well(hip.hipStreamSynchronize(stream))

    def is_done(self, stream: int = 0) -> None:
        _well(hip.hipStreamQuery(stream))

    def to_device(self, pointer: int, address: int, size_bytes: int, stream: int | None = None) -> None:
        if stream is None:
            _well(hip.hipMemcpy(pointer, address, size_bytes, _TO_DEVICE))
        else:
            _well(hip.hipMemcpyAsync(pointer, address, size_bytes, _TO_DEVICE, stream))

    def to_host(self, address: int, pointer: int, size_bytes: int, stream: int | None = None) -> None:
        if stream is None:
            _well(hip.hipMemcpy(address, pointer, size_bytes, _TO_HOST))
        else:
            _well(hip.hipMemcpyAsync(address, pointer, size_bytes, _TO_HOST, stream))

    def on_device(self, target: int, source: int, size_bytes: int, stream: int = 0) -> None:
        _well(hip.hipMemcpyAsync(target, source, size_bytes, _ON_DEVICE, stream))

    def to_peer(self, target: int, owner: int, source: int, device: int, size_bytes: int, stream: int = 0) -> None:
        _well(hip.hipMemcpyPeerAsync(target, owner, source, device, size_bytes, stream))

    def fill(self, pointer: int, byte: int, size_bytes: int, stream: int = 0) -> None:
        _well(hip.hipMemsetAsync(pointer, byte, size_bytes, stream))

    def event(self) -> int:
        return int(_well(hip.hipEventCreate()))

    def close_event(self, event: int) -> None:
        _well(hip.hipEventDestroy(event))

    def record(self, event: int, stream: int = 0) -> None:
        _well(hip.hipEventRecord(event, stream))

    def happened(self, event: int) -> None:
        _well(hip.hipEventQuery(event))

    def wait_event(self, event: int) -> None:
        _well(hip.hipEventSynchronize(event))

    def await_event(self, stream: int, event: int) -> None:
        _well(hip.hipStreamWaitEvent(stream, event, 0))

    def elapsed_ms(self, first: int, last: int) -> float:
        return float(_well(hip.hipEventElapsedTime(first, last)))

    def call_later(self, stream: int, number: int) -> None:
        callback = _CALLBACK(lambda _data: self.calls.append(number))
        self._kept.append(callback)
        _well(hip.hipLaunchHostFunc(stream, ctypes.cast(callback, ctypes.c_void_p).value, None))

    def called(self) -> list[int]:
        return self.calls

    def can_access(self, device: int, peer: int) -> bool:
        return bool(_well(hip.hipDeviceCanAccessPeer(device, peer)))

    def enable_peer(self, peer: int) -> None:
        _well(hip.hipDeviceEnablePeerAccess(peer, 0))

    def disable_peer(self, peer: int) -> None:
        _well(hip.hipDeviceDisablePeerAccess(peer))
