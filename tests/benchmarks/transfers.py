"""What a whole copy through the service costs, as a test asks for it: two vendor processes, drivers without hardware.

Beside the ring (`staging`) it has what is around it: the question to both processes, the memory between, the answers.
Times are the caller's. "Serial" is the service's own: one slot, one copy at a time.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.benchmarks.running import Row, unjudged
from tests.fakes.build import CannotBuild, cuda_library, hip_library
from tests.fakes.gpus import AMD_GPUS, NVIDIA_GPUS
from tests.fakes.machine import FakeMachine
from tests.proofs.rig import Rig

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_gpucoexist.staging.service import Copied

__all__ = ["transfers"]

MIB = 1 << 20
ROUNDS = 3
RATES_GBPS = ((1.0, 1.0), (2.0, 2.0), (4.0, 4.0), (1.0, 2.0), (1.0, 4.0), (2.0, 1.0))
OF_SLOWER = 0.85


def transfers(*, quick: bool) -> list[Row]:
    """Time copies of 256 MiB between limited links, both ways, and copies of 4 KiB to 1 GiB at 1 GB/s."""
    try:
        with _rig() as rig:
            if quick:
                return unjudged([*_rates(rig, 32 * MIB, RATES_GBPS[:1]), *_sizes(rig, 20)])
            return [*_rates(rig, 256 * MIB, RATES_GBPS), *_sizes(rig, 30)]
    except CannotBuild as reason:
        return [Row(measure=f"copies through the service: not measured, {reason}", median="-")]


def _rates(rig: Rig, size: int, rates: Sequence[tuple[float, float]]) -> Iterator[Row]:
    for source, target in (("nvidia.0", "amd.0"), ("amd.0", "nvidia.0")):
        for a, b in rates:
            rig.machine.put({f"{source}.d2h_gbps": a, f"{target}.h2d_gbps": b})
            staged, serial = _rounds(rig, source, target, size)
            rig.machine.put({f"{source}.d2h_gbps": None, f"{target}.h2d_gbps": None})
            what = f"{size // MIB} MiB through the service, {source[:-2]} to {target[:-2]}, {a:g} to {b:g} GB/s"
            shares = [100 * each.bytes_per_s / 1e9 / min(a, b) for each in staged]
            # Not judged: this serial copy hands every chunk over, too; `staging` has one without that.
            times = [one.elapsed_s / many.elapsed_s for one, many in zip(serial, staged, strict=True)]
            judged = a == b and a <= 2
            wake_ups = sorted(1e6 * each for copied in staged for each in copied.wake_ups_s)
            yield Row(
                measure=f"{what}, of the slower link",
                median=f"{statistics.median(shares):.0f} %",
                spread=f"{min(shares):.0f} to {max(shares):.0f} %",
                target=f"{100 * OF_SLOWER:.0f} %" if judged else "",
                met=max(shares) >= 100 * OF_SLOWER if judged else None,
            )
            yield Row(
                measure=f"{what}, over the service's serial copy",
                median=f"{statistics.median(times):.2f} x",
                spread=f"{min(times):.2f} to {max(times):.2f} x",
            )
            if wake_ups:
                yield Row(
                    measure=f"{what}, {len(wake_ups):,} blocked wake-ups",
                    median=f"{statistics.median(wake_ups):.0f} µs",
                    spread=f"to {wake_ups[min(len(wake_ups) - 1, len(wake_ups) * 99 // 100)]:.0f} µs (99 %)",
                )


def _rounds(rig: Rig, source: str, target: str, size: int) -> tuple[list[Copied], list[Copied]]:
    """Copy by turns with the ring and serially."""
    from pytest_gpucoexist.staging.service import Staging

    staged, serial = [], []
    with (
        Staging(copy_s=60.0) as staging,
        rig.end(source).allocate(size) as given,
        rig.end(target).allocate(size) as taken,
    ):
        staging.copy(given, taken, 1 << 20)  # what is done once: the memory between, mapped and pinned
        staging.copy(given, taken, 1 << 20, route="serial")
        for _ in range(ROUNDS):
            staged.append(staging.copy(given, taken))
            serial.append(staging.copy(given, taken, route="serial"))
    return staged, serial


def _sizes(rig: Rig, largest: int) -> Iterator[Row]:
    from pytest_gpucoexist.staging.service import Staging

    rig.machine.put({"nvidia.0.d2h_gbps": 1.0, "amd.0.h2d_gbps": 1.0})
    with (
        Staging(copy_s=60.0) as staging,
        rig.end("nvidia.0").allocate(1 << largest) as given,
        rig.end("amd.0").allocate(1 << largest) as taken,
    ):
        staging.copy(given, taken, min(1 << largest, 64 * MIB))
        for power in range(12, largest + 1, 2):
            size = 1 << power
            count = ROUNDS if size > 16 * MIB else 5 * ROUNDS
            times = sorted(staging.copy(given, taken, size).elapsed_s for _ in range(count))
            middle = statistics.median(times)
            yield Row(
                measure=f"{_words(size)} through the service, 1 to 1 GB/s",
                median=f"{1e3 * middle:.2f} ms, {size / middle / 1e7:.0f} %",
                spread=f"{1e3 * times[0]:.2f} to {1e3 * times[-1]:.2f} ms",
            )
    rig.machine.put({"nvidia.0.d2h_gbps": None, "amd.0.h2d_gbps": None})


def _words(size: int) -> str:
    power, unit = next((power, unit) for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")) if size >= 1 << power)
    return f"{size >> power} {unit}"


@contextlib.contextmanager
def _rig() -> Iterator[Rig]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "leases").mkdir()
        machine = FakeMachine(folder, {})
        machine.nvidia(*NVIDIA_GPUS)
        machine.amd(*AMD_GPUS)
        libraries = {"nvidia": cuda_library(folder), "amd": hip_library(folder)}
        environ = {vendor: {**machine.environ, "LD_LIBRARY_PATH": str(path)} for vendor, path in libraries.items()}
        rig = Rig(machine, environ, folder / "leases", deadline_s=120.0)
        try:
            yield rig
        finally:
            rig.close()
