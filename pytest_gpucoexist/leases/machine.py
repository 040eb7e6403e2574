"""Gives devices to tests of this process, so that no process of this machine has them too.

A lease is a set of locks that the kernel holds for this process (`hold.py`); it ends when the process does, however.
Who waits asks again every few milliseconds; those who came earlier are served first (`queue.py`).

`occupancy` tells what locks cannot: who uses a device without a lease, and what keeps the memory of a holder that died.
It offers `busy(keys, fresh)`, which returns a tuple of `Holder` for each key that must not be given now (others may be
left out). It is called before each grant and about every 50 ms during a wait, so it must answer from a cache that costs
microseconds, but with `fresh`, after a holder's death, where it must look again.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Literal, Protocol

from pytest_gpucoexist.errors import DeviceBusyError, GpuCoexistError
from pytest_gpucoexist.leases.hold import Hold
from pytest_gpucoexist.leases.lease import Lease, Waiting
from pytest_gpucoexist.leases.request import Request

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_gpucoexist.host import Host
    from pytest_gpucoexist.leases.lease import Holder, OnWait
    from pytest_gpucoexist.leases.places import Place
    from pytest_gpucoexist.leases.request import Chosen
    from pytest_gpucoexist.model.groups import Group
    from pytest_gpucoexist.model.machine import Machine

__all__ = ["Busy", "Identity", "MachineLeaser", "Occupancy", "open_leaser"]

Busy = Literal["wait", "skip", "fail", "share"]


class Identity:
    """Who a process is, for people: its session, its worker, the program."""

    __slots__ = ("program", "session", "worker")

    def __init__(self, session: str, worker: str | None = None, program: str = "pytest") -> None:
        """`session` is the same for all workers of a run."""
        self.session = session
        self.worker = worker
        self.program = program


class Occupancy(Protocol):
    """Who uses devices without a lease."""

    def busy(self, keys: Sequence[str], fresh: bool) -> Mapping[str, tuple[Holder, ...]]:
        """Return what keeps each device from being given; devices that may be given can be left out."""
        ...


class MachineLeaser:
    """A `Leaser` whose leases bind the whole machine. Safe to use from several threads."""

    def __init__(
        self,
        machine: Callable[[], Machine],
        place: Place,
        identity: Identity,
        *,
        default_memory_bytes: int | None = None,
        occupancy: Occupancy | None = None,
        busy: Busy = "wait",
    ) -> None:
        """`machine` is called at each request: nothing is discovered, opened or made before."""
        self._machine = machine
        self.place = place
        self.identity = identity
        self._default = default_memory_bytes
        self._occupancy = occupancy
        self._busy: Busy = busy
        self._lock = threading.Lock()
        self._leases: dict[int, tuple[Lease, Hold]] = {}
        self._last = 0

    def acquire(
        self,
        groups: Sequence[Group],
        owner: str,
        preferred: Sequence[str] = (),
        *,
        closest_pair: bool = False,
        timeout_s: float | None = None,
        on_wait: OnWait | None = None,
    ) -> Lease:
        """Wait until all groups can be served, and hold them (`Leaser.acquire`)."""
        machine = self._machine()
        request = Request(
            groups,
            machine,
            preferred=preferred,
            closest_pair=closest_pair,
            default_memory_bytes=self._default,
            prefix=f"{machine.name}:" if machine.simulated else "",
        )
        if request.choose() is None:
            wanted = ", ".join(sorted(request.candidates)) or "no device"
            raise GpuCoexistError(f"{owner}: asks for more distinct devices than its candidates ({wanted}) offer")
        hold = Hold(self.place)
        try:
            started = time.monotonic()
            told = started - 0.95
            while (chosen := request.attempt(hold, lambda _key: True)) is None:
                waited = time.monotonic() - started
                if self._leases or (timeout_s is not None and waited >= timeout_s):
                    raise _busy(owner, request)  # noqa: TRY301
                if on_wait is not None and time.monotonic() - told >= 1:
                    told = time.monotonic()
                    on_wait(Waiting(owner=owner, waited_s=waited))
                time.sleep(min(0.02, max(0.001, waited / 16)))
            return self._granted(owner, request, chosen, hold)
        except BaseException:
            hold.close()
            raise

    def _granted(self, owner: str, request: Request, chosen: Chosen, hold: Hold) -> Lease:
        shares = tuple(
            share
            for index, keys in enumerate(chosen)
            for key in keys
            if (share := request.claim(index, key).share) is not None
        )
        with self._lock:
            self._last += 1
            lease = Lease(owner=owner, devices=chosen, number=self._last, shares=shares)
            self._leases[lease.number] = (lease, hold)
        return lease

    def release(self, lease: Lease, keys: Sequence[str] | None = None) -> None:
        """Give devices back, all or those in `keys`. Releasing twice is no error."""
        with self._lock:
            entry = self._leases.get(lease.number)
            if entry is None or entry[0].owner != lease.owner:
                return
            hold = entry[1]
            hold.give(tuple(hold.claims) if keys is None else keys)
            if not hold.claims:
                del self._leases[lease.number]
                hold.close()

    def held(self) -> dict[str, str]:
        """Return the owner of each device that this process holds now."""
        with self._lock:
            return {key: lease.owner for lease, hold in self._leases.values() for key in hold.claims}

    def close(self) -> None:
        """Give everything back; the session ends."""
        with self._lock:
            for _, hold in self._leases.values():
                hold.close()
            self._leases.clear()


def _busy(owner: str, request: Request) -> DeviceBusyError:
    return DeviceBusyError(f"{owner}: no free device among {', '.join(sorted(request.candidates))}")


def open_leaser(
    machine: Callable[[], Machine],
    host: Host,
    *,
    lease_dir: str | None = None,
    session: str | None = None,
    worker: str | None = None,
    default_memory_bytes: int | None = None,
    occupancy: Occupancy | None = None,
    busy: Busy = "wait",
) -> MachineLeaser:
    """Return what gives devices of this machine, or of the one that `host` replays, to this process.

    `lease_dir` is the folder where leases are kept; without one the best place is found. Raises UserError when it
    cannot be used.
    """
    from pytest_gpucoexist.leases.places import find_place

    return MachineLeaser(
        machine,
        find_place(host, lease_dir),
        Identity(session or str(os.getpid()), worker),
        default_memory_bytes=default_memory_bytes,
        occupancy=occupancy,
        busy=busy,
    )
