"""Which devices are a worker's own, and the masks that show them to it. Pure: no I/O, no xdist.

Each worker gets, of every vendor that the machine has, a fair part of the devices that tests can use: the workers of a
machine with four cards are given two each, or one each, or share them, as many as they are. Devices that are near each
other stay together, because a part is a run of the machine's own order, NUMA node by NUMA node.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_gpucoexist.errors import RequirementError
from pytest_gpucoexist.model.choosing import choose
from pytest_gpucoexist.model.matching import match
from pytest_gpucoexist.model.requirement import Need, Requirement
from pytest_gpucoexist.model.visibility.write import write_masks

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pytest_gpucoexist.model.groups import Group
    from pytest_gpucoexist.model.identity import Vendor
    from pytest_gpucoexist.model.machine import Gpu, Machine
    from pytest_gpucoexist.model.visibility.write import MaskStyle

__all__ = ["VARIABLES", "Homes", "at_home", "home_masks", "home_needs", "usable_devices"]

VARIABLES: Mapping[Vendor, frozenset[str]] = {
    "nvidia": frozenset({"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"}),
    "amd": frozenset({"ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"}),
    "intel": frozenset({"ZE_AFFINITY_MASK", "ONEAPI_DEVICE_SELECTOR"}),
}
"""The variables that say which devices of a vendor a process sees."""

_NEEDS: Mapping[Vendor, Requirement] = {
    "nvidia": Requirement(vendor="nvidia", api="cuda", mark="cuda"),
    "amd": Requirement(vendor="amd", api="rocm", mark="rocm"),
    "intel": Requirement(vendor="intel"),
}


def home_needs(machine: Machine) -> tuple[Need, ...]:
    """Return what a home must be able to serve: one device of each vendor that is on the machine."""
    vendors = {gpu.vendor for gpu in machine.gpus if gpu.is_compute}
    return tuple(Need(requirements=(need,)) for vendor, need in _NEEDS.items() if vendor in vendors)


def usable_devices(machine: Machine) -> dict[Vendor, tuple[Gpu, ...]]:
    """Return the devices that can be a home, by vendor: fit, granted, visible, and with a place in a mask.

    As for tests, an integrated GPU does not count beside a card of its vendor. Devices of one NUMA node stand together.
    """
    found: dict[Vendor, tuple[Gpu, ...]] = {}
    for need in home_needs(machine):
        (requirement,) = need.requirements
        keys = {key for group in match(need, machine).groups for key in group.candidates}
        gpus = [gpu for gpu in machine.gpus if gpu.key in keys and _has_place(gpu, machine)]
        if gpus and requirement.vendor is not None:
            found[requirement.vendor] = tuple(sorted(gpus, key=_node))
    return found


class Homes:
    """The homes of the workers on one machine, given out one after the other."""

    def __init__(self, machine: Machine) -> None:
        """`machine` is judged, with the caller's masks applied."""
        self._usable = usable_devices(machine)
        self._workers = {gpu.key: 0 for gpus in self._usable.values() for gpu in gpus}

    @property
    def workers(self) -> Mapping[str, int]:
        """How many workers each device is the home of, by key."""
        return self._workers

    def take(self, workers: int, given: Mapping[Vendor, Sequence[str]] | None = None) -> tuple[str, ...]:
        """Give the next worker its home: keys, vendor by vendor; the first one is the device to use.

        `workers` are still to come, this one included. While devices are left that are nobody's home, the worker gets
        its part of them, else one that the fewest share. `given` are devices of vendors that somebody else gave it.
        """
        home: list[str] = []
        given = given or {}
        for vendor in dict.fromkeys((*self._usable, *given)):
            taken = list(given[vendor]) if vendor in given else self._part(self._usable[vendor], max(workers, 1))
            for key in taken:
                self._workers[key] = self._workers.get(key, 0) + 1
            home += taken
        return tuple(home)

    def _part(self, gpus: Sequence[Gpu], workers: int) -> list[str]:
        new = [gpu for gpu in gpus if not self._workers[gpu.key]]
        if not new:
            return [min(gpus, key=lambda gpu: self._workers[gpu.key]).key]
        count = -(-len(new) // workers)  # rounded up
        if any(_is_instance(gpu) for gpu in new[:count]):
            count = 1  # a process of CUDA's sees one MIG instance and nothing beside it
        return [gpu.key for gpu in new[:count]]


def at_home(groups: Sequence[Group], home: Sequence[str], machine: Machine) -> tuple[Group, ...]:
    """Have each group take its first device from the home where that serves it; leave all where that cannot be.

    A worker whose ordinal 0 is its home must be given just that device: tests say `cuda:0` and nothing else.
    """
    narrowed: list[Group] = []
    for group in groups:
        own = tuple(key for key in home if key in group.candidates)
        if not own:
            narrowed.append(group)
            continue
        count = group.requirement.count
        narrowed.append(replace(group, requirement=replace(group.requirement, count=1), candidates=own))
        if count > 1:
            narrowed.append(replace(group, requirement=replace(group.requirement, count=count - 1)))
    everything = {key for group in groups for key in group.candidates}
    return tuple(groups) if choose(narrowed, everything, machine) is None else tuple(narrowed)


def home_masks(
    home: Sequence[str],
    machine: Machine,
    mode: str,
    style: MaskStyle,
    environ: Mapping[str, str],
    given: Collection[Vendor] = (),
) -> dict[str, str]:
    """Return the variables to set for a worker, whatever it inherits; "" is as good as unset for those that have it.

    `narrow` shows the home alone; `rotate` all that the caller sees, the home first and then on in the machine's
    order, so that ordinal 0 is the worker's own. Vendors in `given` keep the variables that they have, as do those of
    which the caller shows nothing anyway.
    """
    usable = usable_devices(machine)
    seen: list[Gpu] = []
    for vendor, gpus in usable.items():
        own = [gpu for key in home for gpu in gpus if gpu.key == key]
        seen += own if mode == "narrow" else _rotated(own, gpus, _others(vendor, gpus, machine))
    written = write_masks(seen, machine, style, environ)
    hidden = [vendor for vendor in VARIABLES if not any(gpu.visible for gpu in machine.gpus if gpu.vendor == vendor)]
    kept = {variable for vendor in (*given, *hidden) for variable in VARIABLES[vendor]}
    return {variable: value or "" for variable, value in written.items() if variable not in kept}


def _rotated(own: Sequence[Gpu], usable: Sequence[Gpu], others: Sequence[Gpu]) -> list[Gpu]:
    if not own or any(_is_instance(gpu) for gpu in own):
        return list(own)
    start = usable.index(own[-1]) + 1
    rest = [gpu for gpu in (*usable[start:], *usable[:start]) if gpu not in own]
    return [gpu for gpu in (*own, *rest, *others) if gpu in own or not _is_instance(gpu)]


def _others(vendor: Vendor, usable: Sequence[Gpu], machine: Machine) -> list[Gpu]:
    """Return what the caller sees of a vendor beside what can be a home: an integrated GPU, say."""
    return [
        gpu
        for gpu in machine.gpus
        if gpu.vendor == vendor and gpu.is_compute and gpu.visible and gpu.granted and gpu.fit
        if gpu not in usable and _has_place(gpu, machine)
    ]


def _is_instance(gpu: Gpu) -> bool:
    return gpu.vendor == "nvidia" and gpu.partition is not None


def _has_place(gpu: Gpu, machine: Machine) -> bool:
    try:
        write_masks([gpu], machine, "index")
    except RequirementError:
        return False
    return True


def _node(gpu: Gpu) -> int:
    return -1 if gpu.numa_node is None else gpu.numa_node
