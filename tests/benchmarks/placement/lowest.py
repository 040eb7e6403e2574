"""The shortest time in which a workload can be over: a bound that no schedule beats, and the best of many schedules.

The bound is from the inputs and from how long each test holds what it needs. Where no schedule that was tried comes
near it, it says little, and the best of those schedules takes its place.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from tests.benchmarks.placement.suite import GIB
from tests.benchmarks.placement.workload import ANY

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpucoexist.model.machine import Gpu
    from tests.benchmarks.placement.workload import Case, Workload

__all__ = ["Shortest", "shortest"]

TRIES = 1000
_TIGHT = 1.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortest:
    """`bound_s`: demand over capacity, the longest test, work over workers. `tried_s`: the best schedule found."""

    bound_s: float
    tried_s: float

    @property
    def seconds(self) -> float:
        """What runs are held against: the bound, or what was found where that is not close to it."""
        return self.bound_s if self.tried_s <= _TIGHT * self.bound_s else self.tried_s


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """What is held in one piece. `pieces` are the tests of a module, which may be shared out; each part is set up."""

    seconds: float
    needs: tuple[tuple[str, int], ...]
    memory_gib: float | None
    setup_s: float = 0.0
    pieces: tuple[float, ...] = ()


def shortest(workload: Workload, devices: Sequence[Gpu], held: Mapping[str, float], workers: int) -> Shortest:
    """`held` is how long each test holds what it needs, in seconds; the first of a module sets it up."""
    memory = [(gpu.vendor, (gpu.memory_total_bytes or 0) / GIB) for gpu in devices]
    jobs = []
    for module in workload.modules:
        if module.setup_seconds:
            times = [held[case.nodeid] for case in module.cases]
            times[0] -= module.setup_seconds
            whole = sum(times) + module.setup_seconds
            jobs.append(_job(module.cases[0], whole, setup_s=module.setup_seconds, pieces=tuple(times)))
        else:
            jobs += [_job(case, held[case.nodeid]) for case in module.cases]
    bound = _bound(jobs, memory, workers)
    best = float("inf")
    for number in range(TRIES):
        best = min(best, _Schedule(jobs, memory, workers, Random(number), plain=number == 0).span())
        if best <= bound * 1.0001:
            break
    return Shortest(bound_s=bound, tried_s=best)


def _job(case: Case, seconds: float, setup_s: float = 0.0, pieces: tuple[float, ...] = ()) -> _Job:
    return _Job(seconds=seconds, needs=case.needs, memory_gib=case.memory_gib, setup_s=setup_s, pieces=pieces)


def _bound(jobs: Sequence[_Job], memory: Sequence[tuple[str, float]], workers: int) -> float:
    """Demand is in seconds of GiB: a whole device is all of its memory, and that of the smallest which would do."""
    vendors = sorted({vendor for vendor, _ in memory})
    size = {vendor: [gib for each, gib in memory if each == vendor] for vendor in vendors}
    size[ANY] = [gib for _, gib in memory]
    demand = dict.fromkeys(size, 0.0)
    for job in jobs:
        for vendor, count in job.needs:
            fitting = sorted(gib for gib in size[vendor] if gib >= (job.memory_gib or 0))
            needed = sum(fitting[:count]) if job.memory_gib is None else count * job.memory_gib
            for pool in {vendor, ANY}:
                demand[pool] += job.seconds * needed
    # A module can be shared out test by test; nothing else can.
    longest = max(job.setup_s + max(job.pieces) if job.pieces else job.seconds for job in jobs)
    work = sum(job.seconds for job in jobs)
    return max(*(demand[pool] / sum(size[pool]) for pool in size), longest, work / workers)


class _Schedule:
    """A list of jobs in some order; whoever is next and fits begins. `plain`: longest first, nothing by chance."""

    def __init__(
        self, jobs: Sequence[_Job], memory: Sequence[tuple[str, float]], workers: int, chance: Random, *, plain: bool
    ) -> None:
        self._memory = memory
        self._workers = workers
        spread = 0.0 if plain else chance.choice((0.05, 0.2, 0.5, 1.0))
        parts = [part for job in jobs for part in self._shared_out(job, chance, plain=plain)]
        parts.sort(key=lambda job: -job.seconds * self._width(job) * (1 + chance.uniform(-spread, spread)))
        self._waiting = parts
        # Whether a job that does not fit keeps those behind it from beginning: big ones are not starved then.
        self._strict = not plain and chance.random() < 0.3

    @staticmethod
    def _width(job: _Job) -> float:
        return sum(count for _, count in job.needs) ** 2

    @staticmethod
    def _shared_out(job: _Job, chance: Random, *, plain: bool) -> list[_Job]:
        count = 1 if plain or not job.pieces else min(chance.choice((1, 1, 1, 2, 2, 3)), len(job.pieces))
        if count == 1:
            return [job]
        shares = [0.0] * count
        for seconds in sorted(job.pieces, reverse=True):
            shares[shares.index(min(shares))] += seconds
        return [
            _Job(seconds=job.setup_s + share, needs=job.needs, memory_gib=job.memory_gib, setup_s=job.setup_s)
            for share in shares
        ]

    def span(self) -> float:
        """Return when the last job ends."""
        free = [gib for _, gib in self._memory]
        running: list[tuple[float, int, list[tuple[int, float]]]] = []
        now = 0.0
        number = 0
        while self._waiting or running:
            left = []
            blocked = False
            for at, job in enumerate(self._waiting):
                if len(running) >= self._workers or not any(gib > 0 for gib in free):
                    left += self._waiting[at:]
                    break
                took = [] if blocked else self._place(job, free)
                if not took:
                    left.append(job)
                    blocked = self._strict
                    continue
                for index, gib in took:
                    free[index] -= gib
                number += 1
                heapq.heappush(running, (now + job.seconds, number, took))
            self._waiting = left
            now, _, took = heapq.heappop(running)
            for index, gib in took:
                free[index] += gib
        return now

    def _place(self, job: _Job, free: Sequence[float]) -> list[tuple[int, float]]:
        took: list[tuple[int, float]] = []
        for vendor, count in job.needs:
            fitting = []
            for index, (each, gib) in enumerate(self._memory):
                size = gib if job.memory_gib is None else job.memory_gib
                fits = size <= gib and free[index] >= size - 1e-9
                if fits and vendor in {ANY, each} and all(index != other for other, _ in took):
                    fitting.append((free[index], index, size))
            if len(fitting) < count:
                return []
            took += [(index, size) for _, index, size in sorted(fitting)[:count]]
        return took
