"""One request that waits: when it gives up, and what it says about those in its way."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_gpucoexist.errors import DeviceBusyError
from pytest_gpucoexist.host import local_host
from pytest_gpucoexist.leases.kept import holders_now
from pytest_gpucoexist.leases.kin import user_name
from pytest_gpucoexist.leases.lease import Holder, Waiting
from pytest_gpucoexist.leases.pursuit import AT_ONCE_S
from pytest_gpucoexist.leases.view import all_records

if TYPE_CHECKING:
    from pytest_gpucoexist.host import Host
    from pytest_gpucoexist.leases.guard import Guard, Watchman
    from pytest_gpucoexist.leases.hold import Hold
    from pytest_gpucoexist.leases.places import Place
    from pytest_gpucoexist.leases.queue import Turn
    from pytest_gpucoexist.leases.records import Identity
    from pytest_gpucoexist.leases.request import Request

__all__ = ["Kin", "Wait", "ancestors", "words"]

_MAX_DEPTH = 64
_PREPARE_S = 1.0


class Kin:
    """This process among those above it, which must not be waited for."""

    def __init__(self, identity: Identity, record_path: str | None, host: Host | None) -> None:
        """`record_path` is that of this process's own record."""
        self._identity = identity
        self._record_path = record_path
        self._host = host

    def holders(self, place: Place, machine: str) -> list[Holder]:
        """Return what processes hold that wait for this one: those above it, and others' sessions within it."""
        above = {os.getpid(), *ancestors(self._host)}
        return [
            holder
            for seen in all_records(place)
            if seen.live and seen.pid in above and seen.path != self._record_path and seen.machine == machine
            if seen.namespace in {None, self._identity.namespace}
            for holder in seen.holders()
        ]


class Wait:
    """How long a request waits already, for whom, and whether it goes on."""

    def __init__(
        self,
        request: Request,
        guard: Guard,
        watchman: Watchman,
        *,
        place: Place,
        kin: Kin,
        refuses_foreign: bool = False,
        limit_s: float | None = None,
    ) -> None:
        """Begin now. `limit_s`: 0 does not wait, None for ever; `refuses_foreign`: not for those without a lease."""
        self._request = request
        self._guard = guard
        self._watchman = watchman
        self._place = place
        self._kin: Kin | None = kin
        self._refuses_foreign = refuses_foreign
        self._limit_s = limit_s
        self._started = time.monotonic()
        self._prepared = False

    @property
    def elapsed_s(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self._started

    @property
    def may_queue(self) -> bool:
        """Whether it waits at all: who does not is not in the way of others either."""
        return self._limit_s != 0

    def check(self, hold: Hold | None, trouble: str = "") -> None:
        """Raise DeviceBusyError when there is nothing to wait for, or not any longer.

        `trouble` says why nothing can be locked at all.
        """
        elsewhere = self._guard.elsewhere()
        only_elsewhere = bool(elsewhere) and not self._request.could_do_without(elsewhere)
        expired = self._limit_s is not None and self.elapsed_s >= max(self._limit_s, AT_ONCE_S)
        if expired or (only_elsewhere and self._refuses_foreign):
            text = f"{self._request.owner}: no free device among {', '.join(sorted(self._request.candidates))}"
            text += (
                f" ({trouble or '; '.join(map(words, self.holders(hold))) or 'reserved for those who came earlier'})"
            )
            if self._request.inherits and not self._request.inherits_all:
                text += "; a process that uses devices of its parent's lease does not wait for others"
            elif expired and self._limit_s:
                text += f"; waited {self.elapsed_s:.0f} s"
            error = DeviceBusyError(text)
            error.elsewhere = only_elsewhere
            raise error
        if self._kin is not None and self.may_queue and not self._request.inherits_all:
            kin, self._kin = self._kin, None
            self._refuse_kin(kin)
        if not self._prepared and (self._guard.barred or self.elapsed_s >= _PREPARE_S):
            self._prepared = True
            self._watchman.prepare(self._request.candidates)

    def close(self) -> None:
        """End it."""
        if self._prepared:
            self._prepared = False
            self._watchman.done()

    def _refuse_kin(self, kin: Kin) -> None:
        found = kin.holders(self._place, self._machine_name)
        keys = {holder.key for holder in found}
        if keys and not self._request.could_do_without(keys):
            held = "; ".join(words(holder) for holder in found if holder.key in self._request.candidates)
            raise DeviceBusyError(
                f"{self._request.owner}: {held}, and that process waits for this one. Give the child the environment "
                "variable PYTEST_GPU_LEASE_TOKEN of the test that starts it"
            )

    @property
    def _machine_name(self) -> str:
        machine = self._request.machine
        return machine.name if machine.simulated else ""

    def holders(self, hold: Hold | None) -> tuple[Holder, ...]:
        """Return who keeps the devices that would do, as far as it can be seen."""
        wanted = set(self._request.candidates)
        found = [holder for key, holders in self._guard.barred.items() if key in wanted for holder in holders]
        seen = [each for each in all_records(self._place) if each.live and each.machine == self._machine_name]
        # A child that was forked past Python may keep a dead process's locks: it is named then.
        here = local_host()
        found += [holder for holder in holders_now(here, seen) if holder.key in wanted]
        named = {holder.key for holder in found}
        if hold is not None:
            for claim in self._request.all_claims():
                if claim.key not in named and not hold.free(claim):
                    found.append(Holder(key=claim.key, kind="unknown"))
                    self._guard.doubt([claim.key])
        users = {uid: user_name(here, uid) for uid in {each.uid for each in found if each.uid is not None}}
        return tuple(each if each.uid is None or each.user else replace(each, user=users[each.uid]) for each in found)

    def describe(self, hold: Hold | None, turn: Turn | None) -> Waiting:
        """Return what people are told."""
        ahead = turn.ahead(self._request.all_claims()) if turn is not None else 0
        return Waiting(owner=self._request.owner, waited_s=self.elapsed_s, holders=self.holders(hold), ahead=ahead)


def words(holder: Holder) -> str:
    """Say who keeps a device."""
    if holder.kind == "unknown":
        return f"{holder.key} is locked by a process that left no record that can be read"
    who = f"process {holder.pid}" if holder.pid is not None else "a process that cannot be seen"
    if holder.program:
        who += f" ({holder.program})"
    if holder.user or holder.uid is not None:
        who += f" of {holder.user or f'user {holder.uid}'}"
    if holder.kind != "lease" and holder.memory_bytes:
        from pytest_gpucoexist.model.arguments import format_bytes

        who += f" with {format_bytes(holder.memory_bytes)}"
    if holder.kind == "lease":
        return f"{holder.key} is held by {holder.test} in {who}" if holder.test else f"{holder.key} is held by {who}"
    if holder.kind == "leftover":
        return f"{holder.key} is not free yet after its holder died: {who}"
    return f"{holder.key} is used without a lease by {who}"


def ancestors(host: Host | None) -> tuple[int, ...]:
    """Return the PIDs of the processes above this one, the nearest first; none where `/proc` does not say."""
    found: list[int] = []
    pid = os.getppid()
    while host is not None and pid > 1 and len(found) < _MAX_DEPTH:
        found.append(pid)
        try:
            # Field 4 of proc_pid_stat(5); the name in field 2 can hold anything but ends with the last bracket.
            pid = int(host.read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            break
    return tuple(found)
