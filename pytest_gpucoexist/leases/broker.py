"""Who holds which device, within one session.

The broker grants everything that a request asks for or nothing, in the order of arrival. A later request may overtake
an earlier one only with devices that the earlier one could not use, so nobody starves; and an owner that holds
devices never waits for more, so nobody deadlocks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_gpucoexist.errors import DeviceBusyError, GpuCoexistError
from pytest_gpucoexist.model.matching import Group, choose

if TYPE_CHECKING:
    from pytest_gpucoexist.model.machine import Machine

__all__ = ["Broker", "Lease", "Request"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Devices that belong to `owner` until the lease is released: one tuple of keys per group of the request.

    It binds the tests of this session only. Other processes of the machine do not see it.
    """

    owner: str
    devices: tuple[tuple[str, ...], ...]
    number: int = 0

    @property
    def keys(self) -> tuple[str, ...]:
        """All devices, in the order of the groups."""
        return tuple(key for group in self.devices for key in group)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What an owner wants at once.

    `holder` is the process that it runs in: when that dies, its leases are free. A process runs one test at a time,
    so it never waits for more while it holds anything, for whichever of its tests. Without a holder, every owner
    stands for itself.
    """

    groups: tuple[Group, ...]
    owner: str
    holder: str = ""
    preferred: tuple[str, ...] = ()
    closest_pair: bool = False

    @property
    def candidates(self) -> frozenset[str]:
        """Every device that could serve this request."""
        return frozenset(key for group in self.groups for key in group.candidates)

    @property
    def who(self) -> str:
        """Who must not wait while it holds."""
        return self.holder or self.owner


@dataclass(slots=True, kw_only=True)
class _Waiting:
    number: int
    request: Request
    granted: Callable[[Lease], None]


@dataclass(slots=True)
class _State:
    waiting: list[_Waiting] = field(default_factory=list)
    leases: dict[int, tuple[Request, Lease]] = field(default_factory=dict)
    last: int = 0


class Broker:
    """Grants devices to the tests of one session; safe to use from several threads."""

    def __init__(self, machine: Callable[[], Machine], holder: str = "") -> None:
        """`machine` is called when a request arrives: nothing is discovered before. `holder` is that of `acquire`."""
        self._machine = machine
        self._holder = holder
        self._lock = threading.Lock()
        self._state = _State()

    def submit(self, request: Request, granted: Callable[[Lease], None]) -> int:
        """Queue a request and return its number; `granted` is called once, by whichever thread made it possible.

        Raises GpuCoexistError when the request could not be met with every device free, and DeviceBusyError when
        the holder has devices already and would have to wait.
        """
        machine = self._machine()
        if self._choose(request, request.candidates, machine) is None:
            wanted = ", ".join(sorted(request.candidates)) or "no device"
            raise GpuCoexistError(
                f"{request.owner}: asks for more distinct devices than its candidates ({wanted}) offer"
            )
        with self._lock:
            self._state.last += 1
            number = self._state.last
            self._state.waiting.append(_Waiting(number=number, request=request, granted=granted))
            grants = self._serve()
            if self._is_waiting(number) and self._held_by(request):
                self._state.waiting = [each for each in self._state.waiting if each.number != number]
                busy: DeviceBusyError | None = self._busy(request)
            else:
                busy = None
        _deliver(grants)
        if busy is not None:
            raise busy
        return number

    def acquire(
        self,
        groups: Sequence[Group],
        owner: str,
        preferred: Sequence[str] = (),
        *,
        closest_pair: bool = False,
        timeout_s: float | None = None,
    ) -> Lease:
        """Wait until all groups can be served with distinct devices, and hold them.

        Raises DeviceBusyError after `timeout_s`, and what `submit` raises.
        """
        request = Request(
            groups=tuple(groups),
            owner=owner,
            holder=self._holder,
            preferred=tuple(preferred),
            closest_pair=closest_pair,
        )
        arrived = threading.Event()
        leases: list[Lease] = []

        def granted(lease: Lease) -> None:
            leases.append(lease)
            arrived.set()

        number = self.submit(request, granted)
        try:
            in_time = arrived.wait(timeout_s)
        except BaseException:  # an interrupt while waiting must not leave a request that nobody collects
            self.cancel(number)
            raise
        if not in_time:
            busy = self._busy(request)
            self.cancel(number)
            raise busy
        return leases[0]

    def release(self, lease: Lease) -> None:
        """Give the devices back and serve those who wait. Releasing twice is no error."""
        with self._lock:
            self._state.leases.pop(lease.number, None)
            grants = self._serve()
        _deliver(grants)

    def cancel(self, number: int) -> None:
        """Withdraw a request, or release what it was granted in the meantime."""
        with self._lock:
            self._state.waiting = [each for each in self._state.waiting if each.number != number]
            self._state.leases.pop(number, None)
            grants = self._serve()
        _deliver(grants)

    def abandon(self, holder: str) -> tuple[Lease, ...]:
        """Release everything of a process that is gone, withdraw what it waited for, and return the lost leases."""
        with self._lock:
            state = self._state
            lost = [number for number, (request, _) in state.leases.items() if request.holder == holder]
            leases = tuple(state.leases.pop(number)[1] for number in lost)
            before = len(state.waiting)
            state.waiting = [each for each in state.waiting if each.request.holder != holder]
            grants = self._serve() if lost or before != len(state.waiting) else []
        _deliver(grants)
        return leases

    def held(self) -> Mapping[str, str]:
        """Return the owner of each device that is held now."""
        with self._lock:
            return {key: lease.owner for _, lease in self._state.leases.values() for key in lease.keys}

    def _serve(self) -> list[tuple[_Waiting, Lease]]:
        if not self._state.waiting:
            return []
        machine = self._machine()
        held = {key for _, lease in self._state.leases.values() for key in lease.keys}
        reserved: set[str] = set()
        grants: list[tuple[_Waiting, Lease]] = []
        for waiting in tuple(self._state.waiting):
            request = waiting.request
            devices = self._choose(request, request.candidates - held - reserved, machine)
            if devices is None:
                reserved |= request.candidates
                continue
            lease = Lease(owner=request.owner, devices=devices, number=waiting.number)
            self._state.waiting.remove(waiting)
            self._state.leases[waiting.number] = (request, lease)
            held.update(lease.keys)
            grants.append((waiting, lease))
        return grants

    @staticmethod
    def _choose(request: Request, free: frozenset[str], machine: Machine) -> tuple[tuple[str, ...], ...] | None:
        return choose(request.groups, free, machine, closest_pair=request.closest_pair, preferred=request.preferred)

    def _is_waiting(self, number: int) -> bool:
        return any(each.number == number for each in self._state.waiting)

    def _held_by(self, request: Request) -> list[Lease]:
        return [lease for other, lease in self._state.leases.values() if other.who == request.who]

    def _busy(self, request: Request) -> DeviceBusyError:
        held = ", ".join(
            f"{key} is held by {lease.owner}"
            for _, lease in self._state.leases.values()
            for key in lease.keys
            if key in request.candidates
        )
        message = (
            f"{request.owner}: no free device among {', '.join(sorted(request.candidates))} ({held or 'reserved'})"
        )
        leases = self._held_by(request)
        if any(lease.owner != request.owner for lease in leases):
            keys = ", ".join(key for lease in leases for key in lease.keys)
            message += (
                f"; this process does not wait, because it still holds {keys} from an earlier test: for a device of "
                "a wider scope use class_gpu, module_gpu or session_gpu, which are held by each test in turn"
            )
        elif leases:
            message += "; a test that holds devices does not wait for more: ask for all of them with its marks"
        return DeviceBusyError(message)


def _deliver(grants: Sequence[tuple[_Waiting, Lease]]) -> None:
    for waiting, lease in grants:
        waiting.granted(lease)
