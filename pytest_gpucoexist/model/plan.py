"""What becomes of a test: the decision about its need on a machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pytest_gpucoexist.model.groups import Group
from pytest_gpucoexist.model.matching import match
from pytest_gpucoexist.model.requirement import Need, Requirement

if TYPE_CHECKING:
    from pytest_gpucoexist.model.machine import Machine

__all__ = ["Decision", "DecisionOutcome", "decide", "is_promised", "promised_need", "unmet_promises"]

DecisionOutcome = Literal["run", "missing", "masked", "not_granted", "simulated", "unfit", "error"]

# Of several things that are wrong, the one that a person should deal with first.
_GRAVITY: tuple[DecisionOutcome, ...] = ("unfit", "missing", "not_granted", "masked", "simulated")


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Whether a test runs, on which candidates, or why not in full sentences."""

    need: Need
    outcome: DecisionOutcome
    reason: str | None = None
    groups: tuple[Group, ...] = ()


def decide(need: Need, machine: Machine, *, stand_ins: bool) -> Decision:
    """Decide about a need. `stand_ins`: devices of a replayed machine are as good as real ones."""
    found = match(need, machine)
    if not found.satisfied:
        outcomes = {missing.outcome for missing in found.missing}
        outcome = next(each for each in _GRAVITY if each in outcomes)
        return Decision(need=need, outcome=outcome, reason="; ".join(each.reason for each in found.missing))
    if machine.simulated and not stand_ins:
        keys = dict.fromkeys(key for group in found.groups for key in group.candidates)
        reason = (
            f"needs {need.describe()}; found {', '.join(keys)} (simulated: of the replayed machine {machine.name}; "
            "add --gpu-simulate to run on stand-ins)"
        )
        return Decision(need=need, outcome="simulated", reason=reason, groups=found.groups)
    return Decision(need=need, outcome="run", groups=found.groups)


def _promise(name: str, count: int) -> Requirement:
    if name == "cuda":
        return Requirement(vendor="nvidia", api="cuda", count=count, mark="cuda")
    if name == "rocm":
        return Requirement(vendor="amd", api="rocm", count=count, mark="rocm")
    return Requirement(vendor=None if name == "gpu" else name, count=count)  # type: ignore[arg-type]


def promised_need(promises: tuple[tuple[str, int], ...]) -> Need:
    """Return everything that was promised as one need, for the facts that must be known to judge it."""
    return Need(requirements=tuple(_promise(name, count) for name, count in promises))


def unmet_promises(promises: tuple[tuple[str, int], ...], machine: Machine) -> tuple[str, ...]:
    """Say which promises this machine does not keep. A replayed machine keeps none."""
    unmet = []
    for name, count in promises:
        need = Need(requirements=(_promise(name, count),))
        decision = decide(need, machine, stand_ins=True)
        if decision.outcome != "run":
            unmet.append(f"{name}:{count} is promised: {decision.reason}")
        elif machine.simulated:
            unmet.append(f"{name}:{count} is promised: {machine.name} is replayed: simulated devices keep no promise")
    return tuple(unmet)


def is_promised(need: Need, promises: tuple[tuple[str, int], ...]) -> bool:
    """Whether the runner promised this hardware, so that a test may not be skipped for want of it.

    A promise is about devices and their number. Conditions that it does not speak of (memory, architecture,
    versions, features) were not promised.
    """
    return bool(need.requirements) and all(
        any(_covers(_promise(name, count), requirement) for name, count in promises)
        for requirement in need.requirements
    )


def _covers(promise: Requirement, wanted: Requirement) -> bool:
    if wanted.count > promise.count or (wanted.vendor is not None and promise.vendor != wanted.vendor):
        return False
    if wanted.memory_bytes or wanted.arch or wanted.driver or wanted.features or wanted.same_node:
        return False
    return not wanted.runtime and not wanted.framework and wanted.device is None and wanted.node is None
