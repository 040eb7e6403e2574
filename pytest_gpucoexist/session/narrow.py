"""Narrow what a test may be given: parameters of `each_*`, devices chosen for a wider scope, a framework's vendor.

Pure functions over the groups of a match. A *demand* is a set of devices of which the test must get one; it takes a
place in a group that has such a device, and only if none has it, a place of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pytest_gpucoexist.model.matching import Group

if TYPE_CHECKING:
    from pytest_gpucoexist.model.machine import Machine

__all__ = ["Demand", "Narrowed", "narrow", "prefer_vendors"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """One device out of `keys` is needed by the fixture `role`."""

    role: str
    keys: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrowed:
    """Groups to ask for, and which of them serves which demand."""

    groups: tuple[Group, ...]
    roles: Mapping[str, int] = field(default_factory=dict)


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
    """Give every demand a group of exactly one device, without changing the order of the marks.

    Demands that agree on a device share it (two wider scopes that chose the same card). A demand that no group can
    serve gets a group of its own at the end: the test holds that device besides those of its marks.
    """
    places = [_Place(group=group) for group in groups]
    for demand in demands:
        place = _shared(places, demand) or _split(places, demand) or _own(places, demand)
        place.roles.append(demand.role)
        place.group = replace(
            place.group, candidates=tuple(key for key in place.group.candidates if key in demand.keys)
        )
    return Narrowed(
        groups=tuple(place.group for place in places),
        roles={role: index for index, place in enumerate(places) for role in place.roles},
    )


@dataclass(slots=True, kw_only=True, eq=False)
class _Place:
    group: Group
    roles: list[str] = field(default_factory=list)


def _shared(places: Sequence[_Place], demand: Demand) -> _Place | None:
    return next((place for place in places if place.roles and not demand.keys.isdisjoint(place.group.candidates)), None)


def _split(places: list[_Place], demand: Demand) -> _Place | None:
    for index, place in enumerate(places):
        group = place.group
        if place.roles or demand.keys.isdisjoint(group.candidates):
            continue
        if group.requirement.count > 1:
            fewer = replace(group.requirement, count=group.requirement.count - 1)
            places.insert(index + 1, _Place(group=replace(group, requirement=fewer)))
            place.group = replace(group, requirement=replace(group.requirement, count=1))
        return place
    return None


def _own(places: list[_Place], demand: Demand) -> _Place:
    template = places[0].group
    one = replace(template.requirement, count=1, same_node=False)
    place = _Place(group=replace(template, requirement=one, candidates=tuple(sorted(demand.keys))))
    places.append(place)
    return place
