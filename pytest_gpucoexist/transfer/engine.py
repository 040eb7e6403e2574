"""What a device can do for a transfer, the same for every runtime: CUDA, HIP, and host memory that stands for a device.

Copies are asynchronous and in order per direction: to the host, from the host, and on the device. Order between
directions is the caller's, by `wait`. Events have the caller's numbers, so that a ring can name them by slot.

An engine is used by one thread, and leaves what that thread had current (context, device) as it found it. What a driver
never answers cannot be ended from inside a process: whoever needs that runs the engine in a child and kills it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from pytest_gpucoexist.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Engine", "EngineError", "open_engine"]


class Engine(Protocol):
    """One device of one runtime, in the calling process. Pointers and addresses are plain integers.

    Every method raises EngineError, `kind` says why: "argument" for a pointer, size or event that means nothing,
    "memory", "registered", "not-registered", "peer", "lost", "deadline", and "closed" after `close`.
    """

    @property
    def runtime(self) -> str:
        """The runtime: "cuda", "hip" or "host"."""

    @property
    def pci_address(self) -> str | None:
        """The device, as sysfs writes it; None for host memory that stands for no device."""

    def allocate(self, size_bytes: int) -> int:
        """Allocate device memory; its content is whatever it is. Returns a pointer that the host cannot read."""

    def free(self, pointer: int) -> None:
        """Give back what `allocate` returned; copies from and to it must have ended."""

    def register(self, address: int, size_bytes: int) -> None:
        """Pin host memory, which others may have pinned too, for copies at full speed."""

    def unregister(self, address: int) -> None:
        """Unpin what `register` pinned, before the memory is unmapped."""

    def to_host(self, address: int, pointer: int, size_bytes: int, event: int) -> None:
        """Begin to copy from the device, then record `event`. A size of 0 only records."""

    def from_host(self, pointer: int, address: int, size_bytes: int, event: int) -> None:
        """Begin to copy to the device, then record `event`. A size of 0 only records."""

    def on_device(self, target: int, source: int, size_bytes: int, event: int) -> None:
        """Begin to copy within the device, then record `event`. A size of 0 only records."""

    def fill(self, pointer: int, byte: int, size_bytes: int) -> None:
        """Set every byte; has ended on return."""

    def wait(self, event: int, deadline_s: float) -> None:
        """Return when what was queued before the latest record of `event` has ended; also raise what failed in it."""

    def settle(self) -> None:
        """Return when everything that this process has queued on the device has ended, by whomever; has no deadline."""

    def elapsed_s(self, first: int, last: int) -> float | None:
        """Return the device's time between two events that have ended; None where it keeps none."""

    def memory_bytes(self) -> tuple[int, int]:
        """Return free and total memory of the device."""

    def peer(self, other_pci: str) -> bool:
        """Let this device reach another's memory; false where the runtime says that it cannot."""

    def to_peer(self, other_pci: str, target: int, source: int, size_bytes: int, event: int) -> None:
        """Begin to copy straight to another device of the same runtime, then record `event`; `peer` comes first."""

    def close(self) -> None:
        """Wait for what is queued, then free and unregister everything; a second time does nothing."""


def open_engine(runtime: str, pci_address: str | None, *, library: str | None = None) -> Engine:
    """Open a device by its PCI address. `library` is another file than the loader would find.

    Raises EngineError: "argument" for an unknown runtime or an address that is none, "library", "no-device".
    """
    from pytest_gpucoexist.transfer.cuda_engine import CudaEngine
    from pytest_gpucoexist.transfer.hip_engine import HipEngine
    from pytest_gpucoexist.transfer.host_engine import HostEngine

    if runtime == "host":
        return HostEngine(pci_address)
    kinds: dict[str, Callable[..., Any]] = {"cuda": CudaEngine, "hip": HipEngine}
    if runtime not in kinds:
        raise EngineError(f"no runtime {runtime!r}: there are cuda, hip and host", kind="argument")
    engine: Engine = kinds[runtime](pci_address, library=library)
    return engine
