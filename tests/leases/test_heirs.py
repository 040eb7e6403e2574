"""A child that inherited a lease and goes on without its parent: nobody else gets its devices meanwhile."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist.leases.claims import Claim
from pytest_gpucoexist.leases.heirs import Heirs
from pytest_gpucoexist.leases.layout import SLOT_BYTES, heirs, lent
from pytest_gpucoexist.leases.token import VARIABLE
from tests.leases.processes import need
from tests.machines import machine, nvidia

if TYPE_CHECKING:
    from tests.leases.conftest import Start
    from tests.leases.processes import Process

N0, N1, A0 = "0000:41:00.0", "0000:42:00.0", "0000:c1:00.0"


def lent_by(process: Process, *groups: object) -> tuple[int, dict[str, str]]:
    """Have a process lease devices; return the lease's number and the environment of its children."""
    number = process.ask("acquire", "test_parent", list(groups))[0]
    return number, {VARIABLE: process.ask("token", number)}


@pytest.mark.parametrize("end", ["killed", "released", "closed"])
def test_nobody_gets_the_device_of_an_heir(start: Start, end: str) -> None:
    parent = start().ready()
    number, environ = lent_by(parent, need([N0]), need([N1]))
    child = start(environ=environ, kin=True).ready()
    inherited = child.ask("acquire", "test_child", [need([N0])])
    if end == "killed":
        parent.kill()
    elif end == "released":
        parent.ask("release", number)
    else:
        parent.ask("close")
    other = start().ready()
    name, words = other.refusal("acquire", "test_other", [need([N0])], 0)
    assert name == "DeviceBusyError"
    assert f"{N0} is held by test_child in process {child.pid}" in words
    # What the child did not use is free, and so are shares of no other device.
    assert other.ask("acquire", "test_other", [need([N0, N1])], 0)[1] == [[N1]]
    third = start().ready()
    third.tell("acquire", "test_third", [need([N0], 1, 100)])
    third.waits()
    child.ask("release", inherited[0])
    assert third.answer()[1][1] == [[N0]]


def test_an_heir_that_is_killed_is_waited_for_no_more(start: Start) -> None:
    parent = start().ready()
    _, environ = lent_by(parent, need([N0]))
    child = start(environ=environ).ready()
    child.ask("acquire", "test_child", [need([N0])])
    parent.kill()
    other = start().ready()
    other.tell("acquire", "test_other", [need([N0])])
    other.waits()
    child.kill()
    assert other.answer()[1][1] == [[N0]]


def test_the_parent_of_an_heir_waits_for_it_too(start: Start) -> None:
    """Its next test, while what the one before started goes on."""
    parent = start().ready()
    number, environ = lent_by(parent, need([N0]))
    child = start(environ=environ).ready()
    inherited = child.ask("acquire", "test_child", [need([N0])])
    parent.ask("release", number)
    parent.tell("acquire", "test_next", [need([N0])])
    parent.waits()
    child.ask("release", inherited[0])
    assert parent.answer()[1][1] == [[N0]]


def test_a_grandchild_is_an_heir_of_the_child(start: Start) -> None:
    parent = start().ready()
    _, environ = lent_by(parent, need([N0]))
    child = start(environ=environ).ready()
    _, environ = lent_by(child, need([N0]))
    grandchild = start(environ=environ).ready()
    grandchild.ask("acquire", "test_grandchild", [need([N0])])
    child.kill()
    other = start().ready()
    assert other.refusal("acquire", "test_other", [need([N0])], 0)[0] == "DeviceBusyError"
    parent.kill()
    assert other.refusal("acquire", "test_other", [need([N0])], 0)[0] == "DeviceBusyError"
    grandchild.kill()
    assert other.ask("acquire", "test_other", [need([N0])])[1] == [[N0]]


def test_shares_beside_a_lease_that_lives_are_given(start: Start) -> None:
    parent = start().ready()
    _, environ = lent_by(parent, need([N0], 1, 1024))
    child = start(environ=environ).ready()
    child.ask("acquire", "test_child", [need([N0], 1, 512)])
    other = start().ready()
    assert other.ask("acquire", "test_other", [need([N0], 1, 1024)], 0)[2] == [[N0, 1024]]


def test_what_ended_before_it_was_inherited_is_refused(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look at the parent's record and the heir's own announcement."""
    said: list[int] = []
    taken: list[int] = []
    monkeypatch.setattr("pytest_gpucoexist.leases.heirs.lock", lambda fd, at, length, shared: said.append(at))
    monkeypatch.setattr("pytest_gpucoexist.leases.heirs.unlock", lambda fd, at, length: taken.append(at))
    monkeypatch.setattr("pytest_gpucoexist.leases.heirs.conflict", lambda fd, at, length: None)
    claim = Claim("k", "0/1:k", inherited=True, heir_of="0/1", heirloom=("k",))
    mine = Heirs(-1)
    assert not mine.inherit(claim)
    assert [heirs("k") <= at < heirs("k") + SLOT_BYTES for at in said] == [True]
    mine.lend("2/1", [claim])
    assert [lent("k") <= at < lent("k") + SLOT_BYTES for at in said] == [False, True]
    mine.take_back(claim)
    assert sorted(taken) == sorted(said)


def test_an_heir_of_an_instance_keeps_the_whole_card(start: Start) -> None:
    instance = replace(nvidia(0), id="nvidia0m1", uuid="MIG-1", partition="mig1.0")
    box = machine(nvidia(0), instance, simulated=True)
    parent = start(box).ready()
    _, environ = lent_by(parent, need([instance.key]))
    child = start(box, environ=environ).ready()
    child.ask("acquire", "test_child", [need([instance.key])])
    parent.kill()
    other = start(box).ready()
    for key in (N0, instance.key):
        assert other.refusal("acquire", "test_other", [need([key])], 0)[0] == "DeviceBusyError"
    child.kill()
    assert other.ask("acquire", "test_other", [need([N0])])[1] == [[N0]]
