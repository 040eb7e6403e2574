"""Keep devices for a test that is next but has to wait, so that smaller ones do not pass it for ever.

A kept device may still be given to what is expected to end before the test could begin anyway.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.placement.engine.crew import Worker

if TYPE_CHECKING:
    from collections.abc import Collection

    from pytest_gpucoexist.placement.engine.ledger import Booking, Ledger
    from pytest_gpucoexist.placement.engine.needs import Chosen, Need

__all__ = ["earliest", "ends_s"]


def ends_s(booking: Booking, now_s: float) -> float:
    """Expect when a booking ends: with its test, or with what is left of its worker's unit."""
    owner = booking.owner
    if isinstance(owner, Worker):
        line, unit = owner.line, owner.unit
        left_s = unit.work_s / len(unit.workers) if unit is not None and unit.tests else 0.0
        return (line[-1].ends_s(now_s) if line else now_s) + left_s
    return owner.ends_s(now_s)


def earliest(
    need: Need, ledger: Ledger, kept: Collection[int], now_s: float, before: Collection[int] = ()
) -> tuple[float, Chosen] | None:
    """Find the soonest time when a demand can be met by devices that are not kept for others, and which they are.

    Devices that were kept for it `before` and are free stay its own, so that what it has only grows; else those are
    taken that are free last, so that a device that is free now is left to others. None: not even when everything that
    runs has ended, because devices are away, or kept for others.
    """
    ready: dict[int, float] = {}
    for part in need.parts:
        for device in part.candidates:
            if device in kept or device in ledger.away or device in ledger.lost:
                continue
            at_s = _ready_s(ledger, device, part.amounts[device], now_s)
            ready[device] = max(at_s, ready.get(device, now_s))
    times = sorted(set(ready.values()))

    def rank(device: int) -> tuple[bool, float, int]:
        return not (device in before and ready[device] <= now_s), -ready[device], device

    best: tuple[float, Chosen] | None = None
    low, high = 0, len(times) - 1
    while low <= high:
        middle = (low + high) // 2
        room = [0] * len(ledger.devices)
        for device, at_s in ready.items():
            if at_s <= times[middle]:
                room[device] = ledger.capacity[device]
        chosen = need.fit(room, rank)
        if chosen is None:
            low = middle + 1
        else:
            best = times[middle], chosen
            high = middle - 1
    return best


def _ready_s(ledger: Ledger, device: int, amount: int, now_s: float) -> float:
    at_s = now_s
    parent = ledger.parent[device]
    if parent is not None and ledger.room(device) == 0:
        at_s = max((ends_s(each, now_s) for each in ledger.bookings[parent]), default=now_s)
    missing = amount - (ledger.capacity[device] - ledger.level[device])
    if missing <= 0:
        return at_s
    for end_s, left in sorted((ends_s(each, now_s), each.amount) for each in ledger.bookings[device]):
        at_s = max(at_s, end_s)
        missing -= left
        if missing <= 0:
            break
    return at_s
