"""Gives devices to tests of this process, so that no process of this machine has them too.

A lease is a set of locks that the kernel holds for this process (`hold.py`); it ends when the process does, however.
Who waits asks again every few milliseconds; those who came earlier are served first (`queue.py`). Before a device is
given, `occupancy` says who uses it without a lease, and what is left of a holder that died (`guard.py`).
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pytest_gpucoexist.errors import GpuCoexistError
from pytest_gpucoexist.leases.forks import generation
from pytest_gpucoexist.leases.guard import Guard, Watchman
from pytest_gpucoexist.leases.hold import Hold, Holds
from pytest_gpucoexist.leases.lease import Lease
from pytest_gpucoexist.leases.pursuit import Pursuit
from pytest_gpucoexist.leases.queue import Watch
from pytest_gpucoexist.leases.reading import sweep
from pytest_gpucoexist.leases.records import Identity, Record, lease_text, wait_text
from pytest_gpucoexist.leases.request import Request
from pytest_gpucoexist.leases.token import space_of, token_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpucoexist.host import Host
    from pytest_gpucoexist.leases.guard import Occupancy
    from pytest_gpucoexist.leases.lease import OnWait
    from pytest_gpucoexist.leases.places import Place
    from pytest_gpucoexist.leases.request import Chosen
    from pytest_gpucoexist.leases.token import Inherited
    from pytest_gpucoexist.model.groups import Group
    from pytest_gpucoexist.model.machine import Machine

__all__ = ["Busy", "Identity", "MachineLeaser"]

Busy = Literal["wait", "skip", "fail", "share"]


@dataclass(slots=True, kw_only=True)
class _Given:
    """A lease with its locks, and what the record says of it."""

    lease: Lease
    hold: Hold
    since_s: float
    text: str


class MachineLeaser:
    """A `Leaser` whose leases bind the whole machine. Safe to use from several threads; a forked child starts anew."""

    def __init__(
        self,
        machine: Callable[[], Machine],
        place: Place,
        identity: Identity,
        *,
        default_memory_bytes: int | None = None,
        occupancy: Occupancy | None = None,
        busy: Busy = "wait",
        host: Host | None = None,
        inherited: Callable[[], Inherited | None] = lambda: None,
    ) -> None:
        """`machine` is called at each request: nothing is discovered, opened or made before.

        `busy` is `--gpu-busy`. `inherited` tells the lease of another process that this one may use, at each request.
        `host` tells which processes are above this one: to wait for one of them would be to wait for ever.
        """
        self._machine = machine
        self.place = place
        self.identity = identity
        self._default = default_memory_bytes
        self._occupancy = occupancy
        self._busy: Busy = busy
        self._host = host
        self._inherited = inherited
        self._forget()

    def _forget(self) -> None:
        self._generation = generation()
        self._lock = threading.Lock()
        self._leases: dict[int, _Given] = {}
        self._waits: dict[int, str] = {}
        self._last = 0
        self._watch = Watch()
        self._watchman = Watchman(self._occupancy)
        self._record: Record | None = None
        self._holds = Holds(self.place)
        self._swept = False  # of records of processes that died with nothing, or whose device another user got next

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
        """Wait until all groups can be served, and hold them (`Leaser.acquire`).

        A process that holds devices does not wait for more: two that did could wait for each other. An `on_wait` with
        an attribute `eager_s` begins its wait with so many seconds without a place in the queue.
        """
        if self._generation != generation():
            self._forget()
        request = Request(
            groups,
            self._machine(),
            owner=owner,
            preferred=preferred,
            closest_pair=closest_pair,
            default_memory_bytes=self._default,
            inherited=self._inherited(),
        )
        guard = Guard(self._watchman, self.place.folder, ignores_foreign=self._busy == "share")
        pursuit = Pursuit(request, self._holds.take, self._watch, guard)
        try:
            chosen = pursuit.attempt()
            if chosen is None and (eager_s := getattr(on_wait, "eager_s", 0.0)) and timeout_s is None:
                chosen = pursuit.eager(eager_s)
            if chosen is None:
                chosen = self._wait(pursuit, guard, timeout_s, on_wait)
            assert pursuit.hold is not None
            return self._granted(request, chosen, pursuit.hold)
        except BaseException:
            # An interrupt can come anywhere: nothing may stay locked that nobody knows of.
            self._drop(pursuit.hold)
            raise

    def _wait(self, pursuit: Pursuit, guard: Guard, timeout_s: float | None, on_wait: OnWait | None) -> Chosen:
        from pytest_gpucoexist.leases.waiting import Kin, Wait

        request = pursuit.request
        if request.choose() is None:
            wanted = ", ".join(sorted(request.candidates)) or "no device"
            raise GpuCoexistError(
                f"{request.owner}: asks for more distinct devices than its candidates ({wanted}) offer"
            )
        at_once = bool(self._leases) or (request.inherits and not request.inherits_all)
        wait = Wait(
            request,
            guard,
            self._watchman,
            place=self.place,
            kin=Kin(self.identity, self.record_path, self._host),
            refuses_foreign=self._busy in {"skip", "fail"},
            limit_s=0.0 if at_once else timeout_s,
        )
        self._say(lambda: self._waits.update({id(wait): wait_text(request.owner, time.time(), request.candidates)}))
        try:
            return pursuit.wait(wait, on_wait)
        finally:
            self._say(lambda: self._waits.pop(id(wait), None))

    def _granted(self, request: Request, chosen: Chosen, hold: Hold) -> Lease:
        hold.trim()
        claims = [request.claim(index, key) for index, keys in enumerate(chosen) for key in keys]
        if hold.board is not None:
            hold.board.write([claim for claim in claims if not claim.inherited])
        with self._lock:
            self._last += 1
            shares = tuple(share for claim in claims if (share := claim.share) is not None)
            lease = Lease(owner=request.owner, devices=chosen, number=self._last, shares=shares)
            now = time.time()
            text = lease_text(lease.number, lease.owner, now, claims)
            self._leases[lease.number] = _Given(lease=lease, hold=hold, since_s=now, text=text)
            record = self._own_record(request.machine)
            if record is not None:
                record.note(claims)
                self._write()
                if not self._swept and hold.board is not None and self.place.folder is not None:
                    self._swept = True
                    sweep(self.place.folder, hold.board.is_named)
        return lease

    def release(self, lease: Lease, keys: Sequence[str] | None = None) -> None:
        """Give devices back, all or those in `keys`. Releasing twice is no error."""
        if self._generation != generation():
            self._forget()
        with self._lock:
            entry = self._leases.get(lease.number)
            if entry is None or entry.lease.owner != lease.owner:
                return
            hold = entry.hold
            left = [] if keys is None else [claim for key, claim in hold.claims.items() if key not in keys]
            if left:
                entry.text = lease_text(lease.number, lease.owner, entry.since_s, left)
            else:
                del self._leases[lease.number]
            try:
                # Marks and record first: who gets the device next must not find it named here.
                if hold.board is not None:
                    hold.board.write([claim for claim in left if not claim.inherited])
                self._write()
                if left:
                    hold.give([key for key in hold.claims if keys is None or key in keys])
                else:
                    self._holds.put(hold)
            except BaseException:
                if not left:
                    hold.close()  # interrupted: nothing may stay locked that is no lease any more
                raise

    def held(self) -> dict[str, str]:
        """Return the owner of each device that this process holds now."""
        if self._generation != generation():
            self._forget()
        with self._lock:
            return {key: given.lease.owner for given in self._leases.values() for key in given.hold.claims}

    def token(self, lease: Lease) -> str | None:
        """Return what children find in `PYTEST_GPU_LEASE_TOKEN` to use a lease; None where no record is kept."""
        with self._lock:
            record = self._record
            if record is None or record.path is None or lease.number not in self._leases:
                return None
            self._leases[lease.number].hold.lend(space_of(record.nonce, lease.number))
            return token_text(record.path, record.nonce, lease.number)

    @property
    def record_path(self) -> str | None:
        """Where this process says what it holds."""
        return None if self._record is None else self._record.path

    def announce(self, lease: Lease) -> None:
        """Say that this process uses devices that another one holds for it, as for a rank: it is no stranger there."""
        from pytest_gpucoexist.leases.claims import Claim
        from pytest_gpucoexist.leases.layout import MIB

        shares = {share.key: share.memory_bytes // MIB for share in lease.shares}
        with self._lock:
            record = self._own_record(self._machine())
            if record is not None:
                record.note(Claim(key=key, name=key, memory_mib=shares.get(key)) for key in lease.keys)
                self._write()

    def close(self) -> None:
        """Give everything back and leave nothing behind; the session ends."""
        if self._generation != generation():
            self._forget()
        with self._lock:
            for given in self._leases.values():
                if given.hold.board is not None:
                    given.hold.board.write(())
                given.hold.close()
            self._leases.clear()
            self._holds.close()
            if self._record is not None:
                self._record.remove()
                self._record = None

    def _drop(self, hold: Hold | None) -> None:
        if hold is None:
            return
        with self._lock:
            for number in [number for number, given in self._leases.items() if given.hold is hold]:
                del self._leases[number]
            if hold.board is not None:
                with contextlib.suppress(OSError):
                    hold.board.write(())
            hold.close()
            self._write()

    def _say(self, change: Callable[[], Any]) -> None:
        with self._lock:
            change()
            self._own_record(self._machine())
            self._write()

    def _own_record(self, machine: Machine) -> Record | None:
        if self._record is None and self.place.folder is not None and self.place.locks == "table":
            self._record = Record(self.place.folder, self.identity, machine.name if machine.simulated else "")
        return self._record

    def _write(self) -> None:
        if self._record is not None:
            self._record.write((given.text for given in self._leases.values()), self._waits.values())
