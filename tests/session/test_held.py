"""What a process that holds devices asks for on top: never waited for, and refused in words that stay true."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from pytest_gpucoexist.errors import DeviceBusyError, GpuCoexistError
from pytest_gpucoexist.leases.lease import Lease
from pytest_gpucoexist.model.groups import Group
from pytest_gpucoexist.model.requirement import Requirement
from pytest_gpucoexist.placement.grant import GRANTED, Grant
from pytest_gpucoexist.session.asking import Asked
from pytest_gpucoexist.session.choices import Choice, choices_of
from pytest_gpucoexist.session.holds import Holds
from pytest_gpucoexist.session.waits import wait_for
from tests.fixtures.machines import NVIDIA0, NVIDIA1, workstation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpucoexist.session.state import GpuSession

ONE = Group(requirement=Requirement(), candidates=(NVIDIA0,))
OTHER = Group(requirement=Requirement(), candidates=(NVIDIA1,))


class Leasing:
    """A leaser that gives the first candidates, or raises what it was told to."""

    def __init__(self) -> None:
        self.raises: Exception | None = None
        self.has: dict[str, str] = {}
        self.asked: list[Sequence[Group]] = []

    def acquire(self, groups: Sequence[Group], owner: str, *_: Any, **__: Any) -> Lease:
        self.asked.append(groups)
        if self.raises is not None:
            raise self.raises
        devices = tuple(group.candidates[: group.requirement.count] for group in groups)
        self.has |= {key: owner for keys in devices for key in keys}
        return Lease(owner=owner, devices=devices, number=len(self.asked))

    def held(self) -> dict[str, str]:
        return self.has

    def release(self, lease: Lease, keys: Sequence[str] | None = None) -> None:
        for key in lease.keys:
            self.has.pop(key, None)


@pytest.fixture
def leasing() -> Leasing:
    return Leasing()


@pytest.fixture
def session(leasing: Leasing) -> GpuSession:
    found = SimpleNamespace(
        leaser=leasing,
        config=SimpleNamespace(stash=pytest.Stash()),
        machine=workstation,
        options=SimpleNamespace(lease="test"),
        preferred=(),
    )
    return cast("GpuSession", found)


@pytest.fixture
def item(session: GpuSession) -> pytest.Item:
    return cast("pytest.Item", SimpleNamespace(nodeid="test_a", config=session.config, stash=pytest.Stash()))


def test_a_refusal_still_says_that_strangers_are_in_the_way(session: GpuSession, leasing: Leasing) -> None:
    leasing.has = {NVIDIA0: "test_a"}
    leasing.raises = DeviceBusyError("used without a lease")
    leasing.raises.elsewhere = True
    with pytest.raises(DeviceBusyError, match="used without a lease; a test that holds") as caught:
        wait_for(session, [OTHER], "test_a")
    assert caught.value.elsewhere


def test_only_what_is_missing_is_asked_for_beside_what_a_wider_fixture_keeps(
    session: GpuSession, leasing: Leasing, item: pytest.Item
) -> None:
    """Nobody foresaw it. To ask for the kept device again would be to wait for oneself."""
    holds = Holds(session)
    holds.take(item, Asked(groups=(ONE,)), lambda: (ONE,))
    choices_of(session.config).alive["module_gpu", "m"] = Choice(key=NVIDIA0, first="test_a")
    lease = holds.take(item, Asked(groups=(ONE, OTHER)), lambda: (ONE, OTHER))
    assert lease.devices == ((NVIDIA0,), (NVIDIA1,))
    assert leasing.asked == [(ONE,), [OTHER]]
    assert leasing.has.keys() == {NVIDIA0, NVIDIA1}


def test_what_never_does_together_is_asked_for_as_a_whole(
    session: GpuSession, leasing: Leasing, item: pytest.Item
) -> None:
    """A wider fixture keeps one device, and what a test asks for beside it no machine could serve."""
    holds = Holds(session)
    holds.take(item, Asked(groups=(ONE,)), lambda: (ONE,))
    choices_of(session.config).alive["module_gpu", "m"] = Choice(key=NVIDIA0, first="test_a")
    leasing.raises = GpuCoexistError("asks for more distinct devices than its candidates offer")
    with pytest.raises(GpuCoexistError, match="more distinct devices"):
        holds.take(item, Asked(groups=(ONE, ONE)), lambda: (ONE, ONE))
    assert leasing.asked[-1] == (ONE, ONE)


def test_a_place_that_fails_is_said_of_a_planned_test_too(
    session: GpuSession, leasing: Leasing, item: pytest.Item
) -> None:
    item.stash[GRANTED] = Grant(keys=((NVIDIA0,),))
    leasing.raises = OSError(24, "Too many open files")
    with pytest.raises(GpuCoexistError, match=r"test_a: the place of leases failed: .* Too many open files"):
        Holds(session).take(item, Asked(groups=(ONE,)), lambda: (ONE,))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_is_lent_nothing_that_its_parent_keeps(
    session: GpuSession, leasing: Leasing, item: pytest.Item
) -> None:
    holds = Holds(session)
    both = (ONE, OTHER)
    holds.take(item, Asked(groups=(ONE,)), lambda: both)
    choices_of(session.config).alive["module_gpu", "m"] = Choice(key=NVIDIA0, first="test_a")
    assert holds.lend([OTHER], "test_a", {NVIDIA0}).number == 0  # of what is held
    holds.give_back(holds.lend([OTHER], "test_b", ()))
    pid = os.fork()
    if pid == 0:
        lease = holds.lend([OTHER], "test_a", {NVIDIA0})
        os._exit(lease.number)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == len(leasing.asked) + 1
