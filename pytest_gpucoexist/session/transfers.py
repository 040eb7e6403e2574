"""The fixture `gpu_transfer`: memory of devices and copies between them, across processes and vendors."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Literal

import pytest

from pytest_gpucoexist.errors import UserError
from pytest_gpucoexist.session.vendor_processes import EXTRA, GpuProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pytest_gpucoexist.model.machine import Gpu
    from pytest_gpucoexist.model.trials import Integrity
    from pytest_gpucoexist.session.vendor_processes import GpuProcesses
    from pytest_gpucoexist.staging.endpoint import DeviceBuffer, Endpoint
    from pytest_gpucoexist.staging.service import Copied, Staging

__all__ = ["GpuTransfer", "transfers_of"]


class GpuTransfer:
    """What the fixture gives. Where a device is asked for, a leased `Gpu` or a process of `gpu_process` will do."""

    def __init__(self, item: pytest.Item, processes: GpuProcesses) -> None:
        """Begin with nothing open."""
        from pytest_gpucoexist.staging.service import Staging

        self._item = item
        self._processes = processes
        self._staging = Staging()
        self._own: dict[str, GpuProcess] = {}
        self._buffers: list[DeviceBuffer] = []
        self._sent = 0

    @property
    def staging(self) -> Staging:
        """The service beneath, with everything that can be set: slots, NUMA node, deadlines."""
        return self._staging

    def device_buffer(self, size_bytes: int, where: Gpu | GpuProcess, gpu: Gpu | None = None) -> DeviceBuffer:
        """Allocate memory on a device; `gpu` says which, where a process has several. Given back with the test."""
        return self._kept(self._endpoint(where, gpu).allocate(size_bytes))

    def borrow(
        self, where: Gpu | GpuProcess, function: Callable[..., Any], *args: Any, gpu: Gpu | None = None
    ) -> DeviceBuffer:
        """Call a function in the device's process and use the array that it returns, without a copy.

        A torch tensor, a CuPy array, whatever has `__cuda_array_interface__` or DLPack; contiguous, on that device.
        `gpu` says which device, where a process has several.
        """
        __tracebackhide__ = True
        return self._kept(self._endpoint(where, gpu).borrow(function, *args))

    def process(self, where: Gpu) -> GpuProcess:
        """Return the process that serves a device here."""
        if where.key not in self._own:
            self._own[where.key] = self._processes(where)
        return self._own[where.key]

    def from_host(self, array: Any, buffer: DeviceBuffer) -> None:
        """Copy a NumPy array, or bytes, to the beginning of a buffer."""
        from pytest_gpucoexist.staging.memory import from_host

        from_host(self._staging, array, buffer)

    def to_host(self, buffer: DeviceBuffer, dtype: Any = None) -> Any:
        """Return a copy of a buffer as a NumPy array, of bytes or of `dtype`."""
        from pytest_gpucoexist.staging.memory import to_host

        found = to_host(self._staging, buffer)
        return found if dtype is None else found.view(dtype)

    def copy(self, source: DeviceBuffer, target: DeviceBuffer, size_bytes: int | None = None) -> Copied:
        """Copy a buffer to another one on any device: `.route` says how it went, `.bytes_per_s` how fast.

        Straight between devices only where `prove_peers` has shown that it works; else staged through memory of the
        host that both runtimes have pinned. Raises TransferError (EngineError, PeerError) and the processes' errors.
        """
        return self._staging.copy(source, target, size_bytes)

    def verify(
        self,
        source: Gpu | GpuProcess,
        target: Gpu | GpuProcess,
        sizes: Sequence[int] | None = None,
        *,
        route: Literal["auto", "local", "peer", "staged", "serial"] = "auto",
    ) -> Integrity:
        """Copy payloads of our own of these sizes (bytes) and fail the test unless every byte is right.

        Checked are the payload, red zones before and after it, the memory between, and the source after the copy; what
        is wrong is named: stale, shifted, torn, zeros, overrun, and in which hop.
        """
        __tracebackhide__ = True
        from pytest_gpucoexist.staging.verified import SIZES, verified_copy

        ends = self._endpoint(source, None), self._endpoint(target, None)
        self._sent += 1
        found = verified_copy(self._staging, *ends, SIZES if sizes is None else sizes, seed=self._sent, route=route)
        if found.wrong:
            hops = {
                "loading": " (loading)",
                "first": " (first hop)",
                "second": " (second hop)",
                "reading": " (reading)",
            }
            lines = [
                f"  {each.size_bytes} bytes{hops.get(each.hop or '', '')}: {each.sentence}" for each in found.wrong
            ]
            pytest.fail(
                "\n".join([f"{found.source} -> {found.target} ({found.route}):", *lines, *found.notes]), pytrace=False
            )
        return found

    def prove_peers(self, source: Gpu, target: Gpu) -> bool:
        """Try direct copies between two devices of one vendor in a process of their own, and use them if all is right.

        A runtime that says that devices reach each other has not shown it; on some machines the attempt has crashed
        the display, so nothing tries it unasked (ROCm/legacy-rocm-build#1495).
        """
        from pytest_gpucoexist.staging.peers import prove_peers

        process = self._processes(source, target)
        ends = process.endpoint(source), process.endpoint(target)
        peering = prove_peers(self._staging, *ends, opted_in=True)
        words = f"{source.id} -> {target.id}: {peering.status}{f': {peering.reason}' if peering.reason else ''}"
        self._item.user_properties.append(("gpu_peers", words))
        return peering.status == "proven"

    def close(self) -> None:
        """Give everything back."""
        for buffer in self._buffers:
            buffer.close()
        self._staging.close()

    def _kept(self, buffer: DeviceBuffer) -> DeviceBuffer:
        self._buffers.append(buffer)
        return buffer

    def _endpoint(self, where: Gpu | GpuProcess, gpu: Gpu | None) -> Endpoint:
        return where.endpoint(gpu) if isinstance(where, GpuProcess) else self.process(where).endpoint(where)


@contextlib.contextmanager
def transfers_of(request: pytest.FixtureRequest, processes: GpuProcesses) -> Iterator[GpuTransfer]:
    """Give the service for a test and close it with the test. Raises UserError where NumPy or execnet is missing."""
    for name, module in (("NumPy", "numpy"), ("execnet", "execnet")):
        try:
            __import__(module)
        except ImportError:
            raise UserError(f"gpu_transfer needs {name}, which is not installed: {EXTRA}") from None
    transfer = GpuTransfer(request.node, processes)
    try:
        yield transfer
    finally:
        transfer.close()
