"""What a decision finds: who is idle, what is free or soon will be, what is kept for others; which device is best.

Looking ahead, what is held by a test that is about to end counts as free for those who will wait for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.placement.engine.crew import Placed, closes
from pytest_gpucoexist.placement.engine.reserve import earliest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpucoexist.placement.engine.crew import Kind, Worker
    from pytest_gpucoexist.placement.engine.ledger import Booking, Ledger
    from pytest_gpucoexist.placement.engine.needs import Chosen, Need
    from pytest_gpucoexist.placement.engine.plan import Plan

__all__ = ["DEEPEST", "DEEP_S", "MOST_KEPT", "NEAR_S", "Floor"]

NEAR_S = 0.15
"""A test that is expected to end within this time has its devices promised: then a wrong guess does little harm.

One that runs half as long again as expected is no longer believed to end soon, until its caller says so.
"""

DEEP_S = 0.02
DEEPEST = 16
"""A line is longer than two tests only while all of it that waits lasts no longer than this (tests of a ms)."""

MOST_KEPT = 4
"""How many tests may have devices kept for them at once."""


class Floor:
    """One decision's view of the devices and workers."""

    def __init__(self, plan: Plan, now_s: float) -> None:
        """Look at nothing yet."""
        self._plan = plan
        self._now_s = now_s
        self._near: dict[Placed, None] = {}
        self._room: dict[Ledger, list[int]] = {}
        self._kept: dict[Ledger, dict[int, tuple[float, int]]] = {}
        self._waiting: dict[int, frozenset[int]] = {}
        self._workers: list[Worker] | None = None

    def changed(self, worker: Worker) -> None:
        """Forget what was seen of a worker and its site, because something was given."""
        self._room.pop(worker.kind.ledger, None)
        self._workers = None

    def look_ahead(self) -> bool:
        """From now on count on what is about to end. False: nothing is."""
        for worker in self._plan.workers.values():
            if len(worker.line) == 1 and self._is_near(worker.line[0]):
                self._near[worker.line[0]] = None
        self._room.clear()
        self._workers = None
        return bool(self._near)

    def _is_near(self, placed: Placed) -> bool:
        if placed.start_s is None or (placed.worker.hold and placed.unit is not None and placed.unit.tests):
            return False
        left_s = placed.start_s + placed.expected_s - self._now_s
        return placed.ending or -max(placed.expected_s, NEAR_S) / 2 <= left_s <= NEAR_S

    def workers(self) -> list[Worker]:
        """Return who can be given something: those that are idle, then those whose test is about to end."""
        if self._workers is None:
            free = [each for each in self._plan.workers.values() if not each.line and each.unit is None]
            near = [each.worker for each in self._near if len(each.worker.line) == 1 and each.worker.unit is None]
            self._workers = free + near
        return self._workers

    @staticmethod
    def best(workers: Sequence[Worker], chosen: Chosen) -> Worker:
        """Choose a worker for these devices: idle, at home on them, or the one that had them last."""
        devices = {device for group in chosen for device in group}

        def rank(worker: Worker) -> tuple[bool, bool, bool]:
            return bool(worker.line), devices.isdisjoint(worker.home), devices.isdisjoint(worker.last)

        return min(workers, key=rank)

    # Devices

    def _room_of(self, ledger: Ledger) -> list[int]:
        room = self._room.get(ledger)
        if room is None:
            room = [ledger.room(device) for device in range(len(ledger.devices))]
            if self._near:
                for device, bookings in enumerate(ledger.bookings):
                    if device not in ledger.away and device not in ledger.lost:
                        room[device] += sum(each.left for each in bookings if self._giver(each) is not None)
            self._room[ledger] = room
        return room

    def _giver(self, booking: Booking) -> Placed | None:
        """Return the test that is about to end and hand this over."""
        owner = booking.owner
        if isinstance(owner, Placed):
            return owner if owner in self._near else None
        return owner.line[0] if len(owner.line) == 1 and owner.line[0] in self._near and closes(owner.line[0]) else None

    def _rank(self, need: Need, kind: Kind, workers: Sequence[Worker]) -> Callable[[int], object]:
        """Prefer devices that others need least; for a share the fullest, while somebody wants a whole one."""
        ledger, room = kind.ledger, self._room_of(kind.ledger)
        pressure, whole_wanted = self._plan.machines.pressure(ledger)
        home = {device for worker in workers for device in worker.home}
        sign = 1 if whole_wanted or not need.shared else -1
        order = need.order

        def rank(device: int) -> tuple[float, bool, int, int, int]:
            parent = ledger.parent[device]
            beside = 0 if parent is None else -ledger.level[parent]
            return pressure[device], device not in home, beside, sign * room[device], order[device]

        return rank

    def _blocked(self, ledger: Ledger, seconds: float, order: int) -> set[int]:
        kept = self._kept.get(ledger)
        if not kept:
            return set()
        ends_s = self._now_s + seconds
        return {device for device, (until_s, whose) in kept.items() if whose != order and ends_s > until_s}

    def fit(self, need: Need, kind: Kind, workers: Sequence[Worker], seconds: float, order: int) -> Chosen | None:
        """Choose devices for something that takes `seconds` and whose first test is `order`; None: it has to wait."""
        blocked = self._blocked(kind.ledger, seconds, order)
        return need.fit(self._room_of(kind.ledger), self._rank(need, kind, workers), blocked)

    def fit_unit(self, need: Need, worker: Worker, seconds: float, order: int) -> Chosen | None:
        """Choose devices for the next test of a worker's unit: those of the unit, and others where they do not do.

        While the worker still runs one, only those of the unit and what that one hands over.
        """
        ledger = worker.kind.ledger
        room: Sequence[int] = self._room_of(ledger)
        if worker.line:
            own = {each.device for each in worker.line[0].bookings} if worker.line[0] in self._near else set()
            room = [amount if device in own else 0 for device, amount in enumerate(room)]
        blocked = self._blocked(ledger, seconds, order)
        return need.fit(room, self._rank(need, worker.kind, [worker]), blocked, worker.held)

    def sources(self, worker: Worker, need: Need, chosen: Chosen) -> list[Placed]:
        """Return whose end these devices have to wait for, the soonest first."""
        if not self._near:
            return []
        ledger = worker.kind.ledger
        found: dict[Placed, None] = {}
        for device, amount in need.amounts(chosen):
            if worker.held.get(device, 0) >= amount:
                continue
            for each, wanted in ledger.takes(device, amount):
                missing = wanted - (ledger.capacity[each] - ledger.level[each])
                givers = [
                    (giver.ends_s(self._now_s), booking.left, giver)
                    for booking in ledger.bookings[each]
                    if booking.left and (giver := self._giver(booking)) is not None
                ]
                for _, left, giver in sorted(givers, key=lambda found: found[0]):
                    if missing > 0:
                        found[giver] = None
                        missing -= left
        return list(found)

    # Keeping

    def keep(self, need: Need, kind: Kind, order: int) -> None:
        """Keep devices for what has to wait, if others could take them from it now."""
        ledger = kind.ledger
        if order in self._waiting or len(self._waiting) >= MOST_KEPT:
            return
        room = self._room_of(ledger)
        if not any(room[device] for part in need.parts for device in part.candidates):
            return
        kept = self._kept.setdefault(ledger, {})
        found = earliest(need, ledger, kept, self._now_s, self._plan.waiting.get(order, ()))
        if found is None:
            return
        until_s, chosen = found
        devices = [device for group in chosen for device in group]
        for device in devices:
            kept[device] = until_s, order
        self._waiting[order] = frozenset(devices)
        self._plan.note_wait(order, ledger, devices, self._now_s)

    def is_hopeless(self, need: Need, kind: Kind) -> bool:
        """Whether a demand could not be met even if all that runs had ended, because others hold the devices."""
        ledger = kind.ledger
        gone = ledger.away | ledger.lost.keys()
        room = [0 if device in gone else capacity for device, capacity in enumerate(ledger.capacity)]
        return need.fit(room, int) is None

    def window_s(self, need: Need, kind: Kind) -> float:
        """Say how long the longest test may last that can be let onto a kept device with room."""
        room = self._room_of(kind.ledger)
        kept = self._kept.get(kind.ledger, {})
        return max(
            (
                kept[device][0] - self._now_s
                for part in need.parts
                for device in part.candidates
                if device in kept and room[device] >= part.amounts[device]
            ),
            default=0.0,
        )

    def remember(self) -> None:
        """Leave to the next decision what is kept for whom, and note why devices are idle."""
        self._plan.waiting = self._waiting
        for ledger in self._plan.machines.ledgers.values():
            kept = self._kept.get(ledger, {})
            for device in range(len(ledger.devices)):
                because = None
                if not ledger.bookings[device]:
                    because = self._why_idle(ledger, device, kept)
                self._plan.account.idle(ledger, device, self._now_s, because)

    def _why_idle(self, ledger: Ledger, device: int, kept: dict[int, tuple[float, int]]) -> str:
        if device in ledger.lost:
            return f"out: {ledger.lost[device]}"
        if device in ledger.away:
            return "held by another session"
        if device in kept:
            return f"kept for test {kept[device][1]}"
        if not self._plan.machines.wanted(ledger, device):
            return "no test left for it"
        return "no worker" if not self.workers() else "what is left needs more than it"
