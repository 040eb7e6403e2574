"""Simulated devices for `--gpu-simulate`: host memory with a device's manners.

A buffer counts against the device's total memory as soon as it is allocated, and costs host memory only where it was
written: the pages come from the kernel when they are touched. Devices of different machines or vendors copy to each
other through host memory, as real ones that are not peers do.
"""

from __future__ import annotations

import mmap
import sys
from typing import TYPE_CHECKING

from pytest_gpucoexist.errors import GpuCoexistError

if TYPE_CHECKING:
    from types import TracebackType

    from pytest_gpucoexist.model.machine import Gpu

__all__ = ["SimulatedBuffer", "SimulatedDevice", "SimulatedMemoryError", "SimulatedUseError"]

_ALIGNMENT_BYTES = 256  # CUDA and HIP allocate in units of at least this
_MAP_NORESERVE = 0x4000  # mman.h of Linux; `mmap.MAP_NORESERVE` is of Python 3.11


class SimulatedMemoryError(GpuCoexistError, MemoryError):
    """An allocation that is larger than what is free on the device."""


class SimulatedUseError(GpuCoexistError, ValueError):
    """A buffer used after it was freed, or beyond its end; a device used after it was closed."""


class SimulatedDevice:
    """A device whose memory is bounded by `gpu.memory_total_bytes` (8 GiB where the machine does not say).

    A context manager: `close` frees everything.
    """

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.total_bytes = gpu.memory_total_bytes or 8 * 2**30
        self._buffers: dict[int, SimulatedBuffer] = {}
        self._closed = False

    @property
    def used_bytes(self) -> int:
        """The bytes that its live buffers take, rounded up as an allocator does."""
        return sum(_rounded(buffer.nbytes) for buffer in self._buffers.values())

    @property
    def free_bytes(self) -> int:
        """What can still be allocated."""
        return self.total_bytes - self.used_bytes

    def allocate(self, nbytes: int) -> SimulatedBuffer:
        """Allocate zeroed memory. Raises SimulatedMemoryError, or SimulatedUseError on a closed device."""
        if self._closed:
            raise SimulatedUseError(f"{self.gpu.id} (simulated): allocation on a device that was closed")
        if nbytes < 0:
            raise SimulatedUseError(f"{self.gpu.id} (simulated): cannot allocate {nbytes} bytes")
        if _rounded(nbytes) > self.free_bytes:
            raise SimulatedMemoryError(
                f"{self.gpu.id} (simulated): out of memory: {nbytes} bytes asked, {self.free_bytes} of"
                f" {self.total_bytes} free"
            )
        buffer = SimulatedBuffer(self, nbytes)
        self._buffers[id(buffer)] = buffer
        return buffer

    def close(self) -> None:
        """Free every buffer; the device cannot be used any more. Closing twice does nothing."""
        self._closed = True
        for buffer in list(self._buffers.values()):
            buffer.free()

    def __enter__(self) -> SimulatedDevice:  # noqa: PYI034 - typing.Self is of Python 3.11
        """Return the device."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def __repr__(self) -> str:
        """Say that it is simulated."""
        return f"<SimulatedDevice {self.gpu.id} {self.gpu.key}, {self.free_bytes} of {self.total_bytes} bytes free>"

    def _forget(self, buffer: SimulatedBuffer) -> None:
        self._buffers.pop(id(buffer), None)


class SimulatedBuffer:
    """Memory of a simulated device."""

    def __init__(self, device: SimulatedDevice, nbytes: int) -> None:
        self.device = device
        self.nbytes = nbytes
        self._memory: mmap.mmap | None = _map(nbytes)

    def write(self, data: bytes | bytearray | memoryview, offset: int = 0) -> None:
        """Copy from the host. Raises SimulatedUseError beyond the end or after `free`."""
        view = memoryview(data).cast("B")
        memory = self._checked(offset, view.nbytes, "write")
        memory[offset : offset + view.nbytes] = view.tobytes()

    def read(self, nbytes: int | None = None, offset: int = 0) -> bytes:
        """Copy to the host: `nbytes` from `offset`, or all that follows. Raises SimulatedUseError."""
        count = self.nbytes - offset if nbytes is None else nbytes
        return self._checked(offset, count, "read")[offset : offset + count]

    def copy_to(self, other: SimulatedBuffer, nbytes: int | None = None) -> None:
        """Copy to a buffer of this or another device. Raises SimulatedUseError when it does not fit."""
        other.write(self.read(nbytes))

    def free(self) -> None:
        """Give the memory back. Freeing twice does nothing."""
        if self._memory is not None:
            self._memory.close()
            self._memory = None
            self.device._forget(self)  # noqa: SLF001 - the two are one thing

    def _checked(self, offset: int, count: int, what: str) -> mmap.mmap:
        where = f"{self.device.gpu.id} (simulated): {what} of {count} bytes at {offset}"
        if self._memory is None:
            raise SimulatedUseError(f"{where} in a buffer that was freed")
        if offset < 0 or count < 0 or offset + count > self.nbytes:
            raise SimulatedUseError(f"{where} in a buffer of {self.nbytes} bytes")
        return self._memory


def _map(nbytes: int) -> mmap.mmap:
    """Map anonymous memory: a page exists from its first write on, so a device may be larger than this machine."""
    if not sys.platform.startswith("linux"):
        return mmap.mmap(-1, max(nbytes, 1))
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    try:
        return mmap.mmap(-1, max(nbytes, 1), flags=flags)
    except OSError as exc:
        raise SimulatedMemoryError(f"this machine cannot map {nbytes} bytes for a simulated GPU: {exc}") from exc


def _rounded(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
