"""Copies whose every byte is checked: the payload, the red zones around it, the memory between, and the source after.

Source, destination and the memory between are written with words of their own before each copy, so that what is wrong
afterwards says where it came from, and the host buffer into which the result is read back, too (`transfer.frame`). In
which hop it went wrong is told by looking at the others: the memory between still has the last chunks, the source is
read back, and so is a second time the destination.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pytest_gpucoexist.model.trials import HOST, Integrity, Wrong
from pytest_gpucoexist.staging.memory import Bounce, region_of
from pytest_gpucoexist.transfer.control import HEADER_BYTES
from pytest_gpucoexist.transfer.diagnosis import Check, check, write
from pytest_gpucoexist.transfer.plans import Plans
from pytest_gpucoexist.transfer.ring import chunk_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpucoexist.staging.endpoint import DeviceBuffer, Endpoint
    from pytest_gpucoexist.staging.service import Staging
    from pytest_gpucoexist.transfer.finding import Finding
    from pytest_gpucoexist.transfer.frame import Contents, Plan

__all__ = ["SIZES", "verified_copy", "verified_roundtrip"]

SIZES = (1, 3, 4095, 4097, 65535, 65537, (1 << 20) + 13)
"""Bytes; none a multiple of anything that a driver or a link works in."""
_CHUNK_BYTES_PER_S = 8e9  # for the chunks, which must be known before: as `Staging.copy` guesses
_SHOWN = 8

Hop = Literal["loading", "first", "second", "reading"]


def verified_copy(
    staging: Staging,
    source: Endpoint,
    target: Endpoint,
    sizes: Sequence[int] = SIZES,
    *,
    seed: int = 0,
    route: Literal["auto", "local", "peer", "staged", "serial"] = "auto",
    kind: str = "copy",
) -> Integrity:
    """Copy payloads of these sizes (bytes) from one device to another and say what was wrong. Raises as `copy` does."""
    plans, wrong, taken = Plans(seed), [], set()
    for size in sizes:
        found, route_taken = _one(staging, source, target, size, plans, route)
        wrong += found
        taken.add(route_taken)
    return Integrity(
        kind=kind,
        source=source.key,
        target=target.key,
        route=taken.pop() if len(taken) == 1 else "staged",
        sizes=tuple(sizes),
        wrong=tuple(wrong[:_SHOWN]),
        seed=seed,
        notes=(f"{len(wrong) - _SHOWN} more",) if len(wrong) > _SHOWN else (),
    )


def verified_roundtrip(
    staging: Staging, endpoint: Endpoint, sizes: Sequence[int] = SIZES, *, seed: int = 0, kind: str = "roundtrip"
) -> Integrity:
    """Copy payloads from the host to a device and back and say what was wrong. Raises what the process raises."""
    plans = Plans(seed)
    wrong: list[Wrong] = []
    for size in sizes:
        names = (HOST, "", endpoint.key)
        plan = plans.next(size, owners=names, writers=(HOST, "", f"host -> {endpoint.key}"))
        with endpoint.allocate(plan.region_bytes("destination")) as buffer:
            bounce = Bounce(staging, endpoint)
            _load(bounce, buffer, plan.before("destination"))
            _load(bounce, buffer, plan.after("destination"), plan.zone_bytes, size)
            found = _read(bounce, buffer, plan, "destination")
            hop: Hop | None = None
            if found:
                hop = "loading" if _read(bounce, buffer, plan, "destination") else "reading"
            wrong += [_wrong(each, size, hop) for each in found]
    return Integrity(
        kind=kind,
        source=HOST,
        target=endpoint.key,
        route="host",
        sizes=tuple(sizes),
        wrong=tuple(wrong[:_SHOWN]),
        seed=seed,
    )


def _one(
    staging: Staging, source: Endpoint, target: Endpoint, size: int, plans: Plans, route: Any
) -> tuple[list[Wrong], Any]:
    shared = None
    ring: dict[str, Any] = {}
    chunk = chunk_for(size, _CHUNK_BYTES_PER_S, staging.slot_bytes)
    if (route if route != "auto" else staging.route(source, target)) in {"staged", "serial"}:
        shared = staging.ring(source, target, serial=route == "serial")
        layout = shared.segment.layout
        ring = {
            "slots": layout.slots,
            "slot_bytes": chunk,
            "first_slot_bytes": layout.offset(0) - HEADER_BYTES,
            "stride_bytes": layout.stride_bytes,
        }
    writers = (HOST, source.key, target.key)
    plan = plans.next(size, owners=(source.key, HOST, target.key), writers=writers, **ring)
    with (
        source.allocate(plan.region_bytes("source")) as taken,
        target.allocate(plan.region_bytes("destination")) as given,
    ):
        giving, taking = Bounce(staging, source), Bounce(staging, target)
        _load(giving, taken, plan.before("source"))
        _load(taking, given, plan.before("destination"))
        between = None if shared is None else region_of(shared, HEADER_BYTES, plan.region_bytes("ring"))
        if between is not None:
            write(plan.before("ring"), between)
        zone = plan.zone_bytes
        copied = staging.copy(taken, given, size, offsets=(zone, zone), route=route, chunk_bytes=chunk)
        passed = () if between is None else check(plan.after("ring"), between)
        arrived = _read(taking, given, plan, "destination")
        kept = _read(giving, taken, plan, "source")
        if kept:
            # What arrived is wrong as well where the source was; else a red zone of it, or only the way back is.
            is_loaded_so = bool(arrived or passed or _read(giving, taken, plan, "source"))
            hop: Hop | None = "loading" if is_loaded_so else "first"
            wrong = [_wrong(each, size, hop) for each in kept]
        elif passed:
            wrong = [_wrong(each, size, "first") for each in passed]
        elif arrived:
            again = _read(taking, given, plan, "destination")
            seen = between is not None and plan.size_bytes <= plan.slots * plan.slot_bytes
            hop = "reading" if not again else "second" if seen else None
            wrong = [_wrong(each, size, hop) for each in arrived]
        else:
            wrong = []
        return wrong, copied.route


def _wrong(finding: Finding, size: int, hop: Hop | None) -> Wrong:
    return Wrong(kind=finding.kind, sentence=finding.text, size_bytes=size, hop=hop)


def _load(bounce: Bounce, buffer: DeviceBuffer, contents: Contents, first: int = 0, size: int | None = None) -> None:
    """Load what a region must hold, or `size` bytes of it from `first` on."""
    many = contents.size_bytes if size is None else size
    bounce.load(buffer, first, many, lambda memory, at: write(contents, memory, first + at))


def _read(
    bounce: Bounce, buffer: DeviceBuffer, plan: Plan, region: Literal["source", "destination"]
) -> tuple[Finding, ...]:
    under, checking = plan.under_reading(region), Check(plan.after(region))
    bounce.read(
        buffer,
        0,
        plan.region_bytes(region),
        lambda memory, _at: checking.feed(memory),
        lambda memory, at: write(under, memory, at),
    )
    return checking.findings()
