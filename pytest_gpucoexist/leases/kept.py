"""Locks that outlive their holder: a child that was forked past Python (by a C library) has its parent's descriptors.

The kernel then still keeps the lease, and the record still looks alive. Who keeps them is found by looking for the
record's file among the open files of processes; other users' cannot be read.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_gpucoexist.leases.kin import Kin, keepers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pytest_gpucoexist.host import Host
    from pytest_gpucoexist.leases.lease import Holder
    from pytest_gpucoexist.leases.reading import Seen

__all__ = ["holders_now"]


def holders_now(host: Host, seen: Iterable[Seen]) -> Iterator[Holder]:
    """Describe who holds the devices of these live records, as `Seen.holders` does.

    For one whose process is gone it is who keeps its locks, of kind `leftover`. `host` is this computer; PIDs of other
    namespaces cannot be looked up, and are believed.
    """
    seen = tuple(seen)
    if not seen:  # as where the system has none of this
        return
    kin = Kin(host)
    try:
        here = host.read_link("/proc/self/ns/pid")
    except OSError:
        here = None
    for each in seen:
        stat = kin.stat(each.pid) if here is not None and each.namespace == here else None
        gone = here is not None and each.namespace == here and (stat is None or stat.state in {"Z", "X"})
        if not gone:
            yield from each.holders()
            continue
        children: list[tuple[int | None, str | None]] = [*sorted(keepers(host, [each.path]).items())]
        for holder in each.holders():
            for pid, program in children or [(None, None)]:
                yield replace(holder, kind="leftover", pid=pid, program=program)
