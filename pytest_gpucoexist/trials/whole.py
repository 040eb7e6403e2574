"""Verified copies: to each device and back, within it, straight to peers, and staged between vendors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pytest_gpucoexist.errors import EngineError, VendorProcessError
from pytest_gpucoexist.model.trials import Integrity, Untried, Wrong
from pytest_gpucoexist.staging.endpoint import open_endpoint
from pytest_gpucoexist.staging.service import Staging
from pytest_gpucoexist.staging.verified import SIZES, verified_copy, verified_roundtrip
from pytest_gpucoexist.trials.bench import COPY_S

if TYPE_CHECKING:
    from pytest_gpucoexist.model.machine import Gpu
    from pytest_gpucoexist.staging.endpoint import Endpoint
    from pytest_gpucoexist.trials.bench import Bench

__all__ = ["local", "peers", "roundtrip", "staged"]

_LARGE = (64 << 20) + 8
_EPOCHS = 20 * (65537,)
_STAGED = {"transfer": (1, 4097, (4 << 20) + 4099), "full": (1, 3, 4097, (4 << 20) + 4099, (64 << 20) + 4099)}


def roundtrip(bench: Bench, endpoint: Endpoint, kind: Literal["roundtrip", "pageable", "epoch"]) -> None:
    """Copy to a device and back: pinned, from pageable memory, or twenty times with words that change."""
    sizes = {"roundtrip": SIZES, "pageable": ((1 << 20) + 13,), "epoch": _EPOCHS}[kind]
    if kind == "roundtrip" and bench.level == "full":
        sizes = (*SIZES, _LARGE)
    if kind == "pageable":
        with Staging(copy_s=COPY_S, pin=False) as staging:
            bench.add(verified_roundtrip(staging, endpoint, sizes, seed=bench.seed, kind=kind))
        return
    bench.add(verified_roundtrip(bench.staging, endpoint, sizes, seed=bench.seed + len(sizes), kind=kind))


def local(bench: Bench, endpoint: Endpoint) -> None:
    """Copy within a device."""
    sizes = (4097, (4 << 20) + 13) if bench.level == "transfer" else (4097, _LARGE)
    bench.add(
        verified_copy(bench.staging, endpoint, endpoint, sizes, seed=bench.seed + 1, route="local", kind="d2d_local")
    )


def staged(bench: Bench, source: Endpoint, target: Endpoint) -> None:
    """Copy from a device of one vendor to one of another."""
    sizes = _STAGED[bench.level]
    bench.add(verified_copy(bench.staging, source, target, sizes, seed=bench.seed + 2, route="staged", kind="staged"))


def peers(bench: Bench, source: Gpu, target: Gpu) -> None:
    """Copy straight from a device to another of its vendor, a few bytes first, in a process that ends afterwards."""
    process = bench.opener([source, target])
    try:
        with Staging(copy_s=COPY_S) as staging:
            one, other = (open_endpoint(process, gpu, simulated=bench.simulated) for gpu in (source, target))
            if not one.ask("peer", source.key, target.key):
                reason = f"the runtime says that {source.id} does not reach {target.id}"
                bench.untried.append(
                    Untried(kind="p2p", source=source.key, target=target.key, reason=reason, status="SKIP")
                )
                return
            try:
                found = verified_copy(staging, one, other, (8, 4 << 20), seed=bench.seed + 3, route="peer", kind="p2p")
            except (EngineError, VendorProcessError) as error:
                wrong = (Wrong(kind="failed", sentence=str(error)),)
                found = Integrity(
                    kind="p2p", source=source.key, target=target.key, route="peer", sizes=(8, 4 << 20), wrong=wrong
                )
            bench.add(found)
    finally:
        process.close()
