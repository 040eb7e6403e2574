"""What is assigned to whom at this moment, and what they hold or will take over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.placement.crew import Kind, Placed, Worker
from pytest_gpucoexist.placement.ledger import Ledger
from pytest_gpucoexist.placement.values import Assignment, Share

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from pytest_gpucoexist.placement.account import Account
    from pytest_gpucoexist.placement.ledger import Booking
    from pytest_gpucoexist.placement.needs import Chosen, Need
    from pytest_gpucoexist.placement.pools import Pools, UnitState
    from pytest_gpucoexist.placement.values import Site

__all__ = ["Plan"]

NOTHING_S = 1e-9
"""What rounding leaves when all durations of a sum were taken away again."""


class Plan:
    """The workers and their lines, with the ledgers that they draw on."""

    def __init__(self, pools: Pools, account: Account, *, keep_order: bool) -> None:
        """Begin with no worker and no machine."""
        self.pools = pools
        self.account = account
        self.ledgers: dict[str, Ledger] = {}
        self.workers: dict[str, Worker] = {}
        self.kinds: list[Kind] = []
        self.keep_order = keep_order
        self.waiting: dict[int, frozenset[int]] = {}
        """For which tests devices were kept by the last decision, and which."""
        self._all: dict[str, Kind] = {}
        self._pressure: dict[Ledger, tuple[int, list[float], bool]] = {}

    def add_site(self, site: Site) -> None:
        """Know a machine."""
        ledger = self.ledgers[site.name] = Ledger(site)
        self._all[site.name] = Kind(ledger, None, None)

    def kind(self, site: str, only: Collection[str] | None, can_run: Collection[int] | None) -> Kind:
        """Return the kind of such workers, always the same object."""
        ledger = self.ledgers[site]
        usable = None if only is None else frozenset(ledger.index[key] for key in only if key in ledger.index)
        tests = None if can_run is None else frozenset(can_run)
        for kind in self.kinds:
            if kind.ledger is ledger and kind.only == usable and kind.can_run == tests:
                return kind
        self.kinds.append(Kind(ledger, usable, tests))
        return self.kinds[-1]

    def possible(self, demand: int | None) -> bool:
        """Whether workers of some kind, up or expected back, could meet a demand with every device free."""
        return demand is None or any(kind.possible[demand] for kind in self.kinds)

    def impossible(self) -> set[int]:
        """Return the demands that no kind of worker can meet."""
        demands = range(max((len(kind.possible) for kind in self.kinds), default=0))
        return {demand for demand in demands if not self.possible(demand)}

    def forget_kind(self, kind: Kind) -> None:
        """Expect no worker of this kind any more, if none is up."""
        if all(worker.kind is not kind for worker in self.workers.values()):
            self.kinds.remove(kind)

    def lose(self, site: str, keys: Iterable[str], reason: str) -> None:
        """Take devices of a site out for good."""
        self.ledgers[site].lose(keys, reason)
        for kind in (*self.kinds, *self._all.values()):
            kind.judge()

    def width(self, demand: int) -> float:
        """Return how many devices a demand takes, a share counted as a part."""
        for kind in self._all.values():
            need = kind.needs[demand]
            if need is not None:
                return max(need.weight, 1e-3)
        return 1.0

    def usable_devices(self) -> int:
        """Count the devices that a pending test could use, of all machines."""
        return sum(
            self.wanted(ledger, device)
            for ledger in self.ledgers.values()
            for device in range(len(ledger.devices))
            if device not in ledger.lost
        )

    def why_not(self, demand: int | None) -> str:
        """Say why no worker can meet a demand: what it lacks was never there, or was lost."""
        lost = {
            ledger.devices[device].key: reason
            for ledger in self.ledgers.values()
            for device, reason in ledger.lost.items()
            if demand is not None
            and (need := self._all[ledger.site.name].needs[demand]) is not None
            and device in need.order
        }
        if lost:
            return "no machine has what it needs any more: " + ", ".join(f"{key}: {why}" for key, why in lost.items())
        return "no machine that a worker runs on has what it needs"

    # Devices

    def pressure(self, ledger: Ledger) -> tuple[list[float], bool]:
        """Return how many seconds of pending tests each device may expect, and whether one wants a whole device."""
        known = self._pressure.get(ledger)
        count = self.pools.count
        if known is not None and 0.98 * known[0] <= count <= known[0]:
            return known[1], known[2]
        seconds = [0.0] * len(ledger.devices)
        whole_wanted = False
        needs = self._all[ledger.site.name].needs
        for demand, load_s in self.pools.load_s.items():
            need = None if demand is None else needs[demand]
            if need is not None and load_s > NOTHING_S:
                whole_wanted |= not need.shared
                for device, part in need.spread.items():
                    seconds[device] += load_s * part
        self._pressure[ledger] = count, seconds, whole_wanted
        return seconds, whole_wanted

    def wanted(self, ledger: Ledger, device: int) -> bool:
        """Whether a pending test could use a device."""
        needs = self._all[ledger.site.name].needs
        return any(
            load_s > NOTHING_S and demand is not None and (need := needs[demand]) is not None and device in need.order
            for demand, load_s in self.pools.load_s.items()
        )

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
        placed = Placed(worker, test, unit, self.pools.expected_s[test], now_s)
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
        closes = (
            worker.unit is not None
            and not any(each.unit is worker.unit for each in worker.line)
            and (not worker.unit.tests or ledger.promised(worker.hold))
        )
        ledger.release(placed.bookings)
        if closes:
            self.close(worker, now_s)
        self._hand_on(placed, now_s)
        if worker.line:
            self._activate(worker.line[0], now_s)

    def cancel(self, placed: Placed, now_s: float) -> None:
        """Take a test off its worker that did not begin."""
        placed.worker.line.remove(placed)
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
    worker = placed.worker
    return worker.hold if worker.unit is not None and placed.unit is worker.unit and not worker.unit.tests else ()


def _keys(ledger: Ledger, chosen: Chosen) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(ledger.devices[device].key for device in group) for group in chosen)


def _shares(ledger: Ledger, need: Need, chosen: Chosen) -> tuple[Share, ...]:
    return tuple(
        Share(key=ledger.devices[device].key, memory_bytes=part.amounts[device])
        for part, devices in zip(need.parts, chosen, strict=True)
        for device in devices
        if part.is_share(device)
    )
