"""Copies between buffers of any two devices: within one, straight to a peer, or staged through host memory.

Staged: one segment that both processes have mapped and both runtimes have pinned, a ring of slots in it, and both
sides at work at the same time. Where a runtime cannot pin it, its driver copies by way of memory of its own, and the
result says so. Segments are kept for the next copy; one in which a copy failed is not used again.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from pytest_gpucoexist.errors import EngineError, TransferError, VendorProcessError
from pytest_gpucoexist.staging.endpoint import Endpoint
from pytest_gpucoexist.staging.near import better_node
from pytest_gpucoexist.staging.together import together
from pytest_gpucoexist.transfer.ring import chunk_for
from pytest_gpucoexist.transfer.segment import Layout, Segment

if TYPE_CHECKING:
    from types import TracebackType

    from pytest_gpucoexist.staging.endpoint import DeviceBuffer

__all__ = ["Copied", "Route", "Shared", "Staging"]

Route = Literal["local", "peer", "staged", "copied"]

_numbers = itertools.count(1)
_FIRST_GUESS = 8e9  # bytes per second, of a link that was not measured yet: half of PCIe 4.0 x8
_SLOWEST = 50e6  # a copy that is slower than this for long is not waited for
_SLACK_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """One copy. `elapsed_s` is by the host's clock; `device_s` by the device's events, where one device copied alone.

    `node` and `pages` are those of the host memory in between; `wake_ups_s` how long after it was posted a side saw a
    slot for which it had slept. `notes` say what was asked and could not be had.
    """

    route: Route
    source: str
    target: str
    size_bytes: int
    elapsed_s: float
    device_s: float | None = None
    chunk_bytes: int | None = None
    node: int | None = None
    pages: str | None = None
    wake_ups_s: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def bytes_per_s(self) -> float:
        """The rate, by the host's clock."""
        return self.size_bytes / self.elapsed_s


@dataclass(eq=False, slots=True)
class Shared:
    """A segment, and who has it mapped: by endpoint the reason why it is not pinned, "" where it is."""

    segment: Segment
    number: int = field(default_factory=lambda: next(_numbers))
    attached: dict[Endpoint, str] = field(default_factory=dict)

    def attach(self, endpoint: Endpoint, *, pin: bool = True) -> str:
        """Map it in an endpoint's process and pin it there; returns why it is not pinned, or nothing."""
        if endpoint not in self.attached:
            asked = (self.number, os.getpid(), self.segment.descriptor, endpoint.key, pin)
            self.attached[endpoint] = endpoint.ask("attach", *asked)
        return self.attached[endpoint]

    def close(self) -> None:
        """Unpin and unmap it wherever that still can be asked for."""
        for endpoint in self.attached:
            with contextlib.suppress(VendorProcessError, TransferError):
                endpoint.ask("detach", self.number)
        self.attached.clear()
        self.segment.close()


