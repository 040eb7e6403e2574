"""What staging costs: a ring of slots beside a serial copy and beside both links at once with nobody to wait for.

The links are those of drivers without hardware, at ordered rates; where such drivers cannot be built, of host engines.
Ratios carry to other machines, absolute rates do not. "Alone" is both sides copying all their chunks through the same
slots at the same time without hand-off: what two links, two processes and this machine's memory give at most. "Serial"
is one side and then the other, with nothing lost in between.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.transfer.ring import Pace, chunk_for
from pytest_gpucoexist.transfer.segment import Layout, Segment
from tests.benchmarks.running import Row, unjudged
from tests.fakes.build import CannotBuild, cuda_library, hip_library
from tests.fakes.gpus import AMD_GPUS, NVIDIA_GPUS
from tests.fakes.machine import FakeMachine
from tests.transfer.pair import End, Pair

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["handing", "sizes", "staging"]

MIB = 1 << 20
SLOTS, SLOT_BYTES = 8, MIB
DEPTH = 2
ROUNDS = 3
PACE = Pace(depth=DEPTH, copy_s=60.0)
SERIAL = Pace(depth=1, copy_s=60.0)

RATES_GBPS = ((1.0, 1.0), (2.0, 2.0), (4.0, 4.0), (1.0, 2.0), (1.0, 4.0), (2.0, 1.0))
RINGS_TIMES, OF_SLOWER = 1.7, 0.85
WAKE_UP_US = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Two processes and a segment, the device memory of both, and how the links' rates are ordered."""

    pair: Pair
    segment: Segment
    source: int
    target: int
    limit: Callable[[float, float], None]
    copies: bool = True

    def staged(self, size: int, pace: Pace = PACE) -> tuple[float, list[float]]:
        """Copy once; returns the seconds and the times of wake-ups. What was there before must not be there after."""
        sender, receiver = self.pair.sender, self.pair.receiver
        receiver.ask("engine", 0, "fill", self.target + size - 1, 0xAA, 1)
        receiver.tell("receive", 0, self.target, size, pace)
        while not self.segment.control.announced("receiver")[0]:
            time.sleep(0.001)
        sender.tell("send", 0, self.source, size, pace)
        sent, received = sender.answer(), receiver.answer()
        if self.copies and receiver.ask("read", 0, self.target + size - 1, 1) != b"\x5b":
            raise RuntimeError("the last byte did not arrive")
        return sent.elapsed_s, [*sent.wake_ups_s, *received.wake_ups_s]

    def serial(self, size: int) -> float:
        """Copy on one side and then on the other: the best that a copy without overlap can be. Returns the seconds."""
        first: float = self.pair.sender.ask("alone", 0, "sender", self.source, size, DEPTH)
        second: float = self.pair.receiver.ask("alone", 0, "receiver", self.target, size, DEPTH)
        return first + second

    def alone(self, size: int) -> float:
        """Copy on both sides at once without hand-off; returns the seconds of the slower one."""
        self.pair.sender.tell("alone", 0, "sender", self.source, size, DEPTH)
        self.pair.receiver.tell("alone", 0, "receiver", self.target, size, DEPTH)
        times: list[float] = [self.pair.sender.answer(), self.pair.receiver.answer()]
        return max(times)


def staging(*, quick: bool) -> list[Row]:
    """Time staged copies between limited links, of equal and unequal rates, and between unlimited host memory."""
    if quick:
        return unjudged(_staging(64 * MIB, RATES_GBPS[:1]))
    return list(_staging(256 * MIB, RATES_GBPS))


