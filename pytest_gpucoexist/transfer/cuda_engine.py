"""The engine of NVIDIA devices: CUDA's driver API, which comes with the driver, in the device's primary context.

The primary context is the one that torch, cupy and every other user of the runtime API in this process have, so their
pointers mean the same here (cuda.h, "Primary Context Management"). It is retained while the engine is open, and pushed
and popped around each use: what the thread had current stays.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.errors import EngineError
from pytest_gpucoexist.transfer.runtime_engine import FROM_HOST, ON_DEVICE, TO_HOST, RuntimeEngine
from pytest_gpucoexist.transfer.signatures import CUDA, PEER_ALREADY_ENABLED

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from pytest_gpucoexist.transfer.runtime import Runtime

__all__ = ["CudaEngine"]

_OPERATIONS = {TO_HOST: "to_host", FROM_HOST: "from_host", ON_DEVICE: "on_device"}


class _Pushed:
    """A context that is current for the length of a block."""

    def __init__(self, api: Runtime, context: ctypes.c_void_p) -> None:
        self._api = api
        self._context = context

    def __enter__(self) -> None:
        self._api.call("making the primary context current", "push", self._context)

    def __exit__(self, *_: object) -> None:
        self._api.code("pop", ctypes.byref(ctypes.c_void_p()))


class CudaEngine(RuntimeEngine):
    """One NVIDIA device."""

    TABLE = CUDA

    def _prepare(self) -> None:
        self._peers: dict[str, tuple[int, ctypes.c_void_p]] = {}
        self._context = self._retained(self._device, str(self.pci_address))
        self._pushed = _Pushed(self._api, self._context)

    def _current(self) -> AbstractContextManager[object]:
        return self._pushed

    def _copy(self, direction: int, target: int, source: int, size_bytes: int, stream: Any) -> tuple[str, int]:
        operation = _OPERATIONS[direction]
        return operation, self._api.code(operation, target, source, size_bytes, stream)

    def peer(self, other_pci: str) -> bool:
        """Ask cuDeviceCanAccessPeer, then enable it. A driver that says yes has not proven that the data arrive."""
        self._check()
        if other_pci in self._peers:
            return True
        other = self._api.device(other_pci)
        can = ctypes.c_int(0)
        doing = f"asking whether {self.pci_address} reaches {other_pci}"
        self._api.call(doing, "can_access", ctypes.byref(can), self._device, other)
        if not can.value:
            return False
        context = self._retained(other, other_pci)
        with self._current():
            code = self._api.code("enable_peer", context, 0)
        if code not in {0, PEER_ALREADY_ENABLED}:
            self._api.code("release", other)
            raise self._api.error(f"enabling access from {self.pci_address} to {other_pci}", "enable_peer", code)
        self._peers[other_pci] = (other, context)
        return True

    def to_peer(self, other_pci: str, target: int, source: int, size_bytes: int, event: int) -> None:
        self._check(size_bytes)
        if other_pci not in self._peers:
            raise EngineError(f"CUDA: {other_pci} is no peer of {self.pci_address}: ask `peer` first", kind="peer")
        with self._current():
            if size_bytes:
                doing = f"copying {size_bytes} bytes from {self.pci_address} to {other_pci}"
                context, stream = self._peers[other_pci][1], self._streams[ON_DEVICE]
                self._api.call(doing, "to_peer", target, context, source, self._context, size_bytes, stream)
            self._record(event, ON_DEVICE)

    def _retained(self, device: int, pci_address: str) -> ctypes.c_void_p:
        context = ctypes.c_void_p()
        self._api.call(f"retaining the primary context of {pci_address}", "retain", ctypes.byref(context), device)
        return context

    def _finish(self) -> None:
        for device, _ in self._peers.values():
            self._api.code("release", device)
        self._api.call(f"releasing the primary context of {self.pci_address}", "release", self._device)
