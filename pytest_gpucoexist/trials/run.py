"""Try the devices of a machine, most telling first, within a budget.

Kinds of `Integrity`: roundtrip, pageable, epoch, d2d_local, staged, p2p, which are the last parts of the gates' ids.
Kinds of `Sample`: h2d, d2h, together, staged, serial. Facts: `host_canary`, `memlock`.
"""

from __future__ import annotations

import secrets
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from pytest_gpucoexist.model.trials import Trials
from pytest_gpucoexist.trials import rates, whole
from pytest_gpucoexist.trials.bench import Bench
from pytest_gpucoexist.trials.canary import Canary

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpucoexist.host.base import Host
    from pytest_gpucoexist.model.machine import Gpu
    from pytest_gpucoexist.processes.opening import OpenedProcess

__all__ = ["BUDGET_S", "PER_DEVICE_S", "try_devices"]

PER_DEVICE_S = 3.0
"""How long the level `transfer` may take for each device, pairs counted to their source."""
BUDGET_S = 60.0
"""How long `full` may take, unless it is told otherwise."""


def try_devices(
    gpus: Sequence[Gpu],
    *,
    host: Host,
    opener: Callable[[Sequence[Gpu]], OpenedProcess],
    level: Literal["transfer", "full"] = "transfer",
    budget_s: float | None = None,
    simulated: bool = False,
    seed: int | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Trials:
    """Try these devices, which the caller holds, and say what happened; nothing is judged and nothing raised for them.

    `opener` starts a process that sees some devices of one vendor; `host` is where links are read. `budget_s` is by
    default 3 s for each device, or a minute for `full`. What there was no time for is in `untried`.
    """
    begun = time.monotonic()
    if budget_s is None:
        budget_s = PER_DEVICE_S * len(gpus) if level == "transfer" else BUDGET_S
    bench = Bench(
        host,
        opener,
        level,
        ends_s=begun + budget_s,
        seed=secrets.randbits(32) if seed is None else seed,
        simulated=simulated,
        progress=progress,
    )
    with Canary() as canary:
        try:
            _try(bench, gpus)
        finally:
            bench.close()
        bench.facts["host_canary"] = {
            "size_bytes": canary.size_bytes,
            "locked": canary.is_locked,
            "changed": list(canary.changed()),
        }
    bench.facts["memlock"] = _memlock()
    return Trials(
        level=level,
        integrity=tuple(bench.integrity),
        samples=tuple(bench.samples),
        untried=tuple(bench.untried),
        facts=bench.facts,
        duration_s=time.monotonic() - begun,
        seed=bench.seed,
    )


def _try(bench: Bench, gpus: Sequence[Gpu]) -> None:
    """Do everything, what tells most of many devices before what tells more of one."""
    bench.open(gpus)
    _each(bench, gpus, "", ("roundtrip", whole.roundtrip, "roundtrip"), ("h2d", rates.one_way, "h2d"), _D2H)
    across = [(one, other) for one in gpus for other in gpus if one.vendor != other.vendor]
    for one, other in across:
        _pair(bench, one, other, "staged", whole.staged)
    for one in gpus:
        for other in gpus:
            # On AMD the attempt has taken the display down (ROCm/legacy-rocm-build#1495): at `full` alone.
            is_pair = one is not other and one.vendor == other.vendor and {one.key, other.key} <= set(bench.endpoints)
            if is_pair and (one.vendor == "nvidia" or bench.level == "full"):
                bench.progress(f"{one.id} -> {other.id}, straight")
                bench.guarded("p2p", one.key, other.key, partial(whole.peers, bench, one, other))
    for one, other in across:
        _pair(bench, one, other, "bw.staged", partial(rates.between, kind="staged"))
    together = list(bench.endpoints.values())
    if len(together) > 1:
        bench.progress("all at once")
        bench.guarded("together", None, None, lambda: rates.concurrently(bench, together, "h2d"))
    _each(
        bench,
        gpus,
        ", inside and again",
        ("d2d_local", whole.local),
        ("epoch", whole.roundtrip, "epoch"),
        ("pageable", whole.roundtrip, "pageable"),
    )
    for one, other in across if bench.level == "full" else ():
        _pair(bench, one, other, "bw.serial", partial(rates.between, kind="serial"))


_D2H = ("d2h", rates.one_way, "d2h")


def _each(bench: Bench, gpus: Sequence[Gpu], doing: str, *trials: tuple[Any, ...]) -> None:
    """Do trials of one device (kind, function, arguments) with each that is open."""
    for gpu in gpus:
        if gpu.key in bench.endpoints:
            bench.progress(f"{gpu.id}{doing}")
        for kind, function, *arguments in trials:
            endpoint = bench.endpoints.get(gpu.key)
            if endpoint is not None:
                bench.guarded(kind, gpu.key, None, partial(function, bench, endpoint, *arguments))


def _pair(bench: Bench, one: Gpu, other: Gpu, kind: str, trial: Callable[..., object]) -> None:
    """Do a trial of two devices, where both are open."""
    if one.key in bench.endpoints and other.key in bench.endpoints:
        bench.progress(f"{one.id} -> {other.id}")
        ends = bench.endpoints[one.key], bench.endpoints[other.key]
        bench.guarded(kind, one.key, other.key, lambda: trial(bench, *ends))


def _memlock() -> dict[str, Any]:
    """Return the limits of locked memory in bytes, None for no limit."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    unlimited = resource.RLIM_INFINITY
    return {"soft_bytes": None if soft == unlimited else soft, "hard_bytes": None if hard == unlimited else hard}
