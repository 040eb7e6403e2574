"""How fast copies are: pinned, in each direction, alone and beside others, between vendors staged and one by one.

Each sample is warmed up once, repeated, and timed by the device's events where there are any. Sizes are as large as the
time allows, and never below 64 MiB unless a device is so slow that even that takes too long.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Literal

from pytest_gpucoexist.model.trials import HOST, Sample
from pytest_gpucoexist.trials.bench import FAILURES
from pytest_gpucoexist.trials.links import LinkWatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpucoexist.model.trials import Route
    from pytest_gpucoexist.staging.endpoint import DeviceBuffer, Endpoint
    from pytest_gpucoexist.trials.bench import Bench

__all__ = ["between", "concurrently", "one_way"]

SIZE = 64 << 20
_TRY = 4 << 20
_REPEATS = {"transfer": 4, "full": 10}
_PATIENCE = {"transfer": 0.45, "full": 3.0}  # seconds for all repetitions of one sample
_MOST_S = 5.0  # a copy of 64 MiB that takes longer hangs: a lane of PCIe 1.0 brings 250 MB/s
_SLICE = 16 << 20


def one_way(bench: Bench, endpoint: Endpoint, kind: Literal["h2d", "d2h"], *, node: int | None = None) -> None:
    """Time copies between pinned memory of the host and a device, on the device's node, or on another one."""
    near = bench.staging.node_for(endpoint)
    shared = bench.staging.shared(1, SIZE, near if node is None else node)
    unpinned = shared.attach(endpoint, pin=bench.staging.pin)
    with endpoint.allocate(SIZE) as buffer:
        quick = _moved(endpoint, shared.number, buffer, kind, _TRY)
        size = SIZE if quick / _TRY * SIZE < _PATIENCE[bench.level] else _TRY
        with LinkWatch(bench.host, endpoint.gpu) as watch:
            times = _repeated(bench, lambda: _moved(endpoint, shared.number, buffer, kind, size))
    lies = shared.segment.node()
    found = Sample(
        kind=kind,
        source=HOST if kind == "h2d" else endpoint.key,
        target=endpoint.key if kind == "h2d" else HOST,
        route="host",
        size_bytes=size,
        seconds=times,
        clock="events",
        pinned=not unpinned,
        node=lies,
        node_is_local=_is_local(bench, endpoint, lies),
        links=tuple(watch.readings),
        notes=(unpinned,) if unpinned else (),
    )
    bench.samples.append(found)


def _is_local(bench: Bench, endpoint: Endpoint, node: int | None) -> bool | None:
    """Say whether memory lies on the device's node; None where that is not known, or for a simulated device."""
    wanted = endpoint.gpu.numa_node
    return None if bench.simulated or node is None or wanted is None else node == wanted


def between(bench: Bench, source: Endpoint, target: Endpoint, kind: Literal["staged", "serial"]) -> None:
    """Time staged copies from one device to another; "serial" has one slot and nothing that overlaps."""
    route: Route = "staged"
    notes: tuple[str, ...] = ()
    way: Literal["staged", "serial"] = kind
    with source.allocate(SIZE) as given, target.allocate(SIZE) as taken:
        quick = bench.staging.copy(given, taken, _TRY, route=way).elapsed_s
        size = SIZE if quick / _TRY * SIZE < 2 * _PATIENCE[bench.level] else _TRY
        with LinkWatch(bench.host, source.gpu) as one, LinkWatch(bench.host, target.gpu) as other:
            copies = []

            def copy() -> float:
                copies.append(bench.staging.copy(given, taken, size, route=way))
                return copies[-1].elapsed_s

            times = _repeated(bench, copy)
        route, notes = copies[-1].route, copies[-1].notes
    slower = min(
        (one, other), key=lambda watch: max((each.bytes_per_s for each in watch.readings if each.at >= 0), default=1e18)
    )
    found = Sample(
        kind=kind,
        source=source.key,
        target=target.key,
        route=route,
        size_bytes=size,
        seconds=times,
        node=copies[-1].node,
        links=tuple(slower.readings),
        notes=notes,
    )
    bench.samples.append(found)


def concurrently(bench: Bench, endpoints: list[Endpoint], kind: Literal["h2d", "d2h"]) -> None:
    """Time copies of several devices that run at the same time, for about a second."""
    found: dict[str, list[float]] = {each.key: [] for each in endpoints}
    failed: dict[str, BaseException] = {}
    ready = threading.Barrier(len(endpoints))
    stop = threading.Event()
    for endpoint in endpoints:  # segments are not for several threads
        bench.staging.shared(1, SIZE, bench.staging.node_for(endpoint)).attach(endpoint, pin=bench.staging.pin)

    def work(endpoint: Endpoint) -> None:
        try:
            shared = bench.staging.shared(1, SIZE, bench.staging.node_for(endpoint))
            with endpoint.allocate(SIZE) as buffer:
                ready.wait(_MOST_S)
                ends = time.monotonic() + _PATIENCE[bench.level]
                while time.monotonic() < ends and not stop.is_set():
                    found[endpoint.key].append(_moved(endpoint, shared.number, buffer, kind, _SLICE))
        except BaseException as error:  # noqa: BLE001 - it is raised below, in the thread that asked
            failed[endpoint.key] = error
            stop.set()
            ready.abort()

    threads = [threading.Thread(target=work, args=(each,), name="gpucoexist-trial", daemon=True) for each in endpoints]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for key, error in failed.items():
        if isinstance(error, FAILURES):
            bench.failed("together", key, None, error)
        elif not isinstance(error, threading.BrokenBarrierError):  # which says only that another one failed
            raise error
    if failed:
        return
    ways = {key: f"{HOST}->{key}" if kind == "h2d" else f"{key}->{HOST}" for key in found}
    bench.samples += [
        Sample(
            kind="together",
            source=HOST if kind == "h2d" else key,
            target=key if kind == "h2d" else HOST,
            route="host",
            size_bytes=_SLICE,
            seconds=tuple(times),
            clock="events",
            concurrent=tuple(way for other, way in ways.items() if other != key),
        )
        for key, times in found.items()
    ]


def _moved(endpoint: Endpoint, number: int, buffer: DeviceBuffer, kind: str, size: int) -> float:
    """Copy once and return the seconds, by the device where it keeps time."""
    asked = (endpoint.key, number, 0, buffer.pointer, size, kind == "d2h", _MOST_S)
    begun = time.perf_counter()
    device_s: float | None = endpoint.ask("move", *asked, deadline_s=_MOST_S + 5)
    return time.perf_counter() - begun if device_s is None else device_s


def _repeated(bench: Bench, copy: Callable[[], float]) -> tuple[float, ...]:
    copy()  # the first one wakes the link
    times = []
    begun = time.monotonic()
    for _ in range(_REPEATS[bench.level]):
        times.append(copy())
        if time.monotonic() - begun > 2 * _PATIENCE[bench.level] and len(times) > 2:
            break
    return tuple(times)
