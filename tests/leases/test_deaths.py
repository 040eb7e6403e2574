"""Marks of the dead: a device that was not given back is looked at afresh before anybody gets it."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist.errors import DeviceBusyError
from pytest_gpucoexist.leases.lease import Holder
from pytest_gpucoexist.leases.machine import Identity, MachineLeaser
from pytest_gpucoexist.leases.reading import records
from pytest_gpucoexist.model.groups import Group
from pytest_gpucoexist.model.requirement import Requirement
from tests.leases.processes import folder_place, need

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from pytest_gpucoexist.leases.lease import Waiting
    from pytest_gpucoexist.model.machine import Machine
    from tests.leases.conftest import Start

N0, N1 = "0000:41:00.0", "0000:42:00.0"


class Seeing:
    """An occupancy that finds what the test says, and notes what it was asked."""

    def __init__(self, *answers: Mapping[str, tuple[Holder, ...]]) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[set[str], bool]] = []
        self.ready = 0

    def busy(self, keys: Collection[str], fresh: bool = False) -> Mapping[str, tuple[Holder, ...]]:
        self.asked.append((set(keys), fresh))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0] if self.answers else {}
        return {key: holders for key, holders in answer.items() if key in keys}

    def prepare(self, keys: Collection[str]) -> None:
        self.ready += 1

    def close(self) -> None:
        self.ready -= 1


def leaser(box: Machine, folder: Path, seeing: Seeing | None, **changes: object) -> MachineLeaser:
    return MachineLeaser(
        lambda: box,
        folder_place(folder),
        Identity("here"),
        occupancy=seeing,
        **changes,  # type: ignore[arg-type]
    )


def needs(*keys: str, count: int = 1) -> list[Group]:
    return [Group(requirement=Requirement(count=count), candidates=keys)]


def leftover(key: str) -> Mapping[str, tuple[Holder, ...]]:
    return {key: (Holder(key=key, kind="leftover", pid=4711, test="test_dead", memory_bytes=1 << 30),)}


def elsewhere(key: str) -> Mapping[str, tuple[Holder, ...]]:
    return {key: (Holder(key=key, kind="elsewhere", pid=4712, program="blender", uid=1000),)}


def test_a_device_given_back_is_not_looked_at_afresh(box: Machine, folder: Path, start: Start) -> None:
    process = start().ready()
    process.ask("release", process.ask("acquire", "test_a", [need([N0])])[0])
    seeing = Seeing()
    here = leaser(box, folder, seeing)
    here.release(here.acquire(needs(N0), "test_b"))
    assert seeing.asked == [({N0}, False)]


def test_after_a_death_it_is_handed_over_when_nothing_is_left_and_not_before(
    box: Machine, folder: Path, start: Start
) -> None:
    process = start().ready()
    process.ask("acquire", "test_dead", [need([N0, N1], 2)])
    process.kill()
    assert [(each.live, each.pid) for each in records(str(folder))] == [(False, process.pid)]
    seeing = Seeing(leftover(N0), leftover(N0), {})
    here = leaser(box, folder, seeing)
    heard: list[Waiting] = []
    lease = here.acquire(needs(N0), "test_b", on_wait=heard.append)
    assert lease.keys == (N0,)
    assert seeing.asked == [({N0}, True)] * 3
    assert {holder.kind for each in heard for holder in each.holders if holder.key == N0} == {"leftover"}
    assert seeing.ready == 0
    # The other device of the dead has not been looked at yet; the record is needed until it has.
    assert [each.live for each in records(str(folder))].count(False) == 1
    here.release(lease)
    here.release(here.acquire(needs(N0), "test_c"))
    assert seeing.asked[3:] == [({N0}, False)]
    here.release(here.acquire(needs(N1), "test_d"))
    assert seeing.asked[4:] == [({N1}, True)]
    assert [each.live for each in records(str(folder))] == [True]
    here.close()


def test_who_died_with_nothing_leaves_a_record_until_the_next_session(box: Machine, folder: Path, start: Start) -> None:
    process = start().ready()
    process.ask("release", process.ask("acquire", "test_a", [need([N0])])[0])
    process.kill()
    assert [(each.live, each.pid) for each in records(str(folder))] == [(False, process.pid)]
    here = leaser(box, folder, Seeing())
    here.release(here.acquire(needs(N1), "test_b"))
    assert [each.live for each in records(str(folder))] == [True]
    here.close()


def test_another_device_is_taken_while_something_is_left(box: Machine, folder: Path, start: Start) -> None:
    process = start().ready()
    process.ask("acquire", "test_dead", [need([N0])])
    process.kill()
    here = leaser(box, folder, Seeing(leftover(N0)))
    assert here.acquire(needs(N0, N1), "test_b", timeout_s=0).keys == (N1,)
    here.close()


def test_what_is_left_is_named_when_a_wait_ends(box: Machine, folder: Path, start: Start) -> None:
    process = start().ready()
    process.ask("acquire", "test_dead", [need([N0])])
    process.kill()
    here = leaser(box, folder, Seeing(leftover(N0)), busy="share")
    with pytest.raises(DeviceBusyError, match="is not free yet after its holder died: process 4711") as caught:
        here.acquire(needs(N0), "test_b", timeout_s=0.1)
    assert not caught.value.elsewhere
    here.close()


def test_the_death_of_one_sharer_is_seen_beside_others(box: Machine, folder: Path, start: Start) -> None:
    lives, dies = start().ready(), start().ready()
    lives.ask("acquire", "test_a", [need([N0], 1, 1024)])
    dies.ask("acquire", "test_dead", [need([N0], 1, 1024)])
    dies.signal(signal.SIGSTOP)
    dies.kill()
    seeing = Seeing()
    here = leaser(box, folder, seeing, default_memory_bytes=1 << 30)
    here.release(here.acquire(needs(N0), "test_b"))
    here.release(here.acquire(needs(N0), "test_c"))
    assert seeing.asked == [({N0}, True), ({N0}, False)]
    here.close()


def test_nobody_to_ask_forgets_the_dead(box: Machine, folder: Path, start: Start) -> None:
    process = start().ready()
    process.ask("acquire", "test_dead", [need([N0])])
    process.kill()
    here = leaser(box, folder, None)
    here.release(here.acquire(needs(N0), "test_b"))
    here.close()
    assert (folder / "table").read_bytes()[512:].strip(b"\0") == b""
    assert list(records(str(folder))) == []


def test_below_a_limit_on_the_size_of_files_there_are_leases(box: Machine, folder: Path) -> None:
    """`ulimit -f`: neither a mark nor a record can be written, and a device is leased all the same."""
    resource = pytest.importorskip("resource")
    here, other = leaser(box, folder, None), leaser(box, folder, None)
    other.release(other.acquire(needs(N0), "test_a"))  # the table is there
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        lease = here.acquire(needs(N0), "test_b")
        with pytest.raises(DeviceBusyError):
            other.acquire(needs(N0), "test_c", timeout_s=0)
        here.release(lease)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert other.acquire(needs(N0), "test_c", timeout_s=0).keys == (N0,)
    here.close()
    other.close()


@pytest.mark.parametrize("policy", ["skip", "fail"])
def test_use_without_a_lease_is_its_own_outcome(box: Machine, folder: Path, policy: str) -> None:
    here = leaser(box, folder, Seeing(elsewhere(N0)), busy=policy)
    with pytest.raises(DeviceBusyError, match=r"is used without a lease by process 4712 \(blender\)") as caught:
        here.acquire(needs(N0), "test_a")
    assert caught.value.elsewhere
    # Where another device would do, it is taken, or waited for.
    other = leaser(box, folder, None)
    lease = other.acquire(needs(N1), "test_b")
    with pytest.raises(DeviceBusyError) as caught:
        here.acquire(needs(N0, N1), "test_a", timeout_s=0.05)
    assert not caught.value.elsewhere
    other.release(lease)
    assert here.acquire(needs(N0, N1), "test_a").keys == (N1,)
    here.close()
    other.close()


def test_use_without_a_lease_is_waited_for_or_shared(box: Machine, folder: Path) -> None:
    # The first answer is from a cache, and asked again before anybody waits for it.
    seeing = Seeing(elsewhere(N0), {})
    here = leaser(box, folder, seeing)
    here.release(here.acquire(needs(N0), "test_a", timeout_s=0))
    assert [fresh for _, fresh in seeing.asked] == [False, True]
    seeing = Seeing(elsewhere(N0), elsewhere(N0), {})
    here = leaser(box, folder, seeing)
    here.release(here.acquire(needs(N0), "test_b"))
    assert [fresh for _, fresh in seeing.asked] == [False, True, True]
    here = leaser(box, folder, Seeing(elsewhere(N0)), busy="share")
    assert here.acquire(needs(N0), "test_c", timeout_s=0).keys == (N0,)
    here.close()
