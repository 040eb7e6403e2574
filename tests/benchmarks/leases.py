"""What a lease costs: acquired and released with nobody in the way, and handed over when its holder is killed."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.host import local_host
from pytest_gpucoexist.leases.machine import Identity, MachineLeaser
from pytest_gpucoexist.leases.occupied import MachineOccupancy
from pytest_gpucoexist.leases.places import FUNCTIONS, Place
from pytest_gpucoexist.model.groups import Group
from pytest_gpucoexist.model.requirement import Requirement
from tests.benchmarks.running import Row
from tests.leases.processes import Process, need
from tests.machines import machine, nvidia

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.model.machine import Machine

__all__ = ["handover", "uncontended"]

UNCONTENDED_US = 100
HANDOVER_MS = 50
WAITERS = 4


def uncontended(*, quick: bool) -> list[Row]:
    """Time acquiring and releasing: a device of a folder, and with the lock of a PCI function; whole and a share."""
    return list(_uncontended(2_000 if quick else 10_000, UNCONTENDED_US * (2 if quick else 1)))


def _uncontended(count: int, limit_us: float) -> Iterator[Row]:
    addresses = _addresses(4)
    kinds: dict[str, tuple[Machine, str | None]] = {"folder": (_cards(), None)}
    if addresses:
        kinds["folder and PCI function"] = (_cards(addresses), FUNCTIONS)
    for what, (cards, functions) in kinds.items():
        for memory_bytes, text in ((None, "whole"), (2 << 30, "a share"), (None, "two devices")):
            with tempfile.TemporaryDirectory() as folder:
                place = Place(kind="folder", folder=folder, functions=functions)
                occupancy = None
                if functions is not None:
                    occupancy = MachineOccupancy(local_host(), lambda cards=cards: cards, folder)  # type: ignore[misc]
                leaser = MachineLeaser(lambda cards=cards: cards, place, Identity("s"), occupancy=occupancy)  # type: ignore[misc]
                requirement = Requirement(memory_bytes=memory_bytes, count=2 if text == "two devices" else 1)
                groups = [Group(requirement=requirement, candidates=tuple(gpu.key for gpu in cards.gpus))]
                times = _times(leaser, groups, count)
                leaser.close()
            median = statistics.median(times)
            yield Row(
                measure=f"acquire and release, {what}, {text}, {count:,} times",
                median=f"{median:.0f} µs",
                spread=f"{times[0]:.0f} to {times[-len(times) // 100]:.0f} µs (99 %)",
                target=f"{limit_us:g} µs" if text != "two devices" else "",
                met=median <= limit_us if text != "two devices" else None,
            )


def _times(leaser: MachineLeaser, groups: list[Group], count: int) -> list[float]:
    leaser.release(leaser.acquire(groups, "tests/test_a.py::test_x"))
    times = []
    for _ in range(count):
        started = time.perf_counter()
        leaser.release(leaser.acquire(groups, "tests/test_a.py::test_x"))
        times.append(1e6 * (time.perf_counter() - started))
    return sorted(times)


def handover(*, quick: bool) -> list[Row]:
    """Time from `kill -9` of a holder until one of the waiters has the device; nothing of the dead is left on it."""
    rounds = 10 if quick else 40
    cards = _cards()
    key = cards.gpus[0].key
    times = []
    with tempfile.TemporaryDirectory() as folder:
        place = Place(kind="folder", folder=folder)
        waiters = [Process(cards, place) for _ in range(WAITERS)]
        try:
            for each in waiters:
                each.ready()
            for _ in range(rounds):
                times.append(_handed_over(cards, place, key, waiters))
        finally:
            for each in waiters:
                each.end()
    median = statistics.median(times)
    return [
        Row(
            measure=f"killed holder's device is another's, {WAITERS} wait, {rounds} times",
            median=f"{median:.1f} ms",
            spread=f"{min(times):.1f} to {max(times):.1f} ms",
            target=f"{HANDOVER_MS} ms, each",
            met=(median if quick else max(times)) <= HANDOVER_MS,
        )
    ]


def _handed_over(cards: Machine, place: Place, key: str, waiters: list[Process]) -> float:
    holder = Process(cards, place).ready()
    holder.ask("acquire", "held", [need([key])])
    for each in waiters:
        each.tell("acquire", "waits", [need([key])])
        each.waits()
    time.sleep(0.4)  # they ask as seldom as they ever do by now
    started = time.perf_counter()
    holder.kill()
    first: Any = waiters[0].answer()
    took = 1000 * (time.perf_counter() - started)
    waiters[0].ask("release", first[1][0])
    for each in waiters[1:]:
        each.ask("release", each.answer()[1][0])
    holder.end()
    return took


def _cards(addresses: list[str] | None = None) -> Machine:
    """Make a machine of four cards: a replayed one, or this one's with the addresses of functions that are here."""
    if not addresses:
        return machine(*(nvidia(number) for number in range(4)), simulated=True)
    return machine(*(nvidia(number, pci_address=address) for number, address in enumerate(addresses)))


def _addresses(count: int) -> list[str]:
    try:
        return sorted(os.listdir(FUNCTIONS))[-count:] if Path(FUNCTIONS).is_dir() else []
    except OSError:
        return []