class Staging:
    """Copies for one test, or for one run of trials. Not for several threads at once; `close` leaves nothing behind."""

    def __init__(
        self,
        *,
        slots: int = 8,
        slot_bytes: int = 4 << 20,
        node: int | None = None,
        copy_s: float = 10.0,
        pin: bool = True,
    ) -> None:
        """Take how long one chunk may take (`copy_s`), and on which node the memory between shall be, if not near."""
        self.slots = slots
        self.slot_bytes = slot_bytes
        self.node = node
        self.copy_s = copy_s
        self.pin = pin
        self._shared: dict[tuple[int, int, int | None], Shared] = {}
        self._rates: dict[tuple[str, str], float] = {}
        self.proven: set[tuple[str, str]] = set()
        """Pairs (source, target) whose direct copies have been proven by data."""

    def copy(
        self,
        source: DeviceBuffer,
        target: DeviceBuffer,
        size_bytes: int | None = None,
        *,
        offsets: tuple[int, int] = (0, 0),
        route: Literal["auto", "local", "peer", "staged", "serial"] = "auto",
        depth: int = 2,
        chunk_bytes: int | None = None,
    ) -> Copied:
        """Copy `size_bytes` (default: the whole source) from and to these offsets, staged in chunks (default: by rate).

        "auto" goes straight to a peer only where that was proven (`proven`); "serial" is one slot, one copy at a time.
        Raises TransferError for buffers that do not fit, EngineError, and the errors of the processes.
        """
        size = source.size_bytes - offsets[0] if size_bytes is None else size_bytes
        for buffer, offset in zip((source, target), offsets, strict=True):
            if buffer.is_closed or size < 1 or offset < 0 or offset + size > buffer.size_bytes:
                raise TransferError(f"cannot copy {size} bytes at {offset} of {buffer!r}{_closed(buffer)}")
        if route == "auto":
            route = self.route(source.endpoint, target.endpoint)
        at = source.pointer + offsets[0], target.pointer + offsets[1]
        if route == "local":
            return self._local(source.endpoint, target.endpoint, at, size)
        if route == "peer":
            return self._straight(source.endpoint, target.endpoint, at, size)
        pace = {"depth": 1 if route == "serial" else depth, "copy_s": self.copy_s, "chunk_bytes": chunk_bytes}
        return self._staged(source.endpoint, target.endpoint, at, size, pace, serial=route == "serial")

    def shared(self, slots: int, slot_bytes: int, node: int | None) -> Shared:
        """Return a segment of this shape, a new one when there is none."""
        key = slots, slot_bytes, node
        if key not in self._shared:
            self._shared[key] = Shared(Segment.create(Layout(slots=slots, slot_bytes=slot_bytes), node=node))
        return self._shared[key]

    def discard(self, shared: Shared) -> None:
        """Use a segment no more."""
        for key in [key for key, each in self._shared.items() if each is shared]:
            del self._shared[key]
        shared.close()

    def node_for(self, *endpoints: Endpoint) -> int | None:
        """Choose the NUMA node of host memory: the one that was asked for, or the better one of these devices."""
        if self.node is not None:
            return self.node
        return better_node([each.gpu for each in endpoints if not _simulated(each)])

    def close(self) -> None:
        """Close every segment."""
        for shared in list(self._shared.values()):
            self.discard(shared)

    def __enter__(self) -> Staging:  # noqa: PYI034 - Self is of Python 3.11
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def route(self, source: Endpoint, target: Endpoint) -> Literal["local", "peer", "staged"]:
        """Say how "auto" copies between two devices."""
        if source is target:
            return "local"
        return "peer" if (source.key, target.key) in self.proven and source.process is target.process else "staged"

    def _patience_s(self, size: int) -> float:
        return self.copy_s + size / _SLOWEST

    def _local(self, source: Endpoint, target: Endpoint, at: tuple[int, int], size: int) -> Copied:
        if source is not target:
            raise TransferError(f"{source.key} and {target.key} are two devices: no copy between them is local")
        wait_s = self._patience_s(size)
        begun = time.perf_counter()
        device_s = source.ask("local", source.key, at[1], at[0], size, wait_s, deadline_s=wait_s + _SLACK_S)
        return _copied("local", source, target, size, begun, device_s=device_s)

    def _straight(self, source: Endpoint, target: Endpoint, at: tuple[int, int], size: int) -> Copied:
        if source.process is not target.process or source is target:
            raise TransferError(f"{source.key} and {target.key} are not two devices of one process: no direct copy")
        if not source.ask("peer", source.key, target.key):
            raise EngineError(f"{source.runtime} says that {source.key} does not reach {target.key}", kind="peer")
        wait_s = self._patience_s(size)
        begun = time.perf_counter()
        asked = (source.key, target.key, at[1], at[0], size, wait_s)
        device_s = source.ask("straight", *asked, deadline_s=wait_s + _SLACK_S)
        return _copied("peer", source, target, size, begun, device_s=device_s)

    def ring(self, source: Endpoint, target: Endpoint, *, serial: bool = False) -> Shared:
        """Return the segment through which copies between these devices go."""
        return self.shared(1 if serial else self.slots, self.slot_bytes, self.node_for(source, target))

    def _staged(
        self,
        source: Endpoint,
        target: Endpoint,
        at: tuple[int, int],
        size: int,
        pace: dict[str, Any],
        *,
        serial: bool,
    ) -> Copied:
        shared = self.ring(source, target, serial=serial)
        try:
            reasons = {each.key: shared.attach(each, pin=self.pin) for each in (source, target)}
            if pace["chunk_bytes"] is None:
                rate = self._rates.get((source.key, target.key), _FIRST_GUESS)
                pace["chunk_bytes"] = chunk_for(size, rate, self.slot_bytes)
            begun = time.perf_counter()
            sent, received = self._run_ring(source, target, shared.number, at, size, pace)
        except BaseException:
            self.discard(shared)
            raise
        self._rates[source.key, target.key] = size / max(sent["elapsed_s"], received["elapsed_s"])
        unpinned = [f"the memory between is not pinned for {key}: {why}" for key, why in reasons.items() if why]
        return _copied(
            "copied" if unpinned else "staged",
            source,
            target,
            size,
            begun,
            chunk_bytes=pace["chunk_bytes"],
            node=shared.segment.node(),
            pages=shared.segment.pages,
            wake_ups_s=(*sent["wake_ups_s"], *received["wake_ups_s"]),
            notes=(*unpinned, *shared.segment.reasons),
        )

    def _run_ring(
        self, source: Endpoint, target: Endpoint, number: int, at: tuple[int, int], size: int, pace: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        deadline_s = 3 * self.copy_s + self._patience_s(size) + _SLACK_S
        if source.process is target.process:
            sides = (source.key, at[0]), (target.key, at[1])
            sent, received = source.ask("both", *sides, number, size, pace, deadline_s=deadline_s)
            return sent, received

        def side(role: str, endpoint: Endpoint, pointer: int) -> Any:
            return endpoint.ask("one", role, endpoint.key, number, pointer, size, pace, deadline_s=deadline_s)

        processes = source.process.process, target.process.process
        return together(processes, lambda: side("sender", source, at[0]), lambda: side("receiver", target, at[1]))


def _copied(route: Route, source: Endpoint, target: Endpoint, size: int, begun: float, **more: Any) -> Copied:
    elapsed_s = time.perf_counter() - begun
    return Copied(route=route, source=source.key, target=target.key, size_bytes=size, elapsed_s=elapsed_s, **more)


def _closed(buffer: DeviceBuffer) -> str:
    return ", which was given back" if buffer.is_closed else ""


def _simulated(endpoint: Endpoint) -> bool:
    return endpoint.runtime == "host"
