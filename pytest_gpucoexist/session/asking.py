"""What a test asks for: the groups of its decision, narrowed by its fixtures; and what its scope will ask for later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pytest_gpucoexist.errors import GpuCoexistError
from pytest_gpucoexist.model.groups import Group
from pytest_gpucoexist.session.choices import Choice, Choices, scope_id, wider_fixtures
from pytest_gpucoexist.session.fixture_needs import our_fixtures
from pytest_gpucoexist.session.joined import joined, slots_of
from pytest_gpucoexist.session.narrow import Demand, narrow, prefer_vendors

if TYPE_CHECKING:
    import pytest

    from pytest_gpucoexist.session.joined import Slot
    from pytest_gpucoexist.session.state import Decision, GpuSession

__all__ = ["Asked", "asked_by", "everything", "shared_groups"]

_FRAMEWORK_FIXTURES = {"torch_device": "torch", "cupy_device": "cupy"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Groups to ask for. `roles` says which of them serves a wider fixture."""

    groups: tuple[Group, ...]
    roles: Mapping[str, int] = field(default_factory=dict)
    closest_pair: bool = False


def shared_groups(session: GpuSession, groups: Sequence[Group]) -> tuple[Group, ...]:
    """Give requirements that say no memory the one of `gpu_default_memory`; exclusive ones stay whole."""
    default = session.options.default_memory_bytes
    if default is None:
        return tuple(groups)
    return tuple(
        replace(group, requirement=replace(group.requirement, memory_bytes=default))
        if group.requirement.memory_bytes is None and not group.requirement.exclusive
        else group
        for group in groups
    )


def asked_by(session: GpuSession, item: pytest.Item, decision: Decision, choices: Choices) -> Asked:
    """Narrow the groups of a decision to run. Raises GpuCoexistError where a wider fixture's device will not do."""
    machine = session.machine()
    groups = tuple(decision.groups)
    for fixture in our_fixtures(item):
        if fixture in _FRAMEWORK_FIXTURES and not machine.simulated:
            framework = _FRAMEWORK_FIXTURES[fixture]
            built = [run for run in machine.runtimes if run.kind == "framework" and run.name == framework]
            groups = prefer_vendors(groups, {vendor for run in built for vendor in run.vendors}, machine)
    if session.home is not None and session.options.workers == "rotate":
        from pytest_gpucoexist.placement.homes import at_home

        groups = at_home(groups, session.home, machine)
    fixed, free = [], []
    for name in wider_fixtures(item):
        scope = (name, scope_id(item, name))
        choice = choices.alive.get(scope)
        if choice is not None:
            _check_fits(session, item, name, choice, groups)
            fixed.append(Demand(role=name, keys=frozenset({choice.key})))
        else:
            free.append(Demand(role=name, keys=_common(session, item, groups, choices.peers(item.session, scope))))
    narrowed = narrow(groups, [*fixed, *free])
    return Asked(
        groups=shared_groups(session, narrowed.groups),
        roles=narrowed.roles,
        closest_pair=decision.need.closest_pair,
    )


def everything(session: GpuSession, item: pytest.Item, asked: Asked, choices: Choices) -> tuple[Group, ...]:
    """Return groups that serve a test and all that may run while one of its wider fixtures lives."""
    if not wider_fixtures(item):
        return asked.groups
    others: dict[object, tuple[Slot, ...]] = {}
    for each in choices.companions(item, session.gpu_items(item.session)):
        decision = session.decision(each)
        if decision is None or decision.outcome != "run":
            continue
        scopes = tuple((name, scope_id(each, name)) for name in wider_fixtures(each))
        alike = (id(decision), scopes, *(name for name in our_fixtures(each) if name in _FRAMEWORK_FIXTURES))
        if alike not in others:
            others[alike] = _slots(each, asked_by(session, each, decision, choices))
    return joined(_slots(item, asked), others.values(), session.machine())


def _slots(item: pytest.Item, asked: Asked) -> tuple[Slot, ...]:
    scopes: dict[int, list[tuple[str, str]]] = {}
    for name, index in asked.roles.items():
        scopes.setdefault(index, []).append((name, scope_id(item, name)))
    return slots_of(asked.groups, scopes)


def _common(
    session: GpuSession, item: pytest.Item, groups: Sequence[Group], peers: Sequence[pytest.Item]
) -> frozenset[str]:
    """Devices that serve this test and, as far as possible, every later one that will be given the same device."""
    common = frozenset(key for group in groups for key in group.candidates)
    for peer in peers:
        decision = None if peer is item else session.decision(peer)
        if decision is None or decision.outcome != "run":
            continue
        common = common & {key for group in decision.groups for key in group.candidates} or common
    return common


def _check_fits(session: GpuSession, item: pytest.Item, name: str, choice: Choice, groups: Sequence[Group]) -> None:
    if choice.key in session.lost:
        raise GpuCoexistError(
            f"{item.nodeid} uses {name}, whose {choice.key} is unfit since an earlier test: {session.lost[choice.key]}"
        )
    if not any(choice.key in group.candidates for group in groups):
        wanted = " and ".join(group.requirement.describe() for group in groups)
        raise GpuCoexistError(
            f"{item.nodeid} needs {wanted}, but its {name} is {choice.key}, chosen when {choice.first} ran: no one "
            "device serves both. Use a fixture of narrower scope, or put the tests into different scopes"
        )
