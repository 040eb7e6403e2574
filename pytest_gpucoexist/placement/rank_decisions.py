"""One decision for all ranks of a node, and one lease: pure functions over what each rank would do alone."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_gpucoexist.model.choosing import choose
from pytest_gpucoexist.model.plan import Decision, DecisionOutcome
from pytest_gpucoexist.model.requirement import Need

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpucoexist.model.groups import Group
    from pytest_gpucoexist.model.machine import Machine

__all__ = ["decide_together", "groups_of_all", "of_each"]

# Of what ranks came to, the one that a person should deal with first.
_GRAVITY: tuple[DecisionOutcome, ...] = ("error", "unfit", "missing", "not_granted", "masked", "simulated")

_COMBINATIONS = 4096


def decide_together(decisions: Mapping[int, Decision | None], machine: Machine) -> Decision | None:
    """Return what all ranks come to instead of their own decisions; None where each may run as it decided.

    `decisions` by local rank. A test that cannot run on one rank runs on none; and the devices of all must be distinct.
    """
    known = {rank: decision for rank, decision in decisions.items() if decision is not None}
    if not known:
        return None
    if len(known) < len(decisions):
        lacking = ", ".join(f"rank {rank}" for rank in sorted(decisions.keys() - known.keys()))
        some = known[min(known)]
        reason = f"needs {some.need.describe()} on some ranks of this node and nothing on {lacking}: mark it alike"
        return Decision(need=some.need, outcome="error", reason=reason)
    unable = {rank: decision for rank, decision in known.items() if decision.outcome != "run"}
    if unable:
        gravest = min(unable, key=lambda rank: (_GRAVITY.index(unable[rank].outcome), rank))
        decision = unable[gravest]
        alike = len(unable) == len(known) and len({each.reason for each in unable.values()}) == 1
        return decision if alike else replace(decision, reason=f"local rank {gravest} {decision.reason}")
    groups = groups_of_all({rank: decision.groups for rank, decision in known.items()}, machine)
    candidates = dict.fromkeys(key for group in groups for key in group.candidates)
    if not groups or choose(groups, candidates.keys(), machine) is not None:
        return None
    ranks = len(known)
    need = known[min(known)].need
    together = replace(need, requirements=tuple(replace(each, count=each.count * ranks) for each in need.requirements))
    ids = [gpu.id for key in candidates if (gpu := machine.gpu(key)) is not None]
    reason = (
        f"needs {together.describe()} ({need.describe()} for each of {ranks} ranks on this node); "
        f"found {len(ids)}: {', '.join(ids)}"
    )
    return Decision(need=Need(requirements=together.requirements), outcome="missing", reason=reason)


def groups_of_all(groups: Mapping[int, Sequence[Group]], machine: Machine) -> tuple[Group, ...]:
    """Put the groups of all ranks into one request, in the order of the ranks, so that devices are distinct.

    Devices of one mark that must be on one NUMA node must be so for each rank, not for all ranks together: the mark's
    name becomes one of the rank's own. Where that would be too many combinations of nodes to try, they share one.
    """
    nodes = max(1, len(machine.numa_nodes))
    apart = nodes ** len(groups) <= _COMBINATIONS
    joint = []
    for rank in sorted(groups):
        for group in groups[rank]:
            requirement = group.requirement
            if requirement.same_node and apart:
                group = replace(group, requirement=replace(requirement, mark=f"{requirement.mark} of rank {rank}"))  # noqa: PLW2901
            joint.append(group)
    return tuple(joint)


def of_each(
    devices: Sequence[tuple[str, ...]], groups: Mapping[int, Sequence[Group]], *, closest_pair: bool = False
) -> dict[int, tuple[tuple[str, ...], ...]]:
    """Deal what a request of `groups_of_all` was given to the ranks: where all ask alike, in the order of the ranks.

    Code that numbers its devices by the local rank then means the same ones, as long as all are free.
    """
    given = iter(devices)
    dealt = {rank: tuple(next(given) for _ in groups[rank]) for rank in sorted(groups)}
    first = groups[min(groups)]
    if any(tuple(each) != tuple(first) for each in groups.values()):
        return dealt
    place = {key: index for group in first for index, key in enumerate(group.candidates)}
    if closest_pair or any(group.requirement.same_node for group in first):
        # What was chosen to be near each other stays together.
        parts = sorted(dealt.values(), key=lambda part: [place[key] for keys in part for key in keys])
        return dict(zip(dealt, parts, strict=True))
    for index, group in enumerate(first):
        keys = sorted((key for part in dealt.values() for key in part[index]), key=group.candidates.index)
        for at, rank in enumerate(dealt):
            mine = tuple(keys[at * group.requirement.count : (at + 1) * group.requirement.count])
            dealt[rank] = (*dealt[rank][:index], mine, *dealt[rank][index + 1 :])
    return dealt
