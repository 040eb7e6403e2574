"""Whether other sessions of this plugin hold the GPUs: tests then wait, and what they measure is shared."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.findings import Finding, passed, skipped, warned
from pytest_gpucoexist.gates.occupancy.table import ours
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.verdicts import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.leases.lease import Holder

__all__ = ["lock"]


@gate(
    "proc.lock",
    group="occupancy",
    title="No other test session holds a lease of the GPU",
    reads="records and locks of leases in /run/gpucoexist or PYTEST_GPU_LEASE_DIR, users' own, those on PCI functions",
    criterion="no lease of a process outside of this run",
    why="Tests wait until the other session gives the GPU back; what shares it with another is measured with it.",
    action="Wait (tests do), see gpucoexist leases, or choose another GPU.",
    source="proposed: no surveyed tool locks",
    severity="info",
)
def lock(subject: Subject) -> Iterator[Finding]:
    """Look, and take nothing: a lock for a moment would make another session's test wait."""
    host = subject.host
    if host.simulated:
        yield skipped("a replayed machine: its leases were not recorded")
        return
    from pytest_gpucoexist.leases.places import ADMIN_FOLDER, FUNCTIONS, Place
    from pytest_gpucoexist.leases.view import all_records, locked_unrecorded

    folder = host.environ.get("PYTEST_GPU_LEASE_DIR") or ADMIN_FOLDER
    place = Place(
        kind="folder",
        folder=folder if os.path.isdir(folder) else None,
        functions=FUNCTIONS if host.exists(FUNCTIONS) else None,
    )
    mine = ours(subject)
    records = [each for each in all_records(place) if each.live and not each.machine]
    named = {key for each in records for lease in each.leases for key in lease.devices}
    holders = [holder for each in records if each.pid not in mine for holder in each.holders()]
    holders += [each for each in locked_unrecorded(place, subject.machine, named, host) if each.pid not in mine]
    looked = Evidence(source=place.where, found=f"{len(records)} processes with a record", expected="none of others")
    free = []
    for gpu in subject.gpus():
        who = [holder for holder in holders if holder.key == gpu.key]
        if not who:
            free.append(gpu)
            continue
        evidence = [Evidence(source=place.where, found=_words(holder), expected="no lease") for holder in who[:8]]
        yield warned(f"held by {'; '.join(map(_words, who))}", *evidence, on=[gpu])
    if free:
        yield passed("no other session holds it", looked, on=free)


def _words(holder: Holder) -> str:
    """Say who holds it, as far as the record tells: a PID may be of another container."""
    if holder.kind == "unknown":
        return "somebody without a record" if holder.pid is None else f"process {holder.pid}, which left no record"
    share = "" if holder.memory_bytes is None else f", {holder.memory_bytes >> 20} MiB of it"
    return f"{holder.program} {holder.pid} of user {holder.uid} for {holder.test}{share}"
