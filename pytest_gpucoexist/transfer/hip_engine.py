"""The engine of AMD devices: HIP's runtime, which has one context per device and process, shared with everybody in it.

A thread has a current device (`hipSetDevice`); each use selects this one and afterwards the one that was.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.errors import EngineError
from pytest_gpucoexist.transfer.runtime_engine import FROM_HOST, ON_DEVICE, TO_HOST, RuntimeEngine
from pytest_gpucoexist.transfer.signatures import HIP, PEER_ALREADY_ENABLED

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from pytest_gpucoexist.transfer.runtime import Runtime

__all__ = ["HipEngine"]

_KINDS = {
    FROM_HOST: 1,
    TO_HOST: 2,
    ON_DEVICE: 3,
}  # hipMemcpyHostToDevice, hipMemcpyDeviceToHost, hipMemcpyDeviceToDevice


class _Selected:
    """A device that is current for the length of a block; blocks of several devices may lie in one another."""

    def __init__(self, api: Runtime, device: int) -> None:
        self._api = api
        self._device = device
        self._before: list[int] = []

    def __enter__(self) -> None:
        before = ctypes.c_int(self._device)
        self._api.call("reading the thread's device", "current", ctypes.byref(before))
        if before.value != self._device:
            self._api.call(f"selecting device {self._device}", "select", self._device)
        self._before.append(before.value)

    def __exit__(self, *_: object) -> None:
        before = self._before.pop()
        if before != self._device:
            self._api.code("select", before)


class HipEngine(RuntimeEngine):
    """One AMD device."""

    TABLE = HIP

    def _prepare(self) -> None:
        self._peers: dict[str, int] = {}
        self._selected = _Selected(self._api, self._device)

    def _current(self) -> AbstractContextManager[object]:
        return self._selected

    def _copy(self, direction: int, target: int, source: int, size_bytes: int, stream: Any) -> tuple[str, int]:
        return "copy", self._api.code("copy", target, source, size_bytes, _KINDS[direction], stream)

    def peer(self, other_pci: str) -> bool:
        """Ask hipDeviceCanAccessPeer, then enable it. A driver that says yes has not proven that the data arrive."""
        self._check()
        if other_pci in self._peers:
            return True
        other = self._api.device(other_pci)
        can = ctypes.c_int(0)
        doing = f"asking whether {self.pci_address} reaches {other_pci}"
        self._api.call(doing, "can_access", ctypes.byref(can), self._device, other)
        if not can.value:
            return False
        with self._current():
            code = self._api.code("enable_peer", other, 0)
        if code not in {0, PEER_ALREADY_ENABLED}:
            raise self._api.error(f"enabling access from {self.pci_address} to {other_pci}", "enable_peer", code)
        self._peers[other_pci] = other
        return True

    def to_peer(self, other_pci: str, target: int, source: int, size_bytes: int, event: int) -> None:
        self._check(size_bytes)
        if other_pci not in self._peers:
            raise EngineError(f"HIP: {other_pci} is no peer of {self.pci_address}: ask `peer` first", kind="peer")
        with self._current():
            if size_bytes:
                doing = f"copying {size_bytes} bytes from {self.pci_address} to {other_pci}"
                other, stream = self._peers[other_pci], self._streams[ON_DEVICE]
                self._api.call(doing, "to_peer", target, other, source, self._device, size_bytes, stream)
            self._record(event, ON_DEVICE)

    def _finish(self) -> None:
        """Do nothing: HIP's context belongs to the process."""
