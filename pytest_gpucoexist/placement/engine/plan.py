"""What is assigned to whom at this moment, and what they hold or will take over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.placement.engine.crew import Placed, Worker, closes
from pytest_gpucoexist.placement.engine.values import Assignment, Share

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_gpucoexist.placement.engine.account import Account
    from pytest_gpucoexist.placement.engine.ledger import Booking, Ledger
    from pytest_gpucoexist.placement.engine.machines import Machines
    from pytest_gpucoexist.placement.engine.needs import Chosen, Need
    from pytest_gpucoexist.placement.engine.pools import Pools, UnitState

__all__ = ["Plan"]


class Plan:
    """The workers and their lines, and the devices that they draw on."""

    def __init__(self, pools: Pools, machines: Machines, account: Account, *, keep_order: bool) -> None:
        """Begin with no worker and no machine."""
        self.pools = pools
        self.account = account
        self.machines = machines
        self.workers: dict[str, Worker] = {}
        self.keep_order = keep_order
        self.waiting: dict[int, frozenset[int]] = {}
        """For which tests devices were kept by the last decision, and which."""

    def copy(self, account: Account) -> Plan:
        """Return a plan for the same suite, machines and workers, with nothing done yet."""
        pools = self.pools.copy()
        machines = self.machines.copy(pools)
        plan = Plan(pools, machines, account, keep_order=self.keep_order)
        for worker in self.workers.values():
            kind = machines.kinds[self.machines.kinds.index(worker.kind)]
            plan.workers[worker.name] = Worker(worker.name, kind, worker.home)
        return plan

    def note_wait(self, test: int, ledger: Ledger, devices: Iterable[int], now_s: float) -> None:
        """Note who holds what is kept for a test that waits."""
        owners = {
            id(placed): placed
            for device in devices
            for booking in ledger.bookings[device]
            for placed in (booking.owner.line[:1] if isinstance(booking.owner, Worker) else [booking.owner])
        }
        self.account.waits(test, now_s, tuple((each.worker.name, each.test) for each in owners.values()))

    # Tests

    def place(
        self,
        worker: Worker,
        test: int,
        unit: UnitState | None,
        now_s: float,
        need: Need | None = None,
        chosen: Chosen = (),
        sources: Iterable[Placed] = (),
        unmet: str | None = None,
    ) -> Assignment:
        """Assign a test that was taken out of the pools, with devices; `sources` hand theirs over when they end."""
        placed = Placed(worker, test, unit, self.pools.likely_s(test), now_s)
        if unit is not None and worker.fresh:
            placed.expected_s += self.pools.setup_s(unit)
            placed.sets_up = True
            worker.fresh = False
        before = [each for each in worker.line[-1:] if each not in sources]
        placed.waits = [*sources, *before]
        for each in placed.waits:
            each.heirs.append(placed)
        if need is not None:
            bookings = [booking for each in sources for booking in (*each.bookings, *_closing(each))]
            for device, amount in need.amounts(chosen):
                if worker.held.get(device, 0) < amount:
                    placed.bookings += worker.kind.ledger.book(device, amount, placed, bookings)
            worker.last = tuple(device for group in chosen for device in group)
        placed.assignment = Assignment(
            worker=worker.name,
            test=test,
            devices=_keys(worker.kind.ledger, chosen),
            shares=() if need is None else _shares(worker.kind.ledger, need, chosen),
            after=tuple((each.worker.name, each.test) for each in placed.waits),
            unmet=unmet,
        )
        worker.line.append(placed)
        self._activate(placed, now_s)
        return placed.assignment

    def _activate(self, placed: Placed, now_s: float) -> None:
        if not placed.waits and placed.worker.line[0] is placed and placed.start_s is None:
            self.began(placed, now_s)

    def began(self, placed: Placed, now_s: float) -> None:
        """Note that a test has its devices."""
        placed.start_s = now_s
        self.account.began(placed, now_s)

    def end(self, placed: Placed, now_s: float) -> None:
        """Take a test that ran, the first of its line, off its worker, and hand on what it held."""
        worker = placed.worker
        worker.line.remove(placed)
        if placed.start_s is None:
            self.began(placed, now_s)
        self.account.ended(placed, now_s)
        ledger = worker.kind.ledger
        ends_unit = (
            worker.unit is not None
            and not any(each.unit is worker.unit for each in worker.line)
            and (not worker.unit.tests or ledger.promised(worker.hold))
        )
        ledger.release(placed.bookings)
        if ends_unit:
            self.close(worker, now_s)
        self._hand_on(placed, now_s)
        if worker.line:
            self._activate(worker.line[0], now_s)

    def cancel(self, placed: Placed, now_s: float) -> None:
        """Take a test off its worker that did not begin."""
        placed.worker.line.remove(placed)
        self.account.withdrawn(placed)
        placed.worker.kind.ledger.release(placed.bookings)
        for each in placed.waits:
            each.heirs.remove(placed)
        placed.waits.clear()
        self._hand_on(placed, now_s)

    def _hand_on(self, placed: Placed, now_s: float) -> None:
        for heir in placed.heirs:
            heir.waits.remove(placed)
        for heir in placed.heirs:
            if heir in heir.worker.line:
                self._activate(heir, now_s)
        placed.heirs.clear()

    # Units

    def opened(self) -> list[UnitState]:
        """Return the units that workers have open, and that are not at their end."""
        found: dict[UnitState, None] = {}
        for worker in self.workers.values():
            if worker.unit is not None and worker.unit.tests:
                found[worker.unit] = None
        return list(found)

    def open(
        self,
        worker: Worker,
        unit: UnitState,
        now_s: float,
        need: Need | None,
        chosen: Chosen = (),
        sources: Iterable[Placed] = (),
    ) -> None:
        """Let a worker begin a unit, or help with it, and hold the unit's devices from now (or the sources' end) on."""
        worker.unit = unit
        worker.fresh = True
        unit.workers.append(worker.name)
        unit.setups += 1
        if need is not None:
            bookings = [booking for each in sources for booking in (*each.bookings, *_closing(each))]
            for device, amount in need.amounts(chosen):
                worker.hold += worker.kind.ledger.book(device, amount, worker, bookings)
            worker.held = dict(need.amounts(chosen))
            worker.last = tuple(worker.held)
            self.account.holds(worker, now_s)

    def close(self, worker: Worker, now_s: float) -> None:
        """Let a worker leave its unit. What is left of it is offered again when no other worker has it open."""
        unit = worker.unit
        if unit is None:
            return
        worker.unit = None
        self.account.lets_go(worker, now_s)
        worker.kind.ledger.release(worker.hold)
        worker.hold = []
        worker.held = {}
        unit.workers.remove(worker.name)
        if unit.tests and not unit.workers:
            self.pools.shelve(unit)


def _closing(placed: Placed) -> Sequence[Booking]:
    """Return what a worker's unit holds, if this test is the last of it."""
    return placed.worker.hold if closes(placed) else ()


def _keys(ledger: Ledger, chosen: Chosen) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(ledger.devices[device].key for device in group) for group in chosen)


def _shares(ledger: Ledger, need: Need, chosen: Chosen) -> tuple[Share, ...]:
    return tuple(
        Share(key=ledger.devices[device].key, memory_bytes=part.amounts[device])
        for part, devices in zip(need.parts, chosen, strict=True)
        for device in devices
        if part.is_share(device)
    )
