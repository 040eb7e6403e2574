"""The occupancy of a machine's devices as a leaser asks for it: who is ours and who died comes from the records.

`busy` costs a look into a dictionary while its answer counts. `prepare` is for the begin of a wait and `close` for its
end: in between NVML is open in a helper of its own, so that a look after a death takes milliseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.leases.kin import Dead
from pytest_gpucoexist.leases.occupancy import Occupancy
from pytest_gpucoexist.leases.reading import records

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from pytest_gpucoexist.host import Host
    from pytest_gpucoexist.leases.lease import Holder
    from pytest_gpucoexist.leases.reading import Seen
    from pytest_gpucoexist.model.machine import Machine

__all__ = ["MachineOccupancy"]

_WHOLE = 1 << 62  # bytes: more than a device can have

_UNKNOWN = Dead(pid=0)


class MachineOccupancy:
    """Who uses devices without a lease, and what is left of those who died. Not for several threads at once."""

    def __init__(
        self, host: Host | None, machine: Callable[[], Machine], folder: str | None, *, deadline_s: float = 5.0
    ) -> None:
        """`host` is that of the machine, None for one that was read from JSON; `folder` is where its records are."""
        self._folder = folder
        self._namespace: str | None = None
        self._seen: list[Seen] = []
        self._known: dict[str, tuple[Holder, ...]] = {}
        self._occupancy = Occupancy(host, machine, self._ours, deadline_s=deadline_s)
        if host is not None:
            try:
                self._namespace = host.read_link("/proc/self/ns/pid")
            except OSError:
                self._namespace = None

    def busy(self, keys: Collection[str], fresh: bool = False) -> Mapping[str, tuple[Holder, ...]]:
        """Return what keeps each device from being given; devices that may be given are left out. Never raises.

        `fresh` looks now. It is for devices whose holder died, where memory that nobody accounts for keeps the device,
        and for those that a stranger was seen to use.
        """
        if not fresh and self._occupancy.knows(keys):
            return self._occupancy.busy(keys)
        self._seen = [each for each in records(self._folder) if not each.machine] if self._folder is not None else []
        dead = {key: [_dead(each) for each in self._seen if not each.live and _has(each, key)] for key in keys}
        if fresh:
            for key in keys:
                # Asked again about a stranger: that is no death. Else somebody died, with a record or without.
                if not any(each.kind == "elsewhere" for each in self._known.get(key, ())):
                    dead[key].insert(0, _UNKNOWN)
        found = self._occupancy.busy(keys, fresh=fresh, declared=self._declared(), dead=dead)
        self._known.update((key, found.get(key, ())) for key in keys)
        return found

    def prepare(self, keys: Collection[str]) -> None:
        """Get ready to look again within milliseconds (`Occupancy.prepare`). Returns at once."""
        self._occupancy.prepare(keys)

    def close(self) -> None:
        """End what `prepare` began."""
        self._occupancy.close()

    def problems(self) -> Mapping[str, str]:
        """Say, by key, why nobody knows who uses a device."""
        return self._occupancy.problems()

    def _ours(self) -> Collection[int]:
        """Return the PIDs of live processes; negative, to count and match nobody, in another PID namespace."""
        return {
            each.pid if each.namespace in {None, self._namespace} else -each.pid for each in self._seen if each.live
        }

    def _declared(self) -> Mapping[str, int]:
        """Add up, by key, what live processes hold, and what they held before and may keep in a cache."""
        sums: dict[str, int] = {}
        for each in self._seen:
            if each.live:
                for key, share in each.covers.items():
                    sums[key] = sums.get(key, 0) + (_WHOLE if share is None else share)
        return sums


def _has(seen: Seen, key: str) -> bool:
    return any(key in lease.devices for lease in seen.leases)


def _dead(seen: Seen) -> Dead:
    return Dead(
        pid=seen.pid,
        group=seen.group,
        session_id=seen.session_id,
        started=seen.started,
        token=seen.nonce or None,
        session=seen.session,
        test=", ".join(lease.owner for lease in seen.leases) or None,
    )
