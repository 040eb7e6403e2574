"""`--gpu-lease=off`: the tests of this process get different devices, and nobody else is asked or told."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from pytest_gpucoexist.errors import DeviceBusyError, GpuCoexistError
from pytest_gpucoexist.leases.lease import Lease
from pytest_gpucoexist.model.matching import choose

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpucoexist.leases.lease import OnWait
    from pytest_gpucoexist.model.groups import Group
    from pytest_gpucoexist.model.machine import Machine

__all__ = ["Unleased"]


class Unleased:
    """A `Leaser` of this process alone. It never waits: only this process itself could be in the way."""

    def __init__(self, machine: Callable[[], Machine]) -> None:
        """`machine` is called at each request."""
        self._machine = machine
        self._lock = threading.Lock()
        self._leases: dict[int, Lease] = {}
        self._last = 0

    def acquire(
        self,
        groups: Sequence[Group],
        owner: str,
        preferred: Sequence[str] = (),
        *,
        closest_pair: bool = False,
        timeout_s: float | None = None,  # noqa: ARG002
        on_wait: OnWait | None = None,  # noqa: ARG002
    ) -> Lease:
        """Choose devices that this process does not use already. Raises DeviceBusyError, and GpuCoexistError."""
        machine = self._machine()
        candidates = {key for group in groups for key in group.candidates}
        with self._lock:
            held = {key for lease in self._leases.values() for key in lease.keys}
            devices = choose(groups, candidates - held, machine, closest_pair=closest_pair, preferred=preferred)
            if devices is not None:
                self._last += 1
                lease = self._leases[self._last] = Lease(owner=owner, devices=devices, number=self._last)
                return lease
        wanted = ", ".join(sorted(candidates)) or "no device"
        if choose(groups, candidates, machine) is None:
            raise GpuCoexistError(f"{owner}: asks for more distinct devices than its candidates ({wanted}) offer")
        raise DeviceBusyError(f"{owner}: no free device among {wanted} (this process uses {', '.join(sorted(held))})")

    def release(self, lease: Lease, keys: Sequence[str] | None = None) -> None:
        """Give devices back, all or those in `keys`."""
        with self._lock:
            known = self._leases.pop(lease.number, None)
            if known is not None and keys is not None:
                left = tuple(tuple(key for key in group if key not in keys) for group in known.devices)
                if any(left):
                    self._leases[lease.number] = Lease(owner=known.owner, devices=left, number=known.number)

    def held(self) -> dict[str, str]:
        """Return the owner of each device that this process uses now."""
        with self._lock:
            return {key: lease.owner for lease in self._leases.values() for key in lease.keys}
