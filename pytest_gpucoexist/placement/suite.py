"""What several workers collected, as one suite for the engine: tests by id, needs and units by number."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.placement.engine import Engine
from pytest_gpucoexist.placement.engine.values import Demand, Device, Site, Test, Unit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpucoexist.model.groups import Group
    from pytest_gpucoexist.model.machine import Machine
    from pytest_gpucoexist.model.plan import Decision
    from pytest_gpucoexist.model.requirement import Need
    from pytest_gpucoexist.placement.durations import Durations
    from pytest_gpucoexist.placement.transport import Table, TableUnit

__all__ = ["Suite", "distinct", "shared_groups", "site_devices"]


class Suite:
    """The tests of all collections, in the order of the first worker; a test's id is its place there.

    One that a worker collected twice is two tests.
    """

    def __init__(self, collections: Mapping[str, Sequence[str]], tables: Mapping[str, Table]) -> None:
        """Take ids by worker, and what the workers told of them."""
        self.ids: list[str] = []
        self._need: list[int] = []
        self._unit: list[str | None] = []
        self._units: dict[str, TableUnit] = {}
        self._tables = tables
        numbers: dict[Need, int] = {}
        known: set[str | tuple[str, int]] = set()
        same: Sequence[str] | None = None
        for worker, ids in collections.items():
            if worker not in tables or ids == same:
                continue
            same = same or ids
            table = tables[worker]
            codes = [0, *(numbers.setdefault(need, len(numbers) + 1) for need in table.needs)]
            for unit in table.units:
                need = None if unit.need is None else codes[unit.need + 1] - 1
                self._units.setdefault(unit.name, replace(unit, need=need))
            for name, nodeid, need_code, unit_code in zip(
                distinct(ids), ids, table.need_codes, table.unit_codes, strict=True
            ):
                if name not in known:
                    known.add(name)
                    self.ids.append(nodeid)
                    self._need.append(codes[need_code])
                    self._unit.append(table.units[unit_code - 1].name if unit_code else None)
        self.needs: tuple[Need, ...] = tuple(numbers)
        self.here = ""
        """Name of the controller's machine, for the engine."""
        self.devices: tuple[str, ...] = ()
        """Keys of the devices that tests of this suite can use."""

    def unit_of(self, test: int) -> str | None:
        """Name the unit of a test."""
        return self._unit[test]

    def place(self, worker: str) -> dict[str, Any]:
        """Return the arguments of `Engine.worker_up` that say where a worker is."""
        del worker
        return {"site": self.here}

    def engine(
        self,
        machine: Machine,
        decisions: Sequence[Decision],
        durations: Durations,
        *,
        default_memory_bytes: int | None = None,
        keep_order: bool = False,
        workers_per_device: int = 1,
    ) -> Engine:
        """Return an engine for this suite on a machine. `decisions` are about `needs`, in their order."""
        self.here = machine.name
        site = self.site(machine.name, machine, decisions, default_memory_bytes)
        tests = [
            Test(id=test, demand=code - 1 if code else None, unit=unit, duration_s=durations.of_test(nodeid))
            for test, (nodeid, code, unit) in enumerate(zip(self.ids, self._need, self._unit, strict=True))
        ]
        units = [
            Unit(name=unit.name, demand=unit.need, setup_s=durations.of_unit(unit.name), divisible=unit.divisible)
            for unit in self._units.values()
        ]
        return Engine(tests, units=units, sites=[site], keep_order=keep_order, workers_per_device=workers_per_device)

    def site(
        self, name: str, machine: Machine, decisions: Sequence[Decision], default_memory_bytes: int | None
    ) -> Site:
        """Describe a machine on which tests of this suite may run. `decisions` are about `needs`, in their order."""
        demands = [
            Demand(groups=shared_groups(decision.groups, default_memory_bytes), closest_pair=decision.need.closest_pair)
            if decision.outcome == "run"
            else None
            for decision in decisions
        ]
        used = (key for each in demands if each for group in each.groups for key in group.candidates)
        self.devices = tuple(dict.fromkeys((*self.devices, *used)))
        return Site(name=name, machine=machine, devices=site_devices(machine), demands=tuple(demands))


def distinct(ids: Sequence[str]) -> list[str | tuple[str, int]]:
    """Name tests so that each has a name of its own: `--keep-duplicates` and plugins collect one more than once."""
    if len(set(ids)) == len(ids):
        return list(ids)
    seen: dict[str, int] = {}
    names: list[str | tuple[str, int]] = []
    for each in ids:
        seen[each] = count = seen.get(each, 0) + 1
        names.append(each if count == 1 else (each, count))
    return names


def site_devices(machine: Machine) -> tuple[Device, ...]:
    """Return the devices of a machine as the engine counts them."""
    return tuple(
        Device(
            key=gpu.key,
            capacity_bytes=gpu.memory_total_bytes,
            vendor=gpu.vendor,
            numa_node=gpu.numa_node,
            parent=None if gpu.partition is None else gpu.pci_address,
        )
        for gpu in machine.gpus
        if gpu.is_compute
    )


def shared_groups(groups: Sequence[Group], default_memory_bytes: int | None) -> tuple[Group, ...]:
    """Give requirements that say no memory the default; exclusive ones stay whole."""
    if default_memory_bytes is None:
        return tuple(groups)
    return tuple(
        group
        if group.requirement.memory_bytes is not None or group.requirement.exclusive
        else replace(group, requirement=replace(group.requirement, memory_bytes=default_memory_bytes))
        for group in groups
    )
