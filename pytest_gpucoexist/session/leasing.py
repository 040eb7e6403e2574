"""What a running test holds: acquired before its own timers start, released when it is torn down.

A device of a wider fixture is held for its scope, from its first test until its teardown is over (`holds`). A test
takes what it needs out of what the process holds, and waits for devices only while the process holds none. Only what
`gpu_leases` acquired in a fixture of wider scope is held beside that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from pytest_gpucoexist.errors import DeviceBusyError, GpuCoexistError
from pytest_gpucoexist.leases.lease import Lease
from pytest_gpucoexist.placement.grant import GRANTED
from pytest_gpucoexist.session.asking import asked_by, everything, shared_groups
from pytest_gpucoexist.session.choices import OVER, choices_of
from pytest_gpucoexist.session.current import drop, in_use, pop, push, running
from pytest_gpucoexist.session.granted import give_back_unfit
from pytest_gpucoexist.session.holds import holds_of
from pytest_gpucoexist.session.inheriting import export, take_back, token_of
from pytest_gpucoexist.session.state import DECISION, GpuSession

if TYPE_CHECKING:
    from pytest_gpucoexist.model.machine import Gpu
    from pytest_gpucoexist.session.state import Decision

__all__ = [
    "HOLDING",
    "LACKING",
    "LATE_BUSY",
    "Holding",
    "give_back",
    "hold",
    "hold_again",
    "lacking",
    "late",
    "let_go",
]


@dataclass(slots=True, kw_only=True, eq=False)
class Holding:
    """The devices of one running test.

    `roles` says which group of the first lease serves a wider fixture; `used` stays after the release, and so do
    `shares`. `waited_s` is for how long its first lease was waited for, `token` what its children inherit. `is_back`
    is True when the test is over and its devices were given back, although its last report is not made yet, and None
    for what was acquired only while the test ran.
    """

    session: GpuSession
    item: pytest.Item | None
    leases: list[Lease] = field(default_factory=list)
    roles: Mapping[str, int] = field(default_factory=dict)
    used: list[str] = field(default_factory=list)
    shares: dict[str, int] = field(default_factory=dict)
    waited_s: float = 0.0
    token: str | None = None
    is_back: bool | None = None

    @property
    def owner(self) -> str:
        """Who holds, in words: the id of the test."""
        return "gpu_leases" if self.item is None else self.item.nodeid

    def add(self, lease: Lease) -> None:
        """Hold more, and remember it for reports."""
        self.leases.append(lease)
        self.used = list(dict.fromkeys((*self.used, *lease.keys)))
        self.shares |= {share.key: share.memory_bytes for share in lease.shares}

    def keys(self) -> tuple[str, ...]:
        """Devices that the test asked for, each once."""
        return tuple(dict.fromkeys(key for lease in self.leases for key in lease.keys))

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

LATE_BUSY = pytest.StashKey[str]()
"""On an item: why it was not given what it asked for only while it ran."""


def hold(session: GpuSession, item: pytest.Item, decision: Decision | None) -> Holding | None:
    """Acquire what a test needs, before its protocol begins; wait as long as `--gpu-wait` allows.

    None when it needs nothing. A device that is gone from the bus is taken out, and the test gets another one, or none
    where no other would do: then its decision says so. Raises DeviceBusyError when the wait was too long, and
    GpuCoexistError when the devices can never be had together.
    """
    from pytest_gpucoexist.session.presence import lost_among

    while True:
        if decision is None or decision.outcome != "run":
            return None
        holding = _acquired(session, item, decision)
        lost = lost_among(session, holding.keys())
        if not lost:
            break
        holds_of(session).drop(lost)
        session.take_out(lost)
        decision = item.stash[DECISION] = session.decide(decision.need)
        if decision.outcome != "run":
            give_back_unfit(item, decision.reason or "")
    item.stash[HOLDING] = holding
    push(holding)
    holding.token = token_of(session, holds_of(session).lease)
    export(holding.token)
    return holding


def _acquired(session: GpuSession, item: pytest.Item, decision: Decision) -> Holding:
    choices, holds = choices_of(item.config), holds_of(session)
    asked = asked_by(session, item, decision, choices)
    holding = Holding(session=session, item=item, roles=asked.roles, is_back=False)
    holding.add(holds.take(item, asked, lambda: everything(session, item, asked, choices)))
    holding.waited_s = holds.waited_s
    return holding


def give_back(session: GpuSession, item: pytest.Item, nextitem: pytest.Item | None, holding: Holding) -> None:
    """Release what no scope keeps, as soon as nothing of a test runs any more: who waits need not wait for reports.

    Its devices stay named, for hooks that report, until `let_go`.
    """
    item.stash[OVER] = True
    take_back(holding.token)
    holding.token = None
    holding.is_back = True
    holds_of(session).settle(nextitem)


def hold_again(session: GpuSession, item: pytest.Item, holding: Holding) -> None:
    """Acquire devices anew for a test that is run again after it passed; no plan knows of that, so it waits.

    Raises what `hold` raises.
    """
    pop(holding)
    item.stash[OVER] = False
    if GRANTED in item.stash:
        del item.stash[GRANTED]
    hold(session, item, session.decision(item))


def let_go(session: GpuSession, item: pytest.Item, nextitem: pytest.Item | None, holding: Holding | None) -> None:
    """End a test: release what no scope keeps that lives on. What the test held stays readable for reports.

    A lease of `gpu_leases` that is still open belongs to a fixture of wider scope, which releases it itself.
    """
    item.stash[OVER] = True
    if holding is not None:
        holding = item.stash.get(HOLDING, holding)  # it acquired anew, where it was run again after it had passed
        take_back(holding.token)
        pop(holding)
        _own, *still_open = holding.leases
        holding.leases.clear()
        if still_open:
            push(Holding(session=session, item=None, leases=still_open))
    holds_of(session).settle(nextitem)


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
    holds = holds_of(session)
    holding = running()
    if holding is None or holding.session is not session or (item is not None and holding.item is not item):
        holding = Holding(session=session, item=item)
        push(holding)
        if item is not None:
            item.stash[HOLDING] = holding
    try:
        groups = shared_groups(session, decision.groups)
        try:
            lease = holds.lend(groups, holding.owner, in_use(session), closest_pair=closest_pair)
        except DeviceBusyError as error:
            _busy_late(session, item, error)
            raise
        holding.add(lease)
        token = None if lease.number == 0 else token_of(session, lease)
        export(token)
        try:
            yield tuple(gpu for key in lease.keys if (gpu := session.machine().gpu(key)) is not None)
        finally:
            take_back(token)
            drop(lease)
            holds.give_back(lease)
    finally:
        if not holding.leases:
            pop(holding)


def _busy_late(session: GpuSession, item: pytest.Item | None, error: DeviceBusyError) -> None:
    """Skip a test that waited in vain, where that is wanted; one that could not wait is at fault itself."""
    if session.leaser.held():
        return
    if item is not None:
        item.stash[LATE_BUSY] = str(error)
    if session.options.busy == "skip":
        pytest.skip(str(error))


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
