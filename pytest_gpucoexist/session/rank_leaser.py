"""One lease for all ranks of a node: what each asks for, of distinct devices, taken and given back by the first rank.

The lease lasts from before any rank goes on with it until every rank has given its part back.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.errors import GpuCoexistError, error_named
from pytest_gpucoexist.leases.lease import Lease, Share
from pytest_gpucoexist.model.codec import decode, encode
from pytest_gpucoexist.model.groups import Group
from pytest_gpucoexist.placement.ranks.decisions import deal, of_each

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpucoexist.leases.lease import Leaser, OnWait
    from pytest_gpucoexist.model.machine import Machine
    from pytest_gpucoexist.placement.ranks.job import Job
    from pytest_gpucoexist.placement.ranks.leader import Leader

__all__ = ["GroupLeases", "RankLeaser"]


class RankLeaser:
    """Gives this rank its part. Asking is a step that all ranks take together."""

    def __init__(self, job: Job, own: Leaser, group: GroupLeases | None = None) -> None:
        """`own` is what this process would ask if it were alone; `group` is that of the first rank of the node."""
        self._job = job
        self._own = own
        self._group = group
        self._held: dict[int, Lease] = {}
        self._tokens: dict[int, str | None] = {}

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
        """Wait until all ranks ask and can be served (`Leaser.acquire`). Raises what it came to on all of them."""
        if self._group is not None:
            self._group.on_wait = on_wait
        value = {
            "owner": owner,
            "groups": encode(tuple(groups)),
            "preferred": list(preferred),
            "closest_pair": closest_pair,
            "timeout_s": timeout_s,
        }
        kind, said = self._job.meet("acquire", owner, json.dumps(value))
        if kind != "ok":
            raise GpuCoexistError(f"{owner}: {said}")
        if "error" in said:
            name, words = said["error"]
            raise error_named(name)(words)
        lease = Lease(
            owner=owner,
            devices=tuple(tuple(keys) for keys in said["devices"]),
            number=said["number"],
            shares=tuple(Share(key=key, memory_bytes=size) for key, size in said["shares"]),
        )
        self._held[lease.number] = lease
        self._tokens[lease.number] = said["token"]
        announce = getattr(self._own, "announce", None)
        if announce is not None and self._group is None:
            announce(lease)
        return lease

    def release(self, lease: Lease, keys: Sequence[str] | None = None) -> None:
        """Give this rank's part back, all or those in `keys`. Others may use theirs longer."""
        if lease.number in self._held:
            if keys is None:
                del self._held[lease.number]
                del self._tokens[lease.number]
            self._job.tell("release", [lease.number, None if keys is None else list(keys)])

    def held(self) -> dict[str, str]:
        """Return the owner of each device that this rank holds."""
        return {key: lease.owner for lease in self._held.values() for key in lease.keys}

    def token(self, lease: Lease) -> str | None:
        """Return what a child of this rank finds in its environment, to use what all ranks of the node hold."""
        return self._tokens.get(lease.number)

    @property
    def place(self) -> Any:
        """Where leases are kept."""
        return getattr(self._own, "place", None)


@dataclass(slots=True, kw_only=True)
class _Group:
    """A lease, the devices of each rank, and what ranks gave back that not all have given back yet."""

    lease: Lease
    keys: Mapping[int, tuple[str, ...]]
    back: dict[int, list[tuple[str, ...] | None]] = field(default_factory=dict)


class GroupLeases:
    """The leases of all ranks of a node, in its first rank."""

    def __init__(self, job: Leader, leaser: Leaser, machine: Callable[[], Machine]) -> None:
        """`leaser` is what this process would ask if it were alone."""
        self._job = job
        self._leaser = leaser
        self._machine = machine
        self._lock = threading.Lock()
        self._groups: dict[int, _Group] = {}
        self.on_wait: OnWait | None = None
        job.resolve["acquire"] = self._acquire
        job.on("release", self._release)

    def _acquire(self, values: Mapping[int, Any]) -> dict[int, Any]:
        asked = {rank: json.loads(value) for rank, value in values.items()}
        groups = {rank: decode(tuple[Group, ...], each["groups"]) for rank, each in asked.items()}
        mine = asked[0]
        preferred = dict.fromkeys(key for rank in sorted(asked) for key in asked[rank]["preferred"])
        arguments: dict[str, Any] = {"closest_pair": mine["closest_pair"], "timeout_s": mine["timeout_s"]}
        if self.on_wait is not None:
            arguments["on_wait"] = self._waiting
        try:
            dealt = deal(groups, self._machine())
            if dealt is None:
                raise GpuCoexistError(f"{mine['owner']}: there are fewer devices than {len(groups)} ranks ask for")  # noqa: TRY301
            lease = self._leaser.acquire(dealt.groups, owner=mine["owner"], preferred=tuple(preferred), **arguments)
        except GpuCoexistError as error:
            refused = {"error": [type(error).__name__, str(error)]}
            return dict.fromkeys(values, refused)
        devices = of_each(lease.devices, dealt, closest_pair=mine["closest_pair"])
        keys = {rank: tuple(key for group in mine for key in group) for rank, mine in devices.items()}
        with self._lock:
            self._groups[lease.number] = _Group(lease=lease, keys=keys)
        token = getattr(self._leaser, "token", None)
        of_key = {share.key: share.memory_bytes for share in lease.shares}
        ranks = Counter(key for each in keys.values() for key in each)
        return {
            rank: {
                "number": lease.number,
                "token": None if token is None else token(lease),
                "devices": devices[rank],
                "shares": [[key, of_key[key] // ranks[key]] for key in keys[rank] if key in of_key],
            }
            for rank in values
        }

    def _waiting(self, waiting: Any) -> None:
        if self._job.broken is not None:
            raise GpuCoexistError(self._job.broken)
        if self.on_wait is not None:
            self.on_wait(waiting)

    def _release(self, rank: int, value: Any) -> None:
        number, keys = value
        with self._lock:
            group = self._groups.get(number)
            if group is None:
                return
            group.back.setdefault(rank, []).append(None if keys is None else tuple(keys))
            if len(group.back) < len(group.keys) or not all(group.back.values()):
                return
            parts = {each: group.back[each].pop(0) for each in group.keys}
            whole = all(part is None for part in parts.values())
            if whole:
                del self._groups[number]
        if whole:
            self._leaser.release(group.lease)
        else:
            given = [key for each, part in parts.items() for key in (group.keys[each] if part is None else part)]
            self._leaser.release(group.lease, given)

    def close(self) -> None:
        """Give everything back that is left when this rank ends."""
        with self._lock:
            groups = tuple(self._groups.values())
            self._groups.clear()
        for group in groups:
            self._leaser.release(group.lease)
