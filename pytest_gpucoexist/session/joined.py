"""One request for everything that several tests will need, one after the other, of devices that are held throughout.

Pure functions. A *slot* is one device out of its candidates. The slots of a later test are laid over those that are
there already, as far as some device would do for both; what fits nowhere becomes a slot of its own. So a process that
holds devices for a wider scope has from the beginning what any test of it needs, and never waits while it holds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_gpucoexist.model.groups import Group
from pytest_gpucoexist.model.matching import choose
from pytest_gpucoexist.model.pairing import paired

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pytest_gpucoexist.model.machine import Machine

__all__ = ["Scope", "Slot", "joined", "slots_of"]

Scope = tuple[str, str]
"""A wider fixture, and the id of the node that it belongs to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One device out of those of a group of one; `scopes` are the wider fixtures that it serves."""

    group: Group
    scopes: frozenset[Scope] = frozenset()

    def met(self, other: Slot) -> Slot | None:
        """Return the slot that serves both, one test after the other; None when no device would.

        It is held whole where either is, else with the larger share.
        """
        candidates = tuple(key for key in self.group.candidates if key in other.group.candidates)
        if not candidates:
            return None
        mine, others = self.group.requirement, other.group.requirement
        shares = [each.memory_bytes for each in (mine, others) if each.memory_bytes is not None and not each.exclusive]
        share = max(shares) if len(shares) == 2 else None
        requirement = replace(mine, memory_bytes=share, exclusive=share is None)
        return Slot(group=Group(requirement=requirement, candidates=candidates), scopes=self.scopes | other.scopes)


def slots_of(groups: Sequence[Group], scopes: Mapping[int, Iterable[Scope]]) -> tuple[Slot, ...]:
    """Take groups apart; `scopes` are those that a group serves, by its index.

    The first device of each group comes first: of these the closest pair is chosen.
    """
    first, further = [], []
    for index, group in enumerate(groups):
        one = replace(group, requirement=replace(group.requirement, count=1))
        first.append(Slot(group=one, scopes=frozenset(scopes.get(index, ()))))
        further += [Slot(group=one)] * (group.requirement.count - 1)
    return (*first, *further)


def joined(first: Sequence[Slot], others: Iterable[Sequence[Slot]], machine: Machine) -> tuple[Group, ...]:
    """Return groups whose devices serve the first test and each of the others.

    What can never be had together with the rest is left out: that test will say so itself.
    """
    slots = tuple(first)
    for wanted in others:
        for each in _on_one_node(wanted, machine):
            grown = _laid_over(slots, each, machine)
            if grown is not None:
                slots = grown
                break
    return tuple(slot.group for slot in slots)


def _laid_over(slots: Sequence[Slot], wanted: Sequence[Slot], machine: Machine) -> tuple[Slot, ...] | None:
    fixed = _by_scope(slots, wanted)
    if fixed is None:
        return None
    begun, left, taken = fixed
    for grown in (_shared(begun, left, taken), (*begun, *left)):
        groups = [slot.group for slot in grown]
        if choose(groups, {key for group in groups for key in group.candidates}, machine) is not None:
            return grown
    return None


def _by_scope(slots: Sequence[Slot], wanted: Sequence[Slot]) -> tuple[list[Slot], list[Slot], set[int]] | None:
    """Lay what serves a wider fixture over the slot that serves it already. None when no device does both."""
    begun, left, taken = list(slots), [], set()
    for slot in wanted:
        places = [index for index, each in enumerate(begun) if each.scopes & slot.scopes]
        for index in places:
            met = begun[index].met(slot)
            if met is None:
                return None
            begun[index] = met
            taken.add(index)
        if not places:
            left.append(slot)
    return begun, left, taken


def _shared(slots: Sequence[Slot], wanted: Sequence[Slot], taken: set[int]) -> tuple[Slot, ...]:
    """Lay each wanted slot over another one, as many as possible (Kuhn), where it takes away the fewest devices."""
    places: list[list[int]] = []
    for slot in wanted:
        met = {index: each.met(slot) for index, each in enumerate(slots) if index not in taken}
        fitting = [(len(slots[at].group.candidates) - len(one.group.candidates), at) for at, one in met.items() if one]
        places.append([at for _lost, at in sorted(fitting)])

    holder = paired(places)
    placed = set(holder.values())
    own = [slot for which, slot in enumerate(wanted) if which not in placed]
    grown = [slots[at].met(wanted[holder[at]]) or slots[at] if at in holder else slots[at] for at in range(len(slots))]
    return (*grown, *own)


def _on_one_node(slots: Sequence[Slot], machine: Machine) -> Iterator[Sequence[Slot]]:
    """Yield the slots with those that want one NUMA node bound to it, node by node."""
    if len(machine.numa_nodes) <= 1 or not any(slot.group.requirement.same_node for slot in slots):
        yield slots
        return
    node_of = {gpu.key: gpu.numa_node for gpu in machine.gpus}
    for node in sorted({node for node in node_of.values() if node is not None}):
        bound = []
        for slot in slots:
            group = slot.group
            if group.requirement.same_node:
                keys = tuple(key for key in group.candidates if node_of.get(key) == node)
                group = Group(requirement=replace(group.requirement, same_node=False), candidates=keys)
            bound.append(replace(slot, group=group))
        if all(slot.group.candidates for slot in bound):
            yield bound
