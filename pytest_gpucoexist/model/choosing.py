"""Choosing distinct devices for several groups at once."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from pytest_gpucoexist.model.pairing import paired

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from pytest_gpucoexist.model.groups import Group
    from pytest_gpucoexist.model.machine import Gpu, Machine

__all__ = ["choose", "path_length"]

Slots = list[tuple[str, ...]]


def choose(
    groups: Sequence[Group],
    free: Collection[str],
    machine: Machine,
    *,
    closest_pair: bool = False,
    preferred: Sequence[str] = (),
) -> tuple[tuple[str, ...], ...] | None:
    """Give each group its count of distinct devices out of `free`, or return None when that is impossible.

    Devices in `preferred` come first, then the order of the candidates decides. With `closest_pair`, the first
    devices of the first two groups are the pair with the shortest path between them. Groups of one mark that want
    one NUMA node get one together.
    """
    for allowed in _node_choices(groups, free, machine):
        ordered = [sorted(keys, key=_rank(preferred)) for keys in allowed]
        if closest_pair and len(groups) > 1:
            fixings: list[tuple[str, ...]] = sorted(
                ((one, two) for one in ordered[0] for two in ordered[1] if one != two),
                key=lambda pair: path_length(machine.gpu(pair[0]), machine.gpu(pair[1])),
            )
        else:
            fixings = [()]
        for fixed in fixings:
            if (chosen := _assign(groups, ordered, fixed)) is not None:
                return chosen
    return None


def path_length(one: Gpu | None, two: Gpu | None) -> tuple[int, int]:
    """How far two devices are apart: below one root port, on one NUMA node, across; then bridges between them."""
    if one is None or two is None or one.upstream is None or two.upstream is None:
        return 3, 0
    above = zip(one.upstream, two.upstream, strict=False)
    shared = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], above))
    bridges = len(one.upstream) + len(two.upstream) - 2 * shared
    if shared:
        return 0, bridges
    return (1 if one.numa_node is not None and one.numa_node == two.numa_node else 2), bridges


def _node_choices(groups: Sequence[Group], free: Collection[str], machine: Machine) -> Iterator[Slots]:
    """Yield the free candidates of each group, once for every combination of NUMA nodes that may be meant."""
    candidates: Slots = [tuple(key for key in group.candidates if key in free) for group in groups]
    marks = list(dict.fromkeys(group.requirement.mark for group in groups if group.requirement.same_node))
    if not marks or len(machine.numa_nodes) == 1:
        yield candidates
        return
    node_of = {gpu.key: gpu.numa_node for gpu in machine.gpus}
    nodes = sorted({node for gpu in machine.gpus if (node := gpu.numa_node) is not None})
    for combination in itertools.product(nodes, repeat=len(marks)):
        chosen = dict(zip(marks, combination, strict=True))
        yield [
            tuple(key for key in keys if node_of.get(key) == chosen[group.requirement.mark])
            if group.requirement.same_node
            else keys
            for group, keys in zip(groups, candidates, strict=True)
        ]


def _assign(
    groups: Sequence[Group], ordered: Sequence[Sequence[str]], fixed: Sequence[str]
) -> tuple[tuple[str, ...], ...] | None:
    """Give every place a device of its own, or return None."""
    wanted: list[Sequence[str]] = []
    for index, (group, keys) in enumerate(zip(groups, ordered, strict=True)):
        wanted += [keys] * group.requirement.count
        if index < len(fixed):
            wanted[-group.requirement.count] = (fixed[index],)
    holder = paired(wanted)
    if len(holder) < len(wanted):
        return None
    by_slot = {slot: key for key, slot in holder.items()}
    places = iter(range(len(wanted)))
    chosen = []
    for index, (group, keys) in enumerate(zip(groups, ordered, strict=True)):
        given = [by_slot[next(places)] for _ in range(group.requirement.count)]
        if index >= len(fixed):
            given.sort(key=keys.index)
        chosen.append(tuple(given))
    return tuple(chosen)


def _rank(preferred: Sequence[str]) -> Callable[[str], int]:
    rank = {key: position for position, key in enumerate(preferred)}
    return lambda key: rank.get(key, len(rank))
