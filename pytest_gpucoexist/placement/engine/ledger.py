"""How much of each device of a machine is given away, now and to those who will take over from somebody.

A booking is given some of its amount by others that still hold it (its sources), the rest comes from what is free. What
was promised to an heir stays counted with its holder until that ends; so the level of a device is what can be in use at
any moment, in whatever order its holders end, and never more than its capacity.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_gpucoexist.placement.engine.crew import Placed, Worker
    from pytest_gpucoexist.placement.engine.values import Device, Site

__all__ = ["Booking", "Ledger"]


class Booking:
    """An amount of one device: `left` of it is promised to nobody yet, `sources` are others that will hand it over."""

    __slots__ = ("amount", "device", "ended", "left", "owner", "sources", "start_s")

    def __init__(self, device: int, amount: int, owner: Placed | Worker) -> None:
        """Book `amount` of the device with this index, for a test or a unit on a worker."""
        self.device = device
        self.amount = amount
        self.left = amount
        self.owner = owner
        self.sources: list[tuple[Booking, int]] = []
        self.ended = False
        self.start_s: float | None = None


class Ledger:
    """The devices of one site by index, in the order of `Site.devices`. Amounts are bytes, or 1 where unknown."""

    def __init__(self, site: Site) -> None:
        """Begin with every device free."""
        self.site = site
        self.devices: tuple[Device, ...] = site.devices
        self.index = {device.key: number for number, device in enumerate(site.devices)}
        self.capacity = [device.capacity_bytes or 1 for device in site.devices]
        self.level = [0] * len(site.devices)
        self.bookings: list[list[Booking]] = [[] for _ in site.devices]
        self.away: set[int] = set()
        """Held by another session, as far as is known."""
        self.lost: dict[int, str] = {}
        """Out for good, and why."""
        self.parent = [self.index.get(device.parent) if device.parent else None for device in site.devices]
        parts = [self.parent.count(number) for number in range(len(site.devices))]
        self.has_parts = [count > 0 for count in parts]
        self._slice = [capacity // max(count, 1) or 1 for capacity, count in zip(self.capacity, parts, strict=True)]

    def copy(self) -> Ledger:
        """Return the same devices, with nothing booked."""
        ledger = Ledger(self.site)
        ledger.away = set(self.away)
        ledger.lost = dict(self.lost)
        return ledger

    def room(self, device: int) -> int:
        """How much could be booked now. A part has none while its parent is given whole, or away, or lost."""
        if device in self.away or device in self.lost:
            return 0
        parent = self.parent[device]
        if parent is not None and (
            parent in self.away
            or parent in self.lost
            or self.capacity[parent] - self.level[parent] < self._slice[parent]
        ):
            return 0
        return self.capacity[device] - self.level[device]

    def book(self, device: int, amount: int, owner: Placed | Worker, sources: Sequence[Booking] = ()) -> list[Booking]:
        """Take an amount, of what the sources will leave first, and the slice of a parent that goes with a part."""
        return [self._book(each, taken, owner, sources) for each, taken in self.takes(device, amount)]

    def takes(self, device: int, amount: int) -> list[tuple[int, int]]:
        """Return what has to be booked for it: the device, and with a part a slice of its parent."""
        parent = self.parent[device]
        return [(device, amount)] if parent is None else [(device, amount), (parent, self._slice[parent])]

    def _book(self, device: int, amount: int, owner: Placed | Worker, sources: Sequence[Booking]) -> Booking:
        booking = Booking(device, amount, owner)
        missing = amount
        for source in sources:
            if source.device == device and missing and source.left:
                taken = min(missing, source.left)
                source.left -= taken
                booking.sources.append((source, taken))
                missing -= taken
        if missing > self.capacity[device] - self.level[device]:
            raise ValueError(f"{self.devices[device].key}: {amount} do not fit beside {self.level[device]}")
        self.level[device] += missing
        self.bookings[device].append(booking)
        return booking

    def release(self, bookings: Sequence[Booking]) -> None:
        """End bookings, begun or not: what they promised is their heirs'; what they were promised is their sources'."""
        for booking in bookings:
            booking.ended = True
            self.level[booking.device] -= booking.left
            for source, amount in booking.sources:
                if not source.ended:
                    source.left += amount
                    self.level[booking.device] += amount
            booking.sources.clear()
            self.bookings[booking.device].remove(booking)

    def promised(self, bookings: Iterable[Booking]) -> bool:
        """Whether any of it is promised to an heir."""
        return any(booking.left < booking.amount for booking in bookings)

    def lose(self, keys: Iterable[str], reason: str) -> None:
        """Take devices out for good, and what is a part of them."""
        gone = set(keys)
        for number, device in enumerate(self.devices):
            if device.key in gone or device.parent in gone:
                self.lost.setdefault(number, reason)
