"""The machines of a run: their devices, which workers could use which, and what is still wanted of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.placement.engine.crew import Kind
from pytest_gpucoexist.placement.engine.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from pytest_gpucoexist.placement.engine.needs import Need
    from pytest_gpucoexist.placement.engine.pools import Pools
    from pytest_gpucoexist.placement.engine.values import Site

__all__ = ["Machines"]

NOTHING_S = 1e-9
"""What rounding leaves when all durations of a sum were taken away again."""


class Machines:
    """Ledgers by the name of their site, and the kinds of workers that are up or expected back."""

    def __init__(self, pools: Pools) -> None:
        """Begin with no machine. The pools say what is wanted."""
        self._pools = pools
        self.ledgers: dict[str, Ledger] = {}
        self.kinds: list[Kind] = []
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

    def forget(self, kind: Kind) -> None:
        """Expect no worker of this kind any more."""
        self.kinds.remove(kind)

    def lose(self, site: str, keys: Iterable[str], reason: str) -> None:
        """Take devices of a site out for good."""
        self.ledgers[site].lose(keys, reason)
        for kind in (*self.kinds, *self._all.values()):
            kind.judge()

    def need_at(self, ledger: Ledger, demand: int) -> Need | None:
        """Return what a demand takes of a machine, None where it cannot be met."""
        return self._all[ledger.site.name].needs[demand]

    def need(self, demand: int) -> Need | None:
        """Return what a demand takes of the first machine that has it."""
        return next((need for kind in self._all.values() if (need := kind.needs[demand]) is not None), None)

    def copy(self, pools: Pools) -> Machines:
        """Return the same machines with nothing booked, for other pools."""
        machines = Machines(pools)
        for name, ledger in self.ledgers.items():
            machines.ledgers[name] = ledger.copy()
            machines._all[name] = Kind(machines.ledgers[name], None, None, self._all[name].needs)
        for kind in self.kinds:
            ledger = machines.ledgers[kind.ledger.site.name]
            machines.kinds.append(Kind(ledger, kind.only, kind.can_run, kind.needs))
        return machines

    def usable_devices(self) -> int:
        """Count the devices that a pending test could use, of all machines."""
        return sum(
            self.wanted(ledger, device)
            for ledger in self.ledgers.values()
            for device in range(len(ledger.devices))
            if device not in ledger.lost
        )

    def side_by_side(self) -> int:
        """Count the pending tests that fit on those devices at once, the narrowest first: many, where they share."""
        room = self.usable_devices() + 1e-9
        demands = (self._pools.tests[test].demand for test in self._pools.pending())
        needs = (None if demand is None else self.need(demand) for demand in demands)
        for count, weight in enumerate(sorted(need.weight for need in needs if need is not None)):
            room -= weight
            if room < 0:
                return count
        return self._pools.count

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

    def pressure(self, ledger: Ledger) -> tuple[list[float], bool]:
        """Return how many seconds of pending tests each device may expect, and whether one wants a whole device."""
        known = self._pressure.get(ledger)
        count = self._pools.count
        if known is not None and 0.98 * known[0] <= count <= known[0]:
            return known[1], known[2]
        seconds = [0.0] * len(ledger.devices)
        whole_wanted = False
        needs = self._all[ledger.site.name].needs
        for demand, load_s in self._pools.load_s.items():
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
            for demand, load_s in self._pools.load_s.items()
        )
