"""Narrow what a test may be given: parameters of `each_*`, devices chosen for a wider scope, a framework's vendor.

Pure functions over the groups of a match. A *demand* is a set of devices of which the test must get one; it takes a
place in a group that has such a device, and only if none has it, a place of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_gpucoexist.model.machine import Machine
    from pytest_gpucoexist.model.matching import Group

__all__ = ["Demand", "Narrowed", "narrow", "prefer_vendors", "within"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """One device out of `keys` is needed by the fixture `role`."""

    role: str
    keys: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrowed:
    """Groups to ask the broker for, and which of them serves which demand."""

    groups: tuple[Group, ...]
    roles: Mapping[str, int] = field(default_factory=dict)


def within(groups: Sequence[Group], keys: Collection[str]) -> tuple[Group, ...]:
    """Keep only candidates in `keys`; the order of preference stays."""
    return tuple(
        replace(group, candidates=tuple(key for key in group.candidates if key in keys)) for group in groups
    )


def prefer_vendors(groups: Sequence[Group], vendors: Collection[str], machine: Machine) -> tuple[Group, ...]:
    """Keep candidates of these vendors in each group that has enough of them, and the others as they are."""
    of_vendor = {gpu.key for gpu in machine.gpus if gpu.vendor in vendors}
    narrowed = []
    for group in groups:
        left = tuple(key for key in group.candidates if key in of_vendor)
        enough = len(left) >= group.requirement.count
        narrowed.append(replace(group, candidates=left) if enough else group)
    return tuple(narrowed)


def narrow(groups: Sequence[Group], demands: Sequence[Demand]) -> Narrowed:
    """Give every demand a group of exactly one device.

    Demands that agree on a device share it (two wider scopes that chose the same card). A demand that no group can
    serve gets a group of its own: the test holds that device besides those of its marks.
    """
    rest = list(groups)
    singles: list[Group] = []
    roles: dict[str, int] = {}
    for demand in demands:
        index = _shared(singles, demand)
        if index is None:
            index = len(singles)
            singles.append(_take(rest, demand, groups))
        else:
            both = tuple(key for key in singles[index].candidates if key in demand.keys)
            singles[index] = replace(singles[index], candidates=both)
        roles[demand.role] = index
    return Narrowed(groups=(*singles, *rest), roles=roles)


def _shared(singles: Sequence[Group], demand: Demand) -> int | None:
    return next(
        (index for index, group in enumerate(singles) if not demand.keys.isdisjoint(group.candidates)), None
    )


def _take(rest: list[Group], demand: Demand, groups: Sequence[Group]) -> Group:
    for index, group in enumerate(rest):
        overlap = tuple(key for key in group.candidates if key in demand.keys)
        if not overlap:
            continue
        single = replace(group, requirement=replace(group.requirement, count=1), candidates=overlap)
        if group.requirement.count == 1:
            del rest[index]
        else:
            fewer = replace(group.requirement, count=group.requirement.count - 1)
            others = tuple(key for key in group.candidates if len(overlap) > 1 or key not in overlap)
            rest[index] = replace(group, requirement=fewer, candidates=others)
        return single
    template = groups[0]
    return replace(
        template,
        requirement=replace(template.requirement, count=1),
        candidates=tuple(sorted(demand.keys)),
    )
