"""Leases that children inherit, and children that would wait for their own parent."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist.errors import DeviceBusyError
from pytest_gpucoexist.host import local_host
from pytest_gpucoexist.leases.machine import Identity, MachineLeaser
from pytest_gpucoexist.leases.token import VARIABLE, inherited
from pytest_gpucoexist.model.groups import Group
from pytest_gpucoexist.model.requirement import Requirement
from tests.leases.processes import folder_place, need

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pytest_gpucoexist.leases.lease import Lease
    from pytest_gpucoexist.model.machine import Machine
    from tests.leases.conftest import Start

N0, N1, A0 = "0000:41:00.0", "0000:42:00.0", "0000:c1:00.0"


@pytest.fixture
def parent(box: Machine, folder: Path) -> Iterator[MachineLeaser]:
    """The process of the test itself, which starts the others."""
    leaser = MachineLeaser(lambda: box, folder_place(folder), Identity("parent", host=local_host()))
    yield leaser
    leaser.close()


def acquire(parent: MachineLeaser, *keys: str, memory_mib: int | None = None) -> Lease:
    memory = None if memory_mib is None else memory_mib << 20
    requirement = Requirement(count=len(keys), memory_bytes=memory)
    return parent.acquire([Group(requirement=requirement, candidates=keys)], "test_parent")


def environ(parent: MachineLeaser, lease: Lease) -> dict[str, str]:
    token = parent.token(lease)
    assert token is not None
    return {VARIABLE: token}


def test_a_token_tells_what_is_held_for_as_long_as_it_is(parent: MachineLeaser) -> None:
    lease = acquire(parent, N0, N1, memory_mib=512)
    found = inherited(environ(parent, lease))
    assert found is not None
    assert (found.devices, found.pid, found.owner, found.machine) == (
        {N0: 512 << 20, N1: 512 << 20},
        os.getpid(),
        "test_parent",
        "testbox",
    )
    token = environ(parent, lease)
    parent.release(lease, [N1])
    left = inherited(token)
    assert left is not None
    assert set(left.devices) == {N0}
    parent.release(lease)
    assert inherited(token) is None
    assert parent.token(lease) is None


@pytest.mark.parametrize("text", ["", "1", "1:2:3", "1:1:0123456789abcdef:/nowhere/4711-0.json", "é" * 40, "1:1:x:/"])
def test_what_is_no_token_inherits_nothing(text: str) -> None:
    assert inherited({VARIABLE: text}) is None
    assert inherited({}) is None


def test_a_token_of_another_process_that_took_the_path_is_none(parent: MachineLeaser) -> None:
    lease = acquire(parent, N0)
    head, number, nonce, path = environ(parent, lease)[VARIABLE].split(":", 3)
    assert inherited({VARIABLE: f"{head}:{int(number) + 1}:{nonce}:{path}"}) is None
    assert inherited({VARIABLE: f"{head}:{number}:{'0' * 16}:{path}"}) is None


def test_children_use_the_devices_of_a_lease_one_after_another(parent: MachineLeaser, start: Start) -> None:
    lease = acquire(parent, N0, N1)
    one, two = (start(environ=environ(parent, lease), kin=True).ready() for _ in range(2))
    first = one.ask("acquire", "child_a", [need([N1, A0])])
    assert first[1] == [[N1]]
    assert two.ask("acquire", "child_b", [need([N0, N1])])[1] == [[N0]]
    three = start(environ=environ(parent, lease), kin=True).ready()
    three.tell("acquire", "child_c", [need([N0, N1, A0])])
    three.waits()  # for a brother, not for others' devices
    one.ask("release", first[0])
    assert three.answer()[1][1] == [[N1]]
    # Others are held off as before.
    assert start().ready().refusal("acquire", "stranger", [need([N0])], 0)[0] == "DeviceBusyError"


def test_a_share_is_inherited_as_a_share(parent: MachineLeaser, start: Start) -> None:
    lease = acquire(parent, N0, memory_mib=1024)
    token = environ(parent, lease)
    one, two = (start(environ=token, kin=True).ready() for _ in range(2))
    assert one.ask("acquire", "child_a", [need([N0], 1, 700)])[2] == [[N0, 700]]
    assert two.refusal("acquire", "child_b", [need([N0], 1, 400)], 0)[0] == "DeviceBusyError"
    assert two.ask("acquire", "child_b", [need([N0], 1, 324)])[2] == [[N0, 324]]
    # What is more than was inherited comes from what is free, but is not waited for.
    three, four = (start(environ=token, kin=True).ready() for _ in range(2))
    assert three.ask("acquire", "child_c", [need([N0], 1, 2000)])[2] == [[N0, 2000]]
    name, words = four.refusal("acquire", "child_d", [need([N0], exclusive=True)])
    assert name == "DeviceBusyError"
    assert "does not wait for others" in words


def test_a_child_without_the_token_does_not_wait_for_its_parent(parent: MachineLeaser, start: Start) -> None:
    acquire(parent, N0)
    child = start(kin=True).ready()
    name, words = child.refusal("acquire", "child", [need([N0])])
    assert name == "DeviceBusyError"
    assert f"{N0} is held by test_parent in process {os.getpid()}" in words
    assert "that process waits for this one" in words
    assert VARIABLE in words
    # Another device may do.
    assert child.ask("acquire", "child", [need([N0, N1])])[1] == [[N1]]


def test_two_leasers_of_one_process_do_not_wait_for_each_other(
    parent: MachineLeaser, box: Machine, folder: Path
) -> None:
    acquire(parent, N0)
    inner = MachineLeaser(lambda: box, folder_place(folder), Identity("inner", host=local_host()))
    with pytest.raises(DeviceBusyError, match="that process waits for this one"):
        inner.acquire([Group(requirement=Requirement(), candidates=(N0,))], "inner")
    inner.close()