def _staging(size: int, rates: Sequence[tuple[float, float]]) -> Iterator[Row]:
    with _stages(size) as (ring, one_slot, kind):
        for a, b in rates:
            rounds = []
            for stage in (ring, one_slot):
                stage.limit(a, b)
            for _ in range(ROUNDS):
                rounds.append(
                    {
                        "alone": ring.alone(size),
                        "ring": ring.staged(size)[0],
                        "one slot": one_slot.staged(size)[0],
                        "serial": ring.serial(size),
                    }
                )
            yield from _judged(f"{size // MIB} MiB, {kind}, {a:g} to {b:g} GB/s", size, a, b, rounds)
    with _host(size) as free:
        free.limit(0.0, 0.0)
        times = [free.staged(size)[0] for _ in range(ROUNDS)]
        yield Row(
            measure=f"staged {size // MIB} MiB between host memories without a limit",
            median=f"{size / statistics.median(times) / 1e9:.2f} GB/s",
            spread=f"{size / max(times) / 1e9:.2f} to {size / min(times) / 1e9:.2f} GB/s",
        )


def _judged(what: str, size: int, a: float, b: float, rounds: list[dict[str, float]]) -> Iterator[Row]:
    slower = min(a, b)
    rates = [size / each["ring"] / 1e9 for each in rounds]
    times = [each["serial"] / each["ring"] for each in rounds]
    theory = 1 + slower / max(a, b)
    wanted = RINGS_TIMES if a == b else OF_SLOWER * theory
    judged = a != b or a <= 2
    yield Row(
        measure=f"staged {what}, over a serial copy",
        median=f"{statistics.median(times):.2f} x",
        spread=f"{min(times):.2f} to {max(times):.2f} x",
        target=f"{wanted:.2f} x" if judged else "",
        met=max(times) >= wanted if judged else None,
    )
    yield Row(
        measure=f"staged {what}, of the slower link",
        median=f"{100 * statistics.median(rates) / slower:.0f} %",
        spread=f"{100 * min(rates) / slower:.0f} to {100 * max(rates) / slower:.0f} %",
        target=f"{100 * OF_SLOWER:.0f} %" if a == b and a <= 2 else "",
        met=max(rates) / slower >= OF_SLOWER if a == b and a <= 2 else None,
    )
    for name, more in (("ring", True), ("one slot", False)):
        shares = [each["alone"] / each[name] for each in rounds]
        reached = max(shares) >= OF_SLOWER
        yield Row(
            measure=f"{'staged' if more else 'one slot'} {what}, of both links alone",
            median=f"{100 * statistics.median(shares):.0f} %",
            spread=f"{100 * min(shares):.0f} to {100 * max(shares):.0f} %",
            target=(f"{100 * OF_SLOWER:.0f} %" if more else f"below {100 * OF_SLOWER:.0f} %") if a == b else "",
            met=(reached if more else not reached) if a == b else None,
        )


def handing(*, quick: bool) -> list[Row]:
    """Time wake-ups: of sides that copy nothing and wait for each other each time, and of sides that copy."""
    size = (4 if quick else 32) * MIB
    with _host(size, "nothing", slots=1, slot_bytes=4096) as stage:
        stage.staged(size, SERIAL)
        idle = sorted(1e6 * each for each in stage.staged(size, SERIAL)[1])
    with _stages(64 * MIB) as (ring, _, kind):
        ring.limit(2.0, 2.0)
        busy = sorted(1e6 * each for _ in range(4 if quick else 16) for each in ring.staged(64 * MIB)[1])
    median = statistics.median(idle)
    rows = [
        Row(
            measure=f"a blocked wake-up, engines that copy nothing, {len(idle):,} times",
            median=f"{median:.1f} µs",
            spread=f"{idle[0]:.1f} to {_p99(idle):.1f} µs (99 %)",
            target=f"{WAKE_UP_US} µs",
            met=median <= WAKE_UP_US,
        ),
        Row(
            measure=f"a blocked wake-up while {kind} copy at 2 GB/s, {len(busy):,} times",
            median=f"{statistics.median(busy):.1f} µs",
            spread=f"{busy[0]:.1f} to {_p99(busy):.1f} µs (99 %)",
        ),
    ]
    return unjudged(rows) if quick else rows


