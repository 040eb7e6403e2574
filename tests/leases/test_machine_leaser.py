"""Leases of one process, and of several leasers in it: each lease has locks of its own, as other processes' have."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucoexist.errors import DeviceBusyError, GpuCoexistError
from pytest_gpucoexist.leases.lease import Share
from pytest_gpucoexist.leases.machine import Identity, MachineLeaser
from pytest_gpucoexist.leases.reading import records
from pytest_gpucoexist.model.groups import Group
from pytest_gpucoexist.model.requirement import Requirement
from tests.leases.processes import folder_place
from tests.machines import GIB, machine, nvidia

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pytest_gpucoexist.leases.lease import Lease, Waiting
    from pytest_gpucoexist.model.machine import Machine

N0, N1, A0, A1 = "0000:41:00.0", "0000:42:00.0", "0000:c1:00.0", "0000:c2:00.0"


def needs(*keys: str, **requirement: Any) -> list[Group]:
    return [Group(requirement=Requirement(**requirement), candidates=keys)]


@pytest.fixture
def leaser(box: Machine, folder: Path) -> Iterator[Callable[..., MachineLeaser]]:
    """Make leasers that stand for processes of their own: each in a PID namespace that nobody else is in."""
    made: list[MachineLeaser] = []

    def make(machine: Machine = box, **changes: Any) -> MachineLeaser:
        identity = Identity(f"session {len(made)}")
        identity.namespace = f"pid:[{len(made)}]"
        place = changes.pop("place", folder_place(folder))
        made.append(MachineLeaser(lambda: machine, place, identity, **changes))
        return made[-1]

    yield make
    for each in made:
        each.close()


def busy(leaser: MachineLeaser, groups: list[Group], owner: str = "late") -> str:
    with pytest.raises(DeviceBusyError) as caught:
        leaser.acquire(groups, owner, timeout_s=0)
    return str(caught.value)


def test_a_whole_device_is_held_against_everybody(leaser: Callable[..., MachineLeaser]) -> None:
    one, two = leaser(), leaser()
    lease = one.acquire(needs(N0), "test_a")
    assert (lease.devices, lease.shares, one.held()) == (((N0,),), (), {N0: "test_a"})
    assert f"{N0} is held by test_a in process {os.getpid()} (pytest)" in busy(two, needs(N0))
    busy(two, needs(N0, memory_bytes=1))
    one.release(lease)
    one.release(lease)
    assert one.held() == {}
    assert two.acquire(needs(N0), "test_b").keys == (N0,)


def test_shares_of_a_device_never_exceed_its_memory(leaser: Callable[..., MachineLeaser]) -> None:
    one = leaser()
    leases = [leaser().acquire(needs(N0, memory_bytes=7 * GIB), f"test_{n}") for n in range(3)]
    assert leases[0].shares == (Share(key=N0, memory_bytes=7 * GIB),)
    busy(one, needs(N0, memory_bytes=4 * GIB))
    busy(one, needs(N0))
    small = one.acquire(needs(N0, memory_bytes=3 * GIB), "small")
    busy(leaser(), needs(N0, memory_bytes=1))
    one.release(small)


def test_a_share_takes_what_others_left_in_pieces(leaser: Callable[..., MachineLeaser]) -> None:
    box = machine(nvidia(0, memory_total_bytes=6 << 20), simulated=True)
    other = leaser(box)
    takers = [leaser(box) for _ in range(6)]
    singles = [taker.acquire(needs(N0, memory_bytes=1), "one MiB") for taker in takers]
    for number in (0, 2, 4):
        takers[number].release(singles[number])
    assert other.acquire(needs(N0, memory_bytes=3 << 20), "scattered").shares == (Share(key=N0, memory_bytes=3 << 20),)
    busy(leaser(box), needs(N0, memory_bytes=1))


@pytest.mark.parametrize(
    ("memory_bytes", "share_bytes"),
    [(1, 1 << 20), ((1 << 20) + 1, 2 << 20), (3 * GIB, 3 * GIB), (24 * GIB, None), (30 * GIB, None)],
)
def test_a_share_is_rounded_up_to_mebibytes_and_all_of_the_memory_is_the_device(
    leaser: Callable[..., MachineLeaser], memory_bytes: int, share_bytes: int | None
) -> None:
    lease = leaser().acquire(needs(N0, memory_bytes=memory_bytes), "test")
    assert lease.shares == (() if share_bytes is None else (Share(key=N0, memory_bytes=share_bytes),))


def test_what_makes_a_lease_whole(leaser: Callable[..., MachineLeaser]) -> None:
    unknown = machine(nvidia(0, memory_total_bytes=None), nvidia(1), simulated=True)
    by_default = leaser(default_memory_bytes=2 * GIB)
    assert by_default.acquire(needs(N0), "default").shares == (Share(key=N0, memory_bytes=2 * GIB),)
    assert leaser().acquire(needs(N1, memory_bytes=GIB, exclusive=True), "exclusive").shares == ()
    assert leaser(default_memory_bytes=GIB).acquire(needs(A0, exclusive=True), "exclusive").shares == ()
    other = leaser(replace(unknown, name="another"))
    assert other.acquire(needs(N0, memory_bytes=GIB), "no total").shares == ()


def test_all_or_nothing_and_again_when_one_is_given_back(leaser: Callable[..., MachineLeaser]) -> None:
    one, two = leaser(), leaser()
    lease = one.acquire(needs(N0), "test_a")
    busy(two, needs(N0, N1, count=2))
    third = leaser()
    assert third.acquire(needs(N1), "nothing was kept", timeout_s=0).keys == (N1,)
    third.close()
    one.release(lease)
    assert two.acquire(needs(N0, N1, count=2), "both").devices == ((N0, N1),)


def test_devices_can_be_given_back_one_by_one(leaser: Callable[..., MachineLeaser]) -> None:
    one, two = leaser(), leaser()
    lease = one.acquire([*needs(N0, memory_bytes=GIB), *needs(N1), *needs(A0)], "test_a")
    one.release(lease, [N1])
    assert one.held() == {N0: "test_a", A0: "test_a"}
    assert two.acquire(needs(N1), "test_b").keys == (N1,)
    busy(leaser(), needs(N0))
    one.release(lease, [N0, "0000:00:00.0"])
    one.release(lease, [A0])
    assert one.held() == {}
    assert leaser().acquire(needs(N0, A0, count=2), "test_c").keys == (N0, A0)


def test_of_several_devices_the_preferred_free_one_is_taken(leaser: Callable[..., MachineLeaser]) -> None:
    one = leaser()
    assert one.acquire(needs(N0, N1, A0), "test_a", [A0]).keys == (A0,)
    assert leaser().acquire(needs(N0, N1, A0), "test_b", [A0]).keys == (N0,)
    pair = leaser().acquire([*needs(N0, N1), *needs(A0, A1)], "pair", closest_pair=True)
    assert pair.devices == ((N1,), (A1,))


def test_a_process_that_holds_does_not_wait(leaser: Callable[..., MachineLeaser]) -> None:
    one, two = leaser(), leaser()
    one.acquire(needs(N0), "test_a")
    two.acquire(needs(N1), "test_b")
    with pytest.raises(DeviceBusyError):
        one.acquire(needs(N1), "test_a")
    assert one.acquire(needs(A0), "test_a").keys == (A0,)


def test_what_can_never_be_had_is_no_wait(leaser: Callable[..., MachineLeaser]) -> None:
    with pytest.raises(GpuCoexistError, match="more distinct devices than its candidates") as caught:
        leaser().acquire([*needs(N0), *needs(N0)], "test_a")
    assert not isinstance(caught.value, DeviceBusyError)


def test_a_wait_that_is_over_in_time_or_not(leaser: Callable[..., MachineLeaser]) -> None:
    one, two = leaser(), leaser()
    lease = one.acquire(needs(N0), "test_a")
    heard: list[Waiting] = []

    def on_wait(waiting: Waiting) -> None:
        heard.append(waiting)
        one.release(lease)

    assert two.acquire(needs(N0), "test_b", on_wait=on_wait).keys == (N0,)
    assert [(each.owner, each.holders[0].test, each.ahead) for each in heard] == [("test_b", "test_a", 0)]
    with pytest.raises(DeviceBusyError, match=r"is held by test_b .* waited 0 s"):
        leaser().acquire(needs(N0), "test_c", timeout_s=0.05)


def test_who_is_interrupted_leaves_nothing(leaser: Callable[..., MachineLeaser], folder: Path) -> None:
    one = leaser()
    lease = one.acquire(needs(N0), "test_a")
    before = len(os.listdir("/proc/self/fd"))
    two = leaser()

    def interrupt(_waiting: Waiting) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        two.acquire(needs(N0), "test_b", on_wait=interrupt)
    assert [each.waits for each in records(str(folder))] == [(), ()]
    two.close()
    assert len(os.listdir("/proc/self/fd")) == before
    one.release(lease)
    assert leaser().acquire(needs(N0), "nobody is before it", timeout_s=0).keys == (N0,)


def test_nothing_is_left_open_or_on_the_disk(leaser: Callable[..., MachineLeaser], folder: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    one = leaser()
    for _ in range(20):
        one.release(one.acquire(needs(N0, N1, count=2, memory_bytes=GIB), "test_a"))
    one.acquire(needs(N0), "open")
    one.close()
    assert len(os.listdir("/proc/self/fd")) == before
    assert list(folder.glob("*/*.json")) == []
    assert (folder / "table").read_bytes()[512:].strip(b"\0") == b""


def test_threads_of_one_process_exclude_each_other(box: Machine, leaser: Callable[..., MachineLeaser]) -> None:
    one = leaser()
    holding: list[str] = []
    most: list[int] = []
    refused: list[int] = []

    def work() -> None:
        for _ in range(40):
            try:
                lease = one.acquire(needs(N0, N1), "thread")
            except DeviceBusyError:  # another thread's lease is this process's too: it does not wait
                refused.append(1)
                continue
            holding.append(lease.keys[0])
            most.append(holding.count(lease.keys[0]))
            holding.remove(lease.keys[0])
            one.release(lease)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(most) == {1}
    assert len(most) + len(refused) == 160
    assert one.held() == {}


def mig(number: int, **changes: Any) -> Any:
    return nvidia(
        0,
        id=f"nvidia0m{number}",
        uuid=f"MIG-{number}",
        partition=f"mig{number}.0",
        memory_total_bytes=5 * GIB,
        **changes,
    )


def test_instances_are_devices_of_their_own_and_share_their_cards_fate(leaser: Callable[..., MachineLeaser]) -> None:
    card = machine(nvidia(0), mig(1), mig(2), simulated=True)
    whole, first, second = (gpu.key for gpu in card.gpus)
    one, two, three = leaser(card), leaser(card), leaser(card)
    lease = one.acquire(needs(first), "first")
    other = two.acquire(needs(second, memory_bytes=GIB), "second")
    busy(three, needs(first))
    busy(three, needs(whole))
    busy(three, needs(whole, memory_bytes=1))
    one.release(lease)
    busy(three, needs(whole))
    two.release(other)
    held = three.acquire(needs(whole, memory_bytes=1), "a share of the card")
    busy(one, needs(first))
    three.release(held)
    three.acquire(needs(whole), "whole")
    busy(one, needs(second))


def test_two_instances_of_a_card_in_one_lease(leaser: Callable[..., MachineLeaser]) -> None:
    card = machine(nvidia(0), mig(1), mig(2), simulated=True)
    whole, first, second = (gpu.key for gpu in card.gpus)
    one, two = leaser(card), leaser(card)
    lease = one.acquire(needs(first, second, count=2), "both")
    one.release(lease, [first])
    busy(two, needs(whole))
    one.release(lease, [second])
    assert two.acquire(needs(whole), "whole").keys == (whole,)
    # A card and a part of it are never one request's together.
    with pytest.raises(DeviceBusyError):
        leaser(replace(card, name="alone")).acquire([*needs(whole), *needs(first)], "both", timeout_s=0)


def test_replayed_machines_are_leased_by_name(leaser: Callable[..., MachineLeaser], box: Machine) -> None:
    leaser().acquire(needs(N0), "here")
    assert leaser(replace(box, name="elsewhere")).acquire(needs(N0), "there", timeout_s=0).keys == (N0,)
    busy(leaser(), needs(N0))


def test_order_of_asking_does_not_matter_for_pairs(leaser: Callable[..., MachineLeaser]) -> None:
    """Two threads take the same two devices, named in opposite orders, many times: nobody waits for ever."""
    done: list[int] = []

    def work(one: MachineLeaser, keys: tuple[str, ...]) -> None:
        for _ in range(50):
            lease: Lease = one.acquire([*needs(keys[0]), *needs(keys[1])], "pair")
            one.release(lease)
        done.append(1)

    threads = [threading.Thread(target=work, args=(leaser(), keys)) for keys in ((N0, A0), (A0, N0))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert done == [1, 1]
