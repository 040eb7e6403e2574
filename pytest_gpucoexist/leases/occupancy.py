"""Whether a device is really free: who uses it without a lease, and whether a dead holder's memory is back.

A process is *foreign* when it is none of the plugin's, no child of one, and none that waits for this process. Foreign
processes make a device busy by these rules:

- One that computes does, whatever memory it holds.
- What draws the desktop (`model/programs.py`), monitors and MPS's own server do not, up to a quarter of the memory.
- Any other that only draws (a browser, a terminal) does from 512 MiB.
- Where processes cannot be matched or seen (a container, other users' descriptors), totals decide: memory in use
  beyond what leases declare, what the known processes hold and a tolerance is somebody's. The tolerance is 512 MiB or
  5 % of the memory, 1 GiB or 10 % where a desktop is shown, and 512 MiB for the context of each process of the plugin.

After a death the device is back when no process of the holder is left on it, and no memory is in use that nobody
accounts for: 256 MiB and 2 % are a context's worth of doubt, with a desktop as above.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_gpucoexist.leases.kin import Dead, Kin
from pytest_gpucoexist.leases.lease import Holder
from pytest_gpucoexist.model.programs import DESKTOP, MONITORS, MPS
from pytest_gpucoexist.probes.occupants import LITTLE_BYTES, Occupant, Occupants, needs_nvml, occupants

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from pytest_gpucoexist.host.base import HelperReply, Host
    from pytest_gpucoexist.host.resident import Resident
    from pytest_gpucoexist.model.machine import Gpu, Machine

__all__ = ["TTL_S", "Occupancy", "judged"]

TTL_S = 10.0
"""How long an answer counts: NVML costs some 150 ms, for the start of its process."""

_BUSY_TTL_S = 2.0  # somebody waits for a device that others use
_MIB = 1 << 20
_SILENCE_S = 600.0  # a library that gave no answer is not asked again for as long: each time would cost the deadline


class Occupancy:
    """Asks a machine who uses its devices, and remembers the answer for a while. Not for several threads at once.

    `ours` gives the PIDs of all live processes that use the plugin here, from the records of leases. A replayed
    machine has no users: nothing is asked there.
    """

    def __init__(
        self,
        host: Host | None,
        machine: Callable[[], Machine],
        ours: Callable[[], Collection[int]],
        *,
        ttl_s: float = TTL_S,
        deadline_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
        ask: Callable[[], HelperReply] | None = None,
    ) -> None:
        """`ask` calls the helper `nvml_users` in another way than by a process of its own each time."""
        self._host = host
        self._machine = machine
        self._ours = ours
        self._ttl_s = ttl_s
        self._deadline_s = deadline_s
        self._clock = clock
        self._ask = ask
        self._known: dict[str, tuple[float, Occupants]] = {}
        self._holders: dict[str, tuple[Holder, ...]] = {}
        self._silent_until = float("-inf")
        self._silence = ""
        self._resident: Resident | None = None

    def prepare(self, keys: Collection[str]) -> None:
        """Get ready to answer within milliseconds, because a device of these may become free: `close` when it has.

        NVML is loaded in a helper that stays. Returns at once; where nobody asks NVML, nothing is done.
        """
        host = self._host
        if host is None or host.simulated or self._ask is not None or self._clock() < self._silent_until:
            return
        if any(gpu.key in keys and needs_nvml(host, gpu) for gpu in self._machine().gpus):
            from pytest_gpucoexist.host.resident import Resident

            self._resident = self._resident or Resident(host, "nvml_users")
            try:
                self._resident.start(self._deadline_s + 5.0)
            except OSError:
                self._resident = None  # it is asked in the other way, which says why it fails

    def close(self) -> None:
        """End the helper that stays, if there is one. The next question starts one of its own."""
        if self._resident is not None:
            self._resident.close()
            self._resident = None

    def busy(
        self,
        keys: Collection[str],
        *,
        fresh: bool = False,
        declared: Mapping[str, int] | None = None,
        dead: Mapping[str, Sequence[Dead]] | None = None,
    ) -> Mapping[str, tuple[Holder, ...]]:
        """Return who keeps each device from a new holder; only devices that somebody keeps are in it. Never raises.

        `fresh` asks now, else an answer of the last `ttl_s` seconds counts. `declared` are the bytes that the leases
        of live processes cover, by key; whole devices count with all of their memory, and so does what such a process
        held before and may keep in a cache. `dead` are holders that died with the device, by key: what is left of
        them has the kind `leftover`, everything else `elsewhere`.
        """
        if self._host is None or self._host.simulated:
            return {}
        looked = self._look(self._host, keys, fresh=fresh)
        if looked:
            ours = frozenset(self._ours())
            kin = Kin(self._host, ours)
            for key, device in looked.items():
                self._holders[key] = (
                    ()
                    if device.problem is not None or (not device.processes and not device.used_bytes)
                    else tuple(
                        judged(
                            key,
                            device,
                            kin,
                            processes=len(ours),
                            declared_bytes=(declared or {}).get(key, 0),
                            dead=(dead or {}).get(key, ()),
                        )
                    )
                )
        return {key: holders for key in keys if (holders := self._holders.get(key))}

    def knows(self, keys: Collection[str]) -> bool:
        """Whether `busy` would answer without looking, unless told to be fresh."""
        return self._host is None or self._host.simulated or not self._stale(keys)

    def problems(self) -> Mapping[str, str]:
        """Say, by key, why nothing is known of devices that were asked about."""
        return {key: seen.problem for key, (_when, seen) in self._known.items() if seen.problem is not None}

    def _look(self, host: Host, keys: Collection[str], *, fresh: bool) -> Mapping[str, Occupants]:
        """Return what is seen now of the devices whose answers count no more; the others are left out."""
        stale = keys if fresh else self._stale(keys)
        if not stale:
            return {}
        gpus = self._worth_asking(host, stale)
        looked = occupants(host, gpus, lambda: self._reply(host))
        now = self._clock()
        self._known.update((key, (now, looked.get(key, Occupants()))) for key in {*stale, *looked})
        return looked

    def _stale(self, keys: Collection[str]) -> list[str]:
        now = self._clock()
        ttl_s, busy_ttl_s = self._ttl_s, min(self._ttl_s, _BUSY_TTL_S)
        return [
            key
            for key in keys
            if key not in self._known or now - self._known[key][0] >= (busy_ttl_s if self._holders.get(key) else ttl_s)
        ]

    def _worth_asking(self, host: Host, keys: Collection[str]) -> list[Gpu]:
        """Return the GPUs of these keys, and where NVML has to be asked all that it answers for: it costs the same."""
        gpus = [gpu for gpu in self._machine().gpus if gpu.is_compute]
        wanted = [gpu for gpu in gpus if gpu.key in keys]
        if any(needs_nvml(host, gpu) for gpu in wanted):
            wanted += [gpu for gpu in gpus if gpu.key not in keys and needs_nvml(host, gpu)]
        return wanted

    def _reply(self, host: Host) -> HelperReply:
        now = self._clock()
        if now < self._silent_until:
            from pytest_gpucoexist.host.base import HelperReply

            return HelperReply(status="broken", detail=f"{self._silence}; not asked again for a while")
        if self._ask is not None:
            reply = self._ask()
        elif self._resident is not None:
            reply = self._resident.ask(deadline_s=self._deadline_s)
        else:
            reply = host.ask("nvml_users", deadline_s=self._deadline_s)
        if reply.status != "ok":
            self._silent_until, self._silence = now + _SILENCE_S, reply.detail or f"NVML is {reply.status}"
        return reply


@dataclass(slots=True, kw_only=True)
class _Sum:
    """Memory of the processes of a device that were told apart."""

    ours: int = 0
    others: int = 0
    unmatched: int = 0
    unknown: bool = False

    def add(self, occupant: Occupant, *, ours: bool) -> None:
        """Count a process."""
        size = occupant.memory_bytes or 0
        self.unknown = self.unknown or (occupant.memory_bytes is None)
        if ours:
            self.ours += size
        else:
            self.others += size


def judged(
    key: str, device: Occupants, kin: Kin, *, processes: int = 0, declared_bytes: int = 0, dead: Sequence[Dead] = ()
) -> Iterator[Holder]:
    """Judge one device by the rules above; `processes` counts those of the plugin."""
    told = _Sum()
    for occupant in device.processes:
        place = kin.place(occupant)
        if place == "unmatched":
            told.unmatched += 1
            continue
        if place == "gone":
            continue
        mine = kin.is_ours(occupant.pid) and kin.left_by(occupant.pid, dead) is None
        told.add(occupant, ours=mine)
        if not mine:
            holder = _holder(key, device, occupant, kin, dead)
            if holder is not None:
                yield holder
    blind = told.unmatched > 0 or device.unseen is not None or kin.is_first is False
    if device.used_bytes is None or (told.unknown and not blind):
        # No total, or a process whose share of it nobody knows: with its PID it was judged by itself.
        if told.unmatched > processes:
            yield Holder(key=key, kind="elsewhere")
        return
    if not blind and not dead:
        return
    # Where every process is known by its PID, so is what it holds; a lease says only what it may.
    rest = device.used_bytes - told.others - (max(told.ours, declared_bytes) if blind else told.ours)
    if rest > _tolerance(device, processes if blind else 0, blind=blind):
        yield _unnamed(key, rest, dead)


def _holder(key: str, device: Occupants, occupant: Occupant, kin: Kin, dead: Sequence[Dead]) -> Holder | None:
    """Name a foreign process that keeps the device; None for one that does not."""
    stat = kin.stat(occupant.pid)
    gone = kin.left_by(occupant.pid, dead)
    if gone is None and not _counts(device, occupant, stat.name if stat is not None else ""):
        return None
    uid, user = kin.user(occupant.pid)
    holder = Holder(
        key=key,
        kind="elsewhere",
        pid=occupant.pid,
        uid=uid,
        user=user,
        program=stat.name if stat is not None else None,
        memory_bytes=occupant.memory_bytes,
    )
    return holder if gone is None else replace(holder, kind="leftover", session=gone.session, test=gone.test)


def _counts(device: Occupants, occupant: Occupant, name: str) -> bool:
    """Whether a foreign process makes the device busy."""
    size = occupant.memory_bytes or 0
    if name in DESKTOP or name in MONITORS or name in MPS:
        return size > max(1 << 30, (device.total_bytes or 0) // 4)
    return occupant.compute or size > LITTLE_BYTES


def _unnamed(key: str, rest: int, dead: Sequence[Dead]) -> Holder:
    """Describe memory that no process of this `/proc` accounts for."""
    if not dead:
        return Holder(key=key, kind="elsewhere", memory_bytes=rest)
    last = dead[-1]
    return Holder(
        key=key, kind="leftover", pid=last.pid or None, session=last.session, test=last.test, memory_bytes=rest
    )


def _tolerance(device: Occupants, processes: int, *, blind: bool) -> int:
    total = device.total_bytes or 0
    if device.display:
        least, percent = 1024 * _MIB, 10
    elif blind:
        least, percent = 512 * _MIB, 5
    else:
        least, percent = 256 * _MIB, 2
    return max(least, total * percent // 100) + processes * 512 * _MIB
