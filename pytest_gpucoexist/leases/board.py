"""Everything about the leases of a machine at one moment: who holds, who waits, who is there without a lease.

Put together from records, locks and what drivers tell, without taking anything. The attribute names are those of the
JSON that `gpucoexist leases --json` prints.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from pytest_gpucoexist.host import local_host
from pytest_gpucoexist.leases.kept import holders_now
from pytest_gpucoexist.leases.kin import user_name
from pytest_gpucoexist.leases.lease import Holder
from pytest_gpucoexist.leases.view import all_records, locked_unrecorded
from pytest_gpucoexist.model.codec import encode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpucoexist.host import Host
    from pytest_gpucoexist.leases.occupied import MachineOccupancy
    from pytest_gpucoexist.leases.places import Place
    from pytest_gpucoexist.leases.reading import Seen
    from pytest_gpucoexist.model.machine import Machine

__all__ = ["Board", "BoardDevice", "BoardPlace", "BoardWait", "read_board"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardPlace:
    """Where leases are kept, against whom they therefore protect (`protects`) and against whom not (`limits`)."""

    kind: Literal["folder", "user", "process"]
    folder: str | None
    functions: str | None
    locks: Literal["table", "flock", "process"]
    where: str
    protects: str
    limits: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardDevice:
    """A device, everybody who has it, and how many requests wait that could use it."""

    key: str
    id: str | None
    name: str | None
    holders: tuple[Holder, ...]
    waiting: int
    problem: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardWait:
    """A request that waits for any of these devices, since `since_s` (seconds since the epoch)."""

    devices: tuple[str, ...]
    pid: int
    uid: int
    user: str | None
    session: str
    worker: str | None
    test: str
    since_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """All leases of one machine, read at `read_at_s` (seconds since the epoch)."""

    schema: int
    machine: str
    simulated: bool
    read_at_s: float
    place: BoardPlace
    devices: tuple[BoardDevice, ...]
    waiting: tuple[BoardWait, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the object that `gpucoexist leases --json` prints, of builtin types only."""
        return encode(self)  # type: ignore[no-any-return]


def read_board(
    host: Host, machine: Machine, place: Place, now_s: float, occupancy: MachineOccupancy | None = None
) -> Board:
    """Read the board of the machine that `host` stands for. Never raises.

    `occupancy` tells who uses devices without a lease; without it nobody is asked.
    """
    name = machine.name if machine.simulated else ""
    seen = [each for each in all_records(place) if each.live and each.machine == name]
    here = local_host() if host.simulated else host  # who leases devices of a replayed machine is a user of this one
    users = {each.uid: user_name(here, each.uid) for each in seen}
    holders = [replace(each, user=None if each.uid is None else users[each.uid]) for each in holders_now(here, seen)]
    unknown = locked_unrecorded(place, machine, {holder.key for holder in holders}, None if machine.simulated else host)
    keys = [gpu.key for gpu in machine.gpus if gpu.is_compute]
    others: Mapping[str, tuple[Holder, ...]] = occupancy.busy(keys) if occupancy is not None else {}
    problems = occupancy.problems() if occupancy is not None else {}
    waiting = _waiting(seen, users)
    # A device of a record that discovery did not show: an instance that only a vendor's library names.
    keys += sorted({holder.key for holder in holders} - set(keys))
    devices = []
    for key in keys:
        gpu = machine.gpu(key)
        mine = [*holders, *unknown, *others.get(key, ())]
        devices.append(
            BoardDevice(
                key=key,
                id=None if gpu is None else gpu.id,
                name=None if gpu is None else gpu.name,
                holders=tuple(holder for holder in mine if holder.key == key),
                waiting=sum(key in wait.devices for wait in waiting),
                problem=problems.get(key),
            )
        )
    return Board(
        schema=1,
        machine=machine.name,
        simulated=machine.simulated,
        read_at_s=round(now_s, 3),
        place=BoardPlace(
            kind=place.kind,
            folder=place.folder,
            functions=place.functions,
            locks=place.locks,
            where=place.where,
            protects=place.protects,
            limits=place.limits,
            notes=place.notes,
        ),
        devices=tuple(devices),
        waiting=waiting,
    )


def _waiting(seen: Sequence[Seen], users: Mapping[int, str | None]) -> tuple[BoardWait, ...]:
    """List all requests that wait, the oldest first."""
    found = [
        BoardWait(
            devices=wait.devices,
            pid=each.pid,
            uid=each.uid,
            user=users[each.uid],
            session=each.session,
            worker=each.worker,
            test=wait.owner,
            since_s=wait.since_s,
        )
        for each in seen
        for wait in each.waits
    ]
    return tuple(sorted(found, key=lambda wait: wait.since_s))
