"""The shortest time in which a workload can be over: no schedule is faster, whoever makes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.benchmarks.placement.suite import GIB
from tests.benchmarks.placement.workload import ANY

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpucoexist.model.machine import Gpu
    from tests.benchmarks.placement.workload import Workload

__all__ = ["lowest"]


def lowest(workload: Workload, devices: Sequence[Gpu], held: Mapping[str, float], workers: int) -> float:
    """Return R in seconds: of demand over capacity, in all and of each vendor, longest test, work over workers.

    `held` is how long each test holds what it needs. Demand is in seconds of GiB: a whole device is all of its memory,
    and that of the smallest which would do.
    """
    size = {
        vendor: [(gpu.memory_total_bytes or 0) / GIB for gpu in devices if gpu.vendor == vendor]
        for vendor in _vendors(devices)
    }
    size[ANY] = [gib for sizes in size.values() for gib in sizes]
    demand = dict.fromkeys(size, 0.0)
    for case in workload.cases:
        for vendor, count in case.needs:
            fitting = sorted(gib for gib in size[vendor] if gib >= (case.memory_gib or 0))
            needed = sum(fitting[:count]) if case.memory_gib is None else count * case.memory_gib
            demand[vendor] += held[case.nodeid] * needed
            if vendor != ANY:
                demand[ANY] += held[case.nodeid] * needed
    return max(*(demand[vendor] / sum(size[vendor]) for vendor in size), *held.values(), sum(held.values()) / workers)


def _vendors(devices: Sequence[Gpu]) -> list[str]:
    return sorted({gpu.vendor for gpu in devices})
