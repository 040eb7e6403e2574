"""From options to the leaser of this process: where leases are kept, who this process is, what it inherits."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pytest_gpucoexist.leases.machine import Identity, MachineLeaser

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpucoexist.host import Host
    from pytest_gpucoexist.leases.guard import Occupancy
    from pytest_gpucoexist.leases.machine import Busy
    from pytest_gpucoexist.model.machine import Machine

__all__ = ["open_leaser"]


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
    cannot be used. A lease that the environment of this process names is inherited. Without an `occupancy`, this
    machine's own is asked; a replayed one has none.
    """
    from pytest_gpucoexist.host import local_host
    from pytest_gpucoexist.leases.places import find_place
    from pytest_gpucoexist.leases.token import inherited

    # Whatever machine is replayed: who waits and where leases are kept is of this one.
    here = local_host() if host.simulated else host
    place = find_place(here, lease_dir)
    if occupancy is None and not host.simulated:
        from pytest_gpucoexist.leases.occupied import MachineOccupancy

        occupancy = MachineOccupancy(host, machine, place.folder)
    return MachineLeaser(
        machine,
        place,
        Identity(session or str(os.getpid()), worker, host=here),
        default_memory_bytes=default_memory_bytes,
        occupancy=occupancy,
        busy=busy,
        host=here,
        inherited=lambda: inherited(here.environ),
    )
