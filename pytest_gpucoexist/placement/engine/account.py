"""What the devices did during a run: who held them when, when nobody did and why, and which tests had to wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.placement.engine.values import Idle, Interval, Statistics, Wait

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpucoexist.placement.engine.crew import Placed, Worker
    from pytest_gpucoexist.placement.engine.ledger import Ledger
    from pytest_gpucoexist.placement.engine.pools import UnitState

__all__ = ["Account"]

_Holders = tuple[tuple[str, int], ...]
_Device = tuple[str, str]


class Account:
    """Remembers intervals; the caller's clock is the only one."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._started_s: float | None = None
        self._open: dict[tuple[str, int], list[tuple[_Device, int | None, float]]] = {}
        self._held: dict[str, list[tuple[_Device, float]]] = {}
        self._intervals: list[Interval] = []
        self._busy: dict[_Device, list[tuple[float, float]]] = {}
        self._idle_since: dict[_Device, tuple[float, str]] = {}
        self._idle: list[Idle] = []
        self._waiting: dict[int, tuple[float, _Holders]] = {}
        self._waits: list[Wait] = []

    def begins(self, now_s: float) -> None:
        """Count from the first decision."""
        if self._started_s is None:
            self._started_s = now_s

    def began(self, placed: Placed, now_s: float) -> None:
        """Note that a test has its devices."""
        given = placed.assignment
        if given is not None and given.devices:
            shares = {share.key: share.memory_bytes for share in given.shares}
            site = placed.worker.kind.ledger.site.name
            self._open[given.worker, given.test] = [((site, key), shares.get(key), now_s) for key in given.keys]
        waiting = self._waiting.pop(placed.test, None)
        if waiting is not None:
            self._waits.append(Wait(test=placed.test, since_s=waiting[0], until_s=now_s, holders=waiting[1]))

    def corrected(self, placed: Placed, now_s: float) -> None:
        """Note that a test began later than was thought."""
        who = placed.worker.name, placed.test
        if who in self._open:
            self._open[who] = [(device, share, now_s) for device, share, _ in self._open[who]]

    def withdrawn(self, placed: Placed) -> None:
        """Note that a test did not begin after all."""
        self._open.pop((placed.worker.name, placed.test), None)

    def ended(self, placed: Placed, now_s: float) -> None:
        """Note that a test gave its devices back."""
        who = placed.worker.name, placed.test
        for device, share, start_s in self._open.pop(who, ()):
            self._intervals.append(_interval(device, who, share, start_s, now_s))
            self._busy.setdefault(device, []).append((start_s, now_s))

    def holds(self, worker: Worker, now_s: float) -> None:
        """Note that a unit's devices are held from now on, also between its tests."""
        ledger = worker.kind.ledger
        self._held[worker.name] = [((ledger.site.name, ledger.devices[each].key), now_s) for each in worker.held]

    def lets_go(self, worker: Worker, now_s: float) -> None:
        """Note that a unit's devices are free."""
        for device, start_s in self._held.pop(worker.name, ()):
            self._busy.setdefault(device, []).append((start_s, now_s))

    def waits(self, test: int, now_s: float, holders: _Holders) -> None:
        """Note that a test is next but cannot begin."""
        if test not in self._waiting:
            self._waiting[test] = (now_s, holders)

    def idle(self, ledger: Ledger, device: int, now_s: float, because: str | None) -> None:
        """Tell after a decision whether a device is idle, and why. None: it is not."""
        name = ledger.site.name, ledger.devices[device].key
        was = self._idle_since.get(name)
        if was is not None and was[1] != because:
            del self._idle_since[name]
            if now_s > was[0]:
                self._idle.append(Idle(site=name[0], key=name[1], start_s=was[0], end_s=now_s, because=was[1]))
        if because is not None and name not in self._idle_since:
            self._idle_since[name] = (now_s, because)

    def statistics(self, now_s: float, ledgers: Mapping[str, Ledger], units: Sequence[UnitState]) -> Statistics:
        """Add up what is known until now."""
        running = [
            _interval(device, who, share, start_s, None)
            for who, held in self._open.items()
            for device, share, start_s in held
        ]
        known = [(each.site.name, device.key) for each in ledgers.values() for device in each.devices]
        spans = {device: list(self._busy.get(device, ())) for device in known}
        for each in running:
            spans[each.site, each.key].append((each.start_s, now_s))
        for held_by_unit in self._held.values():
            for device, start_s in held_by_unit:
                spans[device].append((start_s, now_s))
        idle = [
            Idle(site=site, key=key, start_s=since_s, end_s=now_s, because=because)
            for (site, key), (since_s, because) in self._idle_since.items()
            if now_s > since_s
        ]
        return Statistics(
            started_s=now_s if self._started_s is None else self._started_s,
            ended_s=now_s,
            busy_s={device: _covered(found) for device, found in spans.items()},
            intervals=(*self._intervals, *running),
            idle=(*self._idle, *idle),
            waits=tuple(self._waits),
            setups={unit.unit.name: unit.setups for unit in units},
        )


def _interval(
    device: _Device, who: tuple[str, int], share: int | None, start_s: float, end_s: float | None
) -> Interval:
    site, key = device
    worker, test = who
    return Interval(site=site, key=key, worker=worker, test=test, start_s=start_s, end_s=end_s, memory_bytes=share)


def _covered(spans: Sequence[tuple[float, float]]) -> float:
    total, reached = 0.0, float("-inf")
    for start_s, end_s in sorted(spans):
        if end_s > reached:
            total += end_s - max(start_s, reached)
            reached = end_s
    return total
