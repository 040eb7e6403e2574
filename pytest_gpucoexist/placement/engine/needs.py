"""What a demand takes of one machine, as indexes and amounts, and which devices serve it best."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.model.choosing import choose
from pytest_gpucoexist.model.groups import Group

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from pytest_gpucoexist.placement.engine.ledger import Ledger
    from pytest_gpucoexist.placement.engine.values import Demand

__all__ = ["Chosen", "Need", "Part"]

_NOTHING: Mapping[int, int] = {}

Chosen = tuple[tuple[int, ...], ...]
"""Indexes of devices, one tuple per group."""


class Part:
    """One group of a demand: `count` of the `candidates`, and how much of each, by index."""

    __slots__ = ("_whole_only", "amounts", "candidates", "count", "group", "share")

    def __init__(self, group: Group, ledger: Ledger, only: Collection[int] | None) -> None:
        """Keep the candidates that a worker can use at all."""
        requirement = group.requirement
        self.group = group
        self.count = requirement.count
        self.share = None if requirement.exclusive else requirement.memory_bytes
        found = [ledger.index[key] for key in group.candidates if key in ledger.index]
        self.candidates = tuple(device for device in found if only is None or device in only)
        self.amounts: dict[int, int] = {}
        self._whole_only: set[int] = set()
        for device in self.candidates:
            whole = ledger.capacity[device]
            if self.share is None or ledger.devices[device].capacity_bytes is None or ledger.has_parts[device]:
                self._whole_only.add(device)
                self.amounts[device] = whole
            else:
                self.amounts[device] = min(self.share, whole)

    def is_share(self, device: int) -> bool:
        """Whether a part of this device's memory is taken, not the device."""
        return device not in self._whole_only


class Need:
    """A demand on one machine, for workers that can use all of its devices or `only` some."""

    __slots__ = ("_closest", "_ledger", "_simple", "order", "parts", "shared", "spread", "weight", "width")

    def __init__(self, demand: Demand, ledger: Ledger, only: Collection[int] | None) -> None:
        """Turn keys into indexes once, so that a decision is cheap."""
        self._ledger = ledger
        self._closest = demand.closest_pair
        self.parts = tuple(Part(group, ledger, only) for group in demand.groups)
        self.width = sum(part.count for part in self.parts)
        everything = [device for part in self.parts for device in part.candidates]
        self._simple = (
            len(everything) == len(set(everything))
            and not demand.closest_pair
            and not any(part.group.requirement.same_node for part in self.parts)
        )
        self.shared = any(part.share is not None for part in self.parts)
        self.weight = 0.0
        """Devices taken, a share counted as its part of the smallest candidate."""
        self.order: dict[int, int] = {}
        """The place of each device among the candidates, which are preferred first."""
        self.spread: dict[int, float] = {}
        """The part of a test's time by which each device is expected to be busy with it, were all equally likely."""
        for part in self.parts:
            parts = [part.amounts[device] / ledger.capacity[device] for device in part.candidates]
            self.weight += part.count * max(parts, default=1.0)
            for place, device in enumerate(part.candidates):
                self.order.setdefault(device, place)
                load = part.count * part.amounts[device] / ledger.capacity[device] / len(part.candidates)
                self.spread[device] = self.spread.get(device, 0.0) + load

    def fit(
        self,
        room: Sequence[int],
        rank: Callable[[int], object],
        kept: Collection[int] = (),
        held: Mapping[int, int] = _NOTHING,
    ) -> Chosen | None:
        """Choose distinct devices that have room, those of the lowest rank, none of the `kept`; None: not possible.

        Devices of which the worker's unit has `held` enough come first and need no room.
        """
        fitting: list[list[int]] = []
        for part in self.parts:
            amounts = part.amounts
            some = [
                each
                for each in part.candidates
                if (room[each] >= amounts[each] and each not in kept) or held.get(each, 0) >= amounts[each]
            ]
            if len(some) < part.count:
                return None
            fitting.append(some)
        order: Callable[[int], object] = (lambda each: (each not in held, rank(each))) if held else rank
        if self._simple:
            return tuple(
                (min(some, key=order),) if part.count == 1 else tuple(sorted(some, key=order)[: part.count])  # type: ignore[arg-type]
                for part, some in zip(self.parts, fitting, strict=True)
            )
        return self._together(fitting, order)

    def _together(self, fitting: Sequence[Sequence[int]], rank: Callable[[int], object]) -> Chosen | None:
        devices = self._ledger.devices
        groups = [
            Group(
                requirement=part.group.requirement,
                candidates=tuple(devices[each].key for each in sorted(some, key=rank)),  # type: ignore[arg-type]
            )
            for part, some in zip(self.parts, fitting, strict=True)
        ]
        free = {key for group in groups for key in group.candidates}
        found = choose(groups, free, self._ledger.site.machine, closest_pair=self._closest)
        if found is None:
            return None
        index = self._ledger.index
        return tuple(tuple(index[key] for key in keys) for keys in found)

    def possible(self) -> bool:
        """Whether it can be met when every device that is not lost is free."""
        ledger = self._ledger
        room = [0 if each in ledger.lost else ledger.capacity[each] for each in range(len(ledger.devices))]
        return self.fit(room, int) is not None

    def amounts(self, chosen: Chosen) -> list[tuple[int, int]]:
        """Pair each chosen device with how much of it is taken."""
        return [
            (device, part.amounts[device])
            for part, devices in zip(self.parts, chosen, strict=True)
            for device in devices
        ]
