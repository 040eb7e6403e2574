"""What a running test holds: acquired before its own timers start, released when it is torn down.

Exclusivity is per test. A wider fixture only fixes the *choice* of a device; every test that uses it holds the device
for its own duration, and so does the test whose teardown ends the wider scope. Only what `gpu_leases` acquired in a
fixture of wider scope outlives a test; a process that holds such a lease never waits for another, so xdist workers
cannot deadlock.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from pytest_gpucoexist.errors import GpuCoexistError
from pytest_gpucoexist.leases.broker import Lease
from pytest_gpucoexist.session.choices import Choice, Choices, choices_of, scope_id, wider_fixtures
from pytest_gpucoexist.session.current import drop, pop, push, running
from pytest_gpucoexist.session.fixture_needs import our_fixtures
from pytest_gpucoexist.session.narrow import Demand, narrow, prefer_vendors
from pytest_gpucoexist.session.state import DECISION, GPU_SESSION, GpuSession

if TYPE_CHECKING:
    from pytest_gpucoexist.model.machine import Gpu
    from pytest_gpucoexist.model.matching import Group
    from pytest_gpucoexist.session.state import Decision

__all__ = ["HOLDING", "LACKING", "Holding", "hold", "lacking", "late", "let_go"]

_FRAMEWORK_FIXTURES = {"torch_device": "torch", "cupy_device": "cupy"}


@dataclass(slots=True, kw_only=True, eq=False)
class Holding:
    """The devices of one running test.

    `roles` says which group of the first lease serves a wider fixture; `closing` is the number of groups at the end of
    that lease that the test holds only because its teardown ends a wider scope. `used` stays after the release.
    """

    session: GpuSession
    item: pytest.Item | None
    leases: list[Lease] = field(default_factory=list)
    roles: Mapping[str, int] = field(default_factory=dict)
    closing: int = 0
    used: list[str] = field(default_factory=list)

    @property
    def owner(self) -> str:
        """Who holds, in words: the id of the test."""
        return "gpu_leases" if self.item is None else self.item.nodeid

    def add(self, lease: Lease) -> None:
        """Hold more, and remember it for reports."""
        self.leases.append(lease)
        self.used = list(dict.fromkeys((*self.used, *self.keys())))

    def keys(self) -> tuple[str, ...]:
        """Devices that the test asked for, each once; not those that are held only to close a wider scope."""
        keys: list[str] = []
        for index, lease in enumerate(self.leases):
            groups = lease.devices[: len(lease.devices) - self.closing] if index == 0 else lease.devices
            keys += [key for group in groups for key in group]
        return tuple(dict.fromkeys(keys))

    def gpus(self) -> tuple[Gpu, ...]:
        """Return the same as values of the machine."""
        return self._values(self.keys())

    def reported(self) -> tuple[Gpu, ...]:
        """Return every device that the test has held until now, also those that it gave back before its end."""
        return self._values(self.used)

    def _values(self, keys: Sequence[str]) -> tuple[Gpu, ...]:
        machine = self.session.machine()
        return tuple(gpu for key in keys if (gpu := machine.gpu(key)) is not None)

    def device_of(self, role: str) -> str | None:
        """Key of the device that serves a wider fixture, or None when the test did not name that fixture."""
        index = self.roles.get(role)
        return None if index is None else self.leases[0].devices[index][0]


HOLDING = pytest.StashKey[Holding]()
"""On an item: what it holds, or held, for reports."""

LACKING = pytest.StashKey[str]()
"""On an item: the reason with which one of our fixtures skipped it, for want of a device or a framework."""


def hold(
    session: GpuSession, item: pytest.Item, nextitem: pytest.Item | None, decision: Decision | None
) -> Holding | None:
    """Acquire what a test needs, before its protocol begins; wait as long as it takes.

    None when it needs nothing. A device that is gone from the bus is taken out, and the test gets another one, or none
    where no other would do: then its decision says so. Raises GpuCoexistError when the devices can never be had
    together.
    """
    from pytest_gpucoexist.session.presence import lost_among

    while True:
        holding = _acquired(session, item, nextitem, decision)
        lost = lost_among(session, holding.keys()) if holding is not None else {}
        if holding is None or not lost:
            break
        session.broker.release(holding.leases[0])
        session.take_out(lost)
        if decision is not None:
            decision = item.stash[DECISION] = session.decide(decision.need)
    if holding is not None:
        item.stash[HOLDING] = holding
        push(holding)
    return holding


def _acquired(
    session: GpuSession, item: pytest.Item, nextitem: pytest.Item | None, decision: Decision | None
) -> Holding | None:
    choices = choices_of(item.config)
    ending = choices.ending(item, nextitem) if choices.alive else ()
    groups = () if decision is None or decision.outcome != "run" else tuple(decision.groups)
    if not groups and not ending:
        return None
    holding = Holding(session=session, item=item)
    offered = {key for group in groups for key in group.candidates}
    if groups:
        within = [key for key in ending if key in offered]
        groups, holding.roles = _narrowed(session, item, groups, choices, within)
    closing = tuple(_only(key) for key in dict.fromkeys(ending) if key not in offered)
    holding.closing = len(closing)
    preferred = tuple(choice.key for choice in choices.alive.values())
    closest = decision is not None and bool(groups) and decision.need.closest_pair
    lease = session.broker.acquire((*groups, *closing), owner=item.nodeid, preferred=preferred, closest_pair=closest)
    holding.add(lease)
    return holding


def let_go(holding: Holding) -> None:
    """Release what was acquired for a test. What it was stays readable for reports.

    A lease of `gpu_leases` that is still open belongs to a fixture of wider scope, which releases it itself.
    """
    pop(holding)
    acquired, *still_open = holding.leases
    holding.leases.clear()
    holding.session.broker.release(acquired)
    if still_open:
        push(Holding(session=holding.session, item=None, leases=still_open))


def _narrowed(
    session: GpuSession,
    item: pytest.Item,
    groups: tuple[Group, ...],
    choices: Choices,
    ending: Sequence[str],
) -> tuple[tuple[Group, ...], Mapping[str, int]]:
    machine = session.machine()
    for fixture in our_fixtures(item):
        if fixture in _FRAMEWORK_FIXTURES and not machine.simulated:
            framework = _FRAMEWORK_FIXTURES[fixture]
            built = [run for run in machine.runtimes if run.kind == "framework" and run.name == framework]
            groups = prefer_vendors(groups, {vendor for run in built for vendor in run.vendors}, machine)
    fixed = [Demand(role=f"end of {key}", keys=frozenset({key})) for key in ending]
    free = []
    for name in wider_fixtures(item):
        scope = (name, scope_id(item, name))
        choice = choices.alive.get(scope)
        if choice is not None:
            _check_fits(item, name, choice, groups)
            fixed.append(Demand(role=name, keys=frozenset({choice.key})))
        else:
            free.append(Demand(role=name, keys=_common(session, item, groups, choices.peers(item.session, scope))))
    narrowed = narrow(groups, [*fixed, *free])
    return narrowed.groups, narrowed.roles


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


def _check_fits(item: pytest.Item, name: str, choice: Choice, groups: Sequence[Group]) -> None:
    if choice.key in item.config.stash[GPU_SESSION].lost:
        raise GpuCoexistError(
            f"{item.nodeid} uses {name}, whose {choice.key} is unfit since an earlier test: "
            f"{item.config.stash[GPU_SESSION].lost[choice.key]}"
        )
    if not any(choice.key in group.candidates for group in groups):
        wanted = " and ".join(group.requirement.describe() for group in groups)
        raise GpuCoexistError(
            f"{item.nodeid} needs {wanted}, but its {name} is {choice.key}, chosen when {choice.first} ran: no one "
            "device serves both. Use a fixture of narrower scope, or put the tests into different scopes"
        )


def _only(key: str) -> Group:
    from pytest_gpucoexist.model.matching import Group
    from pytest_gpucoexist.model.requirement import Requirement

    return Group(requirement=Requirement(), candidates=(key,))


@contextlib.contextmanager
def late(
    session: GpuSession,
    item: pytest.Item | None,
    mark: str,
    arguments: Mapping[str, Any],
    *,
    closest_pair: bool = False,
) -> Iterator[tuple[Gpu, ...]]:
    """Acquire while a test runs, for `getfixturevalue` and `gpu_leases`; skip or fail it when a device is missing.

    `item` is None where the caller does not know the test: then it is the one that holds devices, if any does.
    """
    from pytest_gpucoexist.model.requirement import combine

    try:
        decision = session.decide(combine([(mark, (), arguments)], closest_pair=closest_pair))
    except GpuCoexistError:
        if session.stopped is not None:
            from pytest_gpucoexist.session.gating import stop_late

            stop_late(session, session.stopped)
        raise
    if decision.outcome != "run":
        _give_up(session, item, decision)
    holding = running()
    if holding is None or holding.session is not session or (item is not None and holding.item is not item):
        holding = Holding(session=session, item=item)
        push(holding)
        if item is not None:
            item.stash[HOLDING] = holding
    try:
        lease = session.broker.acquire(decision.groups, owner=holding.owner, closest_pair=closest_pair)
        holding.add(lease)
        try:
            yield tuple(gpu for key in lease.keys if (gpu := session.machine().gpu(key)) is not None)
        finally:
            drop(lease)
            session.broker.release(lease)
    finally:
        if not holding.leases:
            pop(holding)


def _give_up(session: GpuSession, item: pytest.Item | None, decision: Decision) -> NoReturn:
    from pytest_gpucoexist.model.plan import is_promised

    reason = decision.reason or "no device"
    if decision.outcome == "unfit" or is_promised(decision.need, session.options.promises):
        pytest.fail(reason, pytrace=False)
    lacking(session, item, reason)


def lacking(session: GpuSession, item: pytest.Item | None, reason: str) -> NoReturn:
    """Skip the running test for want of hardware, or fail it, as `--gpu-missing` says."""
    if session.options.fail_missing:
        pytest.fail(reason, pytrace=False)
    if item is not None:
        item.stash[LACKING] = reason
    pytest.skip(reason)
