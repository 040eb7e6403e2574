"""Which devices of a machine satisfy a need, and in words a person understands, why others do not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pytest_gpucoexist.model.choosing import choose
from pytest_gpucoexist.model.fitness import Objection, machine_objections, objections
from pytest_gpucoexist.model.groups import Group
from pytest_gpucoexist.model.requirement import VENDOR_NAMES, Need, Requirement

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from pytest_gpucoexist.model.machine import Gpu, Machine

__all__ = ["Group", "Match", "Missing", "MissingOutcome", "choose", "libraries_to_ask", "match", "would_do"]

MissingOutcome = Literal["missing", "masked", "not_granted", "simulated", "unfit"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """A requirement that this machine does not satisfy. `reason` is a full sentence that names what was found."""

    requirement: Requirement
    outcome: MissingOutcome
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """The devices that would do for each requirement, or what is missing. Satisfied when nothing is."""

    groups: tuple[Group, ...] = ()
    missing: tuple[Missing, ...] = ()

    @property
    def satisfied(self) -> bool:
        """Whether every requirement can be met at the same time."""
        return not self.missing


def match(need: Need, machine: Machine) -> Match:
    """Find the candidates of each requirement; they are enough for all requirements together, with distinct devices.

    Memory is compared with the device's total. A fact that could not be read satisfies nothing, and the reason says
    why it could not. Whether other tests hold the devices is not asked here.
    """
    groups: list[Group] = []
    missing: list[Missing] = []
    for requirement in need.requirements:
        found = _match_one(requirement, machine)
        if isinstance(found, Missing):
            missing.append(found)
        else:
            groups.append(found)
    if not missing:
        everything = {key for group in groups for key in group.candidates}
        if choose(groups, everything, machine) is None:
            missing.append(_not_together(groups, machine))
    if missing:
        return Match(missing=tuple(missing))
    return Match(groups=tuple(groups))


def _match_one(requirement: Requirement, machine: Machine) -> Group | Missing:
    needs = f"needs {requirement.describe()}"
    if lacks := machine_objections(requirement, machine):
        return Missing(requirement=requirement, outcome="missing", reason=f"{needs}; {', '.join(lacks)}")
    judged = _judged(requirement, machine)
    fit = _counted(judged)
    if len(fit) >= requirement.count:
        group = Group(requirement=requirement, candidates=tuple(gpu.key for gpu in fit))
        if not requirement.same_node or choose([group], group.candidates, machine) is not None:
            return group
    return Missing(
        requirement=requirement,
        outcome=_outcome([requirement], machine),
        reason=f"{needs}; found {_found(requirement, judged, fit)}",
    )


def would_do(need: Need, machine: Machine) -> tuple[str, ...]:
    """Return the devices that satisfy a need, those included that only a gate took out; none when they are too few."""
    groups = _groups(need.requirements, machine, {"unfit"})
    keys = tuple(dict.fromkeys(key for group in groups for key in group.candidates))
    lacks = any(machine_objections(each, machine) for each in need.requirements)
    return () if lacks or choose(groups, keys, machine) is None else keys


def _outcome(requirements: Sequence[Requirement], machine: Machine) -> MissingOutcome:
    """Say what keeps these requirements from being met together: a gate, the caller's mask, the container.

    None of them withholds enough devices: they are missing.
    """
    allowed: set[str] = set()
    withheld: tuple[MissingOutcome, ...] = ("unfit", "masked", "not_granted")
    for kind in withheld:
        allowed.add(kind)
        groups = _groups(requirements, machine, allowed)
        if choose(groups, {key for group in groups for key in group.candidates}, machine) is not None:
            return kind
    return "missing"


def _groups(requirements: Iterable[Requirement], machine: Machine, allowed: Collection[str]) -> list[Group]:
    return [
        Group(requirement=each, candidates=tuple(gpu.key for gpu in _counted(_judged(each, machine), allowed)))
        for each in requirements
    ]


_Judged = list[tuple["Gpu", tuple[Objection, ...]]]


def _judged(requirement: Requirement, machine: Machine) -> _Judged:
    concerned = [gpu for gpu in machine.gpus if _concerned(gpu, requirement)]
    return [(gpu, objections(gpu, requirement, machine)) for gpu in concerned]


def _counted(judged: _Judged, allowed: Collection[str] = ()) -> list[Gpu]:
    """Return the devices that nothing speaks against but what is `allowed`.

    Integrated GPUs of a vendor that has a discrete one are dropped: counting an APU as a second card is a known trap,
    and so is going on with the APU when the card is unfit.
    """
    found = [gpu for gpu, against in judged if {item.kind for item in against} <= set(allowed)]
    cards = [gpu for gpu, against in judged if {item.kind for item in against} <= {*allowed, "unfit"}]
    with_discrete = {gpu.vendor for gpu in cards if gpu.kind != "integrated"}
    return [gpu for gpu in found if gpu.kind != "integrated" or gpu.vendor not in with_discrete]


def _concerned(gpu: Gpu, requirement: Requirement) -> bool:
    """Whether a reason should speak of the device at all: a BMC is no answer to a wish for a GPU."""
    return gpu.is_compute and requirement.vendor in {None, gpu.vendor}


def _found(requirement: Requirement, judged: Iterable[tuple[Gpu, Sequence[Objection]]], fit: Sequence[Gpu]) -> str:
    parts = []
    for gpu, against in judged:
        if against:
            parts.append(f"{gpu.key} ({', '.join(item.text for item in against)})")
        elif gpu not in fit:
            parts.append(f"{gpu.key} (integrated: not counted beside a discrete GPU)")
        elif requirement.same_node:
            node = "unknown NUMA node" if gpu.numa_node is None else f"NUMA node {gpu.numa_node}"
            parts.append(f"{gpu.key} (on {node})")
        else:
            parts.append(f"{gpu.key} (fits)")
    if not parts:
        return f"no {VENDOR_NAMES[requirement.vendor] + ' ' if requirement.vendor else ''}GPU"
    return ", ".join(parts)


def _not_together(groups: Sequence[Group], machine: Machine) -> Missing:
    wanted = " and ".join(group.requirement.describe() for group in groups)
    keys = dict.fromkeys(key for group in groups for key in group.candidates)
    if any(group.requirement.same_node for group in groups):
        nodes = [(key, gpu.numa_node if (gpu := machine.gpu(key)) else None) for key in keys]
        found = ", ".join(f"{key} (NUMA node {'unknown' if node is None else node})" for key, node in nodes)
    else:
        found = f"only {', '.join(keys)} for all of them"
    unfit: dict[str, str] = {}
    for requirement in (group.requirement for group in groups):
        for gpu, against in _judged(requirement, machine):
            if {item.kind for item in against} == {"unfit"}:
                unfit[gpu.key] = ", ".join(item.text for item in against)
    found += "".join(f", {key} ({words})" for key, words in unfit.items())
    return Missing(
        requirement=groups[-1].requirement,
        outcome=_outcome([group.requirement for group in groups], machine),
        reason=f"needs {wanted}, at the same time; found {found}",
    )


def libraries_to_ask(needs: Iterable[Need], machine: Machine) -> tuple[str, ...]:
    """Name the vendors (`nvidia`, `amd`) whose library must be called before these needs can be decided.

    Everything that files told is not asked again. CUDA is: a driver that files show as bound can hang or mismatch,
    and only NVML notices.
    """
    ask: set[str] = set()
    for need in needs:
        for requirement in need.requirements:
            for gpu in machine.gpus:
                if gpu.vendor in {"nvidia", "amd"} and _concerned(gpu, requirement) and gpu.granted and gpu.fit:
                    wanting = (
                        (requirement.memory_bytes is not None and gpu.memory_total_bytes is None)
                        or (requirement.arch and gpu.arch is None)
                        or (requirement.driver is not None and gpu.driver_version is None)
                        or any(name not in gpu.features for name in requirement.features)
                        or (gpu.vendor == "nvidia" and gpu.usable.cuda)
                    )
                    if wanting:
                        ask.add(gpu.vendor)
    return tuple(sorted(ask - set(machine.asked)))