def sizes(*, quick: bool) -> list[Row]:
    """Time staged copies of 4 KiB to 1 GiB between links of 1 GB/s."""
    rows = []
    table = [1 << power for power in range(12, 21 if quick else 31, 2)]
    with _stages(table[-1]) as (ring, _, kind):
        ring.limit(1.0, 1.0)
        for size in table:
            pace = Pace(depth=DEPTH, copy_s=60.0, chunk_bytes=chunk_for(size, 1e9, SLOT_BYTES))
            times = sorted(ring.staged(size, pace)[0] for _ in range(ROUNDS if size > 16 * MIB else 5 * ROUNDS))
            middle = statistics.median(times)
            rows.append(
                Row(
                    measure=f"staged {_words(size)}, {kind}, 1 to 1 GB/s",
                    median=f"{1e3 * middle:.2f} ms, {size / middle / 1e7:.0f} %",
                    spread=f"{1e3 * times[0]:.2f} to {1e3 * times[-1]:.2f} ms",
                )
            )
    return rows


def _p99(ordered: list[float]) -> float:
    return ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]


def _words(size: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (MIB, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} bytes"


@contextlib.contextmanager
def _stages(size: int) -> Iterator[tuple[Stage, Stage, str]]:
    """Two stages of the same devices, one with the ring and one with a single slot, and what their links are."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        try:
            cuda, hip = cuda_library(folder), hip_library(folder)
        except CannotBuild:
            yield stack.enter_context(_host(size)), stack.enter_context(_host(size, slots=1)), "host engines"
            return
        machine = FakeMachine(folder, {})
        machine.nvidia(*NVIDIA_GPUS)
        machine.amd(*AMD_GPUS)
        named = {**machine.environ}

        def limit(a: float, b: float) -> None:
            machine.put({"nvidia.0.d2h_gbps": a or None, "amd.0.h2d_gbps": b or None})

        ends = (
            End(
                runtime="cuda", pci_address=NVIDIA_GPUS[0].pci_address, environ={**named, "LD_LIBRARY_PATH": str(cuda)}
            ),
            End(runtime="hip", pci_address=AMD_GPUS[0].pci_address, environ={**named, "LD_LIBRARY_PATH": str(hip)}),
        )
        ring, one = (stack.enter_context(_stage(size, *ends, slots, SLOT_BYTES, limit)) for slots in (SLOTS, 1))
        yield ring, one, "CUDA to HIP"


@contextlib.contextmanager
def _host(size: int, runtime: str = "host", slots: int = SLOTS, slot_bytes: int = SLOT_BYTES) -> Iterator[Stage]:
    end = End(runtime=runtime, options={"memory_bytes": 2 * size + MIB})
    with _stage(size, end, end, slots, slot_bytes) as stage:
        yield stage


@contextlib.contextmanager
def _stage(
    size: int,
    sender: End,
    receiver: End,
    slots: int,
    slot_bytes: int,
    limit: Callable[[float, float], None] | None = None,
) -> Iterator[Stage]:
    segment = Segment.create(Layout(slots=slots, slot_bytes=slot_bytes))
    try:
        with Pair(segment, sender=sender, receiver=receiver) as pair:

            def of_lanes(a: float, b: float) -> None:
                for side, rate in ((pair.sender, a), (pair.receiver, b)):
                    side.ask("limit", 0, 1e9 * rate)

            places: list[Any] = [side.ask("engine", 0, "allocate", size) for side in (pair.sender, pair.receiver)]
            pair.sender.ask("engine", 0, "fill", places[0], 0x5B, size)
            pair.receiver.ask("engine", 0, "fill", places[1], 0xAA, size)
            copies = sender.runtime != "nothing"
            source, target = places
            how = limit or of_lanes
            yield Stage(pair=pair, segment=segment, source=source, target=target, limit=how, copies=copies)
    finally:
        segment.close()
