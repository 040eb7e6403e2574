"""Bytes between pytest's process and a device, through a piece of memory that both have mapped. Needs NumPy."""

from __future__ import annotations

import ctypes
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from pytest_gpucoexist.errors import TransferError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from pytest_gpucoexist.staging.endpoint import DeviceBuffer, Endpoint
    from pytest_gpucoexist.staging.service import Shared, Staging

__all__ = ["Bounce", "bytes_of", "from_host", "region_of", "to_host"]

PIECE_BYTES = 8 << 20
_SLOWEST = 50e6
_SLACK_S = 5.0


class Bounce:
    """One slot of memory near a device, through which bytes go piece by piece. `seconds` is the device's own time."""

    def __init__(self, staging: Staging, endpoint: Endpoint) -> None:
        """Take it from a service, which keeps it for the next one."""
        self._staging = staging
        self._endpoint = endpoint
        self._shared = staging.shared(1, PIECE_BYTES, staging.node_for(endpoint))
        try:
            self.unpinned = self._shared.attach(endpoint, pin=staging.pin)
        except BaseException:
            staging.discard(self._shared)
            raise
        self.seconds = 0.0

    def load(self, buffer: DeviceBuffer, offset: int, size: int, fill: Callable[[NDArray[Any], int], None]) -> None:
        """Have `fill(memory, at)` write each piece of `size` bytes, and copy it to the buffer from `offset` on."""
        for at, view in self._pieces(size):
            fill(view, at)
            self._move(buffer, offset + at, len(view), to_host=False)

    def read(
        self,
        buffer: DeviceBuffer,
        offset: int,
        size: int,
        take: Callable[[NDArray[Any], int], None],
        prepare: Callable[[NDArray[Any], int], None] | None = None,
    ) -> None:
        """Copy from the buffer by pieces and have `take(memory, at)` look; `prepare` writes to the memory first."""
        for at, view in self._pieces(size):
            if prepare is not None:
                prepare(view, at)
            self._move(buffer, offset + at, len(view), to_host=True)
            take(view, at)

    def _pieces(self, size: int) -> Iterator[tuple[int, NDArray[Any]]]:
        whole = region_of(self._shared, self._shared.segment.layout.offset(0), PIECE_BYTES)
        for at in range(0, size, PIECE_BYTES):
            yield at, whole[: min(PIECE_BYTES, size - at)]

    def _move(self, buffer: DeviceBuffer, offset: int, size: int, *, to_host: bool) -> None:
        endpoint, wait_s = self._endpoint, self._staging.copy_s + size / _SLOWEST
        asked = (endpoint.key, self._shared.number, 0, buffer.pointer + offset, size, to_host, wait_s)
        begun = time.perf_counter()
        try:
            device_s = endpoint.ask("move", *asked, deadline_s=wait_s + _SLACK_S)
        except BaseException:
            self._staging.discard(self._shared)
            raise
        self.seconds += time.perf_counter() - begun if device_s is None else device_s


def region_of(shared: Shared, offset: int, size: int) -> NDArray[Any]:
    """Return bytes of a segment as an array, which must not be used after the segment is closed."""
    memory: Any = (ctypes.c_ubyte * size).from_address(shared.segment.address + offset)
    found: NDArray[Any] = np.frombuffer(memory, dtype=np.uint8)
    return found


def bytes_of(data: Any) -> NDArray[Any]:
    """Return an array's (or any buffer's) bytes without a copy where that is possible."""
    array = np.ascontiguousarray(data) if isinstance(data, np.ndarray) else np.frombuffer(data, dtype=np.uint8)
    if array.dtype.hasobject:
        raise TransferError(f"an array of {array.dtype} holds references, not data")
    return array.reshape(-1).view(np.uint8)


def from_host(staging: Staging, data: Any, buffer: DeviceBuffer, offset: int = 0) -> None:
    """Copy an array, or bytes, to a buffer. Raises TransferError when it does not fit."""
    source = bytes_of(data)
    _inside(buffer, offset, len(source))

    def fill(view: NDArray[Any], at: int) -> None:
        view[:] = source[at : at + len(view)]

    Bounce(staging, buffer.endpoint).load(buffer, offset, len(source), fill)


def to_host(staging: Staging, buffer: DeviceBuffer, size: int | None = None, offset: int = 0) -> NDArray[Any]:
    """Return a copy of a buffer's bytes."""
    many = buffer.size_bytes - offset if size is None else size
    _inside(buffer, offset, many)
    found = np.empty(many, dtype=np.uint8)

    def take(view: NDArray[Any], at: int) -> None:
        found[at : at + len(view)] = view

    Bounce(staging, buffer.endpoint).read(buffer, offset, many, take)
    return found


def _inside(buffer: DeviceBuffer, offset: int, size: int) -> None:
    if buffer.is_closed or offset < 0 or size < 0 or offset + size > buffer.size_bytes:
        closed = ", which was given back" if buffer.is_closed else ""
        raise TransferError(f"{size} bytes at {offset} do not fit {buffer!r}{closed}")
