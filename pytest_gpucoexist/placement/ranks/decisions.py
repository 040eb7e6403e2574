"""One decision for all ranks of a node, and one lease: pure functions over what each rank would do alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_gpucoexist.model.choosing import choose
from pytest_gpucoexist.model.groups import Group
from pytest_gpucoexist.model.plan import Decision, DecisionOutcome, decide

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpucoexist.model.machine import Machine
    from pytest_gpucoexist.model.requirement import Need

__all__ = ["Deal", "Devices", "deal", "decide_together", "of_each"]

Devices = tuple[tuple[str, ...], ...]
"""Keys of devices, one tuple per group of a request."""

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
    groups = {rank: decision.groups for rank, decision in known.items()}
    candidates = dict.fromkeys(key for each in groups.values() for group in each for key in group.candidates)
    if not candidates or deal(groups, machine) is not None:
        return None
    return _too_few(known[min(known)].need, len(known), tuple(candidates), machine)


def _too_few(need: Need, ranks: int, candidates: Sequence[str], machine: Machine) -> Decision:
    """Say what is missing for all ranks together; what keeps further devices from them counts as it does for one."""
    together = replace(need, requirements=tuple(replace(each, count=each.count * ranks) for each in need.requirements))
    wanted = f"needs {together.describe()}"
    each = f"({need.describe()} for each of {ranks} ranks on this node)"
    alone = decide(together, machine, stand_ins=True)
    if alone.outcome == "run" or alone.reason is None:
        ids = [gpu.id for key in candidates if (gpu := machine.gpu(key)) is not None]
        return Decision(need=together, outcome="missing", reason=f"{wanted} {each}; found {', '.join(ids)}")
    begins = alone.reason.startswith(f"{wanted};")
    reason = f"{wanted} {each}{alone.reason.removeprefix(wanted)}" if begins else f"{alone.reason} {each}"
    return Decision(need=together, outcome=alone.outcome, reason=reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deal:
    """One request for all ranks: what is asked for each part, and which part serves which rank."""

    parts: tuple[tuple[Group, ...], ...]
    part_of: Mapping[int, int]

    @property
    def groups(self) -> tuple[Group, ...]:
        """The groups of all parts, in order."""
        return tuple(group for part in self.parts for group in part)


def deal(groups: Mapping[int, Sequence[Group]], machine: Machine) -> Deal | None:
    """Put what all ranks ask for into one request of distinct devices; None when there are too few.

    Where all ask for shares of memory and there are fewer devices than ranks, ranks share them, as few as possible
    each, in turn as `local_rank % devices` does; the request is for their shares together.
    """
    ranks = sorted(groups)
    first = tuple(groups[ranks[0]])
    alike = all(tuple(each) == first for each in groups.values())
    shares = all(group.requirement.memory_bytes and not group.requirement.exclusive for group in first)
    for sharing in range(1, len(ranks) + 1 if alike and shares else 2):
        count = -(-len(ranks) // sharing)
        part_of = {rank: index % count for index, rank in enumerate(ranks)}
        parts = []
        for index in range(count):
            mine = [rank for rank in ranks if part_of[rank] == index]
            parts.append(tuple(_times(group, len(mine), machine) for group in groups[mine[0]]))
        found = Deal(parts=_apart(parts, machine), part_of=part_of)
        if choose(found.groups, {key for group in found.groups for key in group.candidates}, machine) is not None:
            return found
    return None


def _times(group: Group, ranks: int, machine: Machine) -> Group:
    """Return a group whose devices each hold the shares of several ranks."""
    memory = group.requirement.memory_bytes
    if ranks == 1 or memory is None:
        return group
    total = memory * ranks
    held = {gpu.key for gpu in machine.gpus if (gpu.memory_total_bytes or 0) >= total}
    candidates = tuple(key for key in group.candidates if key in held)
    return replace(group, requirement=replace(group.requirement, memory_bytes=total), candidates=candidates)


def _apart(parts: Sequence[Sequence[Group]], machine: Machine) -> tuple[tuple[Group, ...], ...]:
    """Let devices that must be on one NUMA node be so for each part, and not for all parts together.

    The mark's name becomes one of the part's own. Where that would be too many combinations of nodes to try, all parts
    share one.
    """
    if max(1, len(machine.numa_nodes)) ** len(parts) > _COMBINATIONS:
        return tuple(map(tuple, parts))
    return tuple(
        tuple(
            replace(group, requirement=replace(group.requirement, mark=f"{group.requirement.mark} of part {index}"))
            if group.requirement.same_node
            else group
            for group in part
        )
        for index, part in enumerate(parts)
    )


def of_each(devices: Sequence[tuple[str, ...]], dealt: Deal, *, closest_pair: bool = False) -> dict[int, Devices]:
    """Give what the request got to the ranks: where all ask alike, in their order.

    Code that numbers its devices by the local rank then means the same ones, as long as all are free.
    """
    given = iter(devices)
    got: list[Devices] = [tuple(next(given) for _ in part) for part in dealt.parts]
    first = dealt.parts[0]
    if all([group.candidates for group in part] == [group.candidates for group in first] for part in dealt.parts):
        place = {key: index for group in first for index, key in enumerate(group.candidates)}
        if closest_pair or any(group.requirement.same_node for group in first):
            # What was chosen to be near each other stays together.
            got.sort(key=lambda part: [place[key] for keys in part for key in keys])
        else:
            got = _in_order(got, first)
    return {rank: got[part] for rank, part in dealt.part_of.items()}


def _in_order(got: Sequence[Devices], first: Sequence[Group]) -> list[Devices]:
    ordered: list[Devices] = [()] * len(got)
    for index, group in enumerate(first):
        count = group.requirement.count
        keys = sorted((key for part in got for key in part[index]), key=group.candidates.index)
        ordered = [(*part, tuple(keys[at * count : (at + 1) * count])) for at, part in enumerate(ordered)]
    return ordered
