"""Grants: all or nothing, in order of arrival, nobody starves, nobody deadlocks."""

from __future__ import annotations

import pickle
import queue
import random
import threading
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings, strategies as st

from pytest_gpucoexist.errors import DeviceBusyError, GpuCoexistError
from pytest_gpucoexist.leases.broker import Broker, Lease, Request
from pytest_gpucoexist.model.machine import Gpu, Machine
from pytest_gpucoexist.model.matching import Group
from pytest_gpucoexist.model.requirement import Requirement

if TYPE_CHECKING:
    from collections.abc import Sequence

MACHINE = Machine(name="four", gpus=tuple(Gpu(id=f"nvidia{n}", pci_address=f"0000:0{n}:00.0") for n in range(4)))
A, B, C, D = (gpu.key for gpu in MACHINE.gpus)


def group(*candidates: str, count: int = 1) -> Group:
    return Group(requirement=Requirement(count=count), candidates=candidates)


@pytest.fixture
def broker() -> Broker:
    return Broker(lambda: MACHINE)


class Clients:
    """Requests without threads: who was granted what, in order."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.granted: dict[str, Lease] = {}
        self.in_use: set[str] = set()

    def ask(self, owner: str, *groups: Group, holder: str = "", preferred: Sequence[str] = ()) -> int:
        request = Request(groups=groups, owner=owner, holder=holder, preferred=tuple(preferred))
        return self.broker.submit(request, self.receive)

    def receive(self, lease: Lease) -> None:
        assert self.in_use.isdisjoint(lease.keys), "held by two"
        self.in_use.update(lease.keys)
        self.granted[lease.owner] = lease

    def release(self, owner: str) -> None:
        if self.broker.held().get(self.granted[owner].keys[0]) == owner:
            self.in_use.difference_update(self.granted[owner].keys)
        self.broker.release(self.granted[owner])

    def lose(self, holder: str) -> tuple[str, ...]:
        self.in_use.clear()  # what the others hold stays held, which the grants below show
        return tuple(lease.owner for lease in self.broker.abandon(holder))

    def of(self, owner: str) -> tuple[str, ...] | None:
        return self.granted[owner].keys if owner in self.granted else None


@pytest.fixture
def clients(broker: Broker) -> Clients:
    return Clients(broker)


def test_devices_are_distinct_and_in_the_order_of_the_groups(broker: Broker) -> None:
    lease = broker.acquire([group(A, B), group(A)], "test")
    assert lease.devices == ((B,), (A,))
    assert lease.keys == (B, A)
    assert broker.held() == {A: "test", B: "test"}
    broker.release(lease)
    assert broker.held() == {}


def test_preferred_device_is_taken_when_it_is_free(broker: Broker) -> None:
    first = broker.acquire([group(A, B)], "one", preferred=[B])
    assert first.keys == (B,)
    assert broker.acquire([group(A, B)], "two", preferred=[B]).keys == (A,)


def test_second_waits_until_the_first_releases(clients: Clients) -> None:
    clients.ask("one", group(A))
    clients.ask("two", group(A))
    assert clients.of("two") is None
    clients.release("one")
    assert clients.of("two") == (A,)


def test_first_come_first_served(clients: Clients) -> None:
    clients.ask("holder", group(A))
    for owner in ("second", "third"):
        clients.ask(owner, group(A))
    clients.release("holder")
    assert (clients.of("second"), clients.of("third")) == ((A,), None)
    clients.release("second")
    assert clients.of("third") == (A,)


def test_nothing_is_held_while_waiting_for_the_rest(clients: Clients, broker: Broker) -> None:
    clients.ask("holder", group(A))
    clients.ask("both", group(A, B, count=2))
    assert broker.held() == {A: "holder"}


def test_large_request_is_not_starved_by_small_ones(clients: Clients) -> None:
    clients.ask("holder", group(A))
    clients.ask("both", group(A, B, count=2))
    clients.ask("small", group(A, B))
    assert clients.of("small") is None, "B is free, but the earlier request needs it"
    clients.release("holder")
    assert clients.of("both") == (A, B)


def test_overtaking_where_it_delays_nobody(clients: Clients) -> None:
    clients.ask("holder", group(A))
    clients.ask("waits", group(A, B, count=2))
    clients.ask("elsewhere", group(B, C))
    assert clients.of("elsewhere") == (C,)


def test_impossible_request_is_refused_at_once(broker: Broker) -> None:
    with pytest.raises(GpuCoexistError, match="asks for more distinct devices"):
        broker.acquire([group(A), group(A)], "test")


def test_holder_of_devices_does_not_wait_for_more(broker: Broker) -> None:
    broker.acquire([group(A)], "one")
    broker.acquire([group(B)], "two")
    with pytest.raises(DeviceBusyError, match=f"two: no free device among {A} \\({A} is held by one\\); a test that"):
        broker.acquire([group(A)], "two")
    assert broker.acquire([group(A, C)], "two").keys == (C,)
    assert broker.held() == {A: "one", B: "two", C: "two"}


def test_process_that_holds_does_not_wait_for_its_next_test(clients: Clients) -> None:
    clients.ask("first", group(A), holder="gw0")
    clients.ask("other", group(B), holder="gw1")
    with pytest.raises(DeviceBusyError, match=f"next: no free device among {B}.* still holds {A} from an earlier test"):
        clients.ask("next", group(B), holder="gw0")
    clients.ask("next", group(B, C), holder="gw0")
    assert clients.of("next") == (C,)


def test_same_test_on_two_workers_is_two_owners(clients: Clients) -> None:
    clients.ask("test", group(A), holder="gw0")
    second = Request(groups=(group(A),), owner="test", holder="gw1")
    granted: list[Lease] = []
    clients.broker.submit(second, granted.append)
    clients.release("test")
    assert [lease.keys for lease in granted] == [(A,)]


def test_time_out_says_who_holds_and_leaves_no_request(broker: Broker) -> None:
    lease = broker.acquire([group(A)], "one")
    with pytest.raises(DeviceBusyError, match=f"{A} is held by one"):
        broker.acquire([group(A)], "two", timeout_s=0)
    broker.release(lease)
    assert broker.held() == {}


def test_time_out_behind_a_reservation(clients: Clients) -> None:
    clients.ask("holder", group(A))
    clients.ask("both", group(A, B, count=2))
    with pytest.raises(DeviceBusyError, match="reserved"):
        clients.broker.acquire([group(B)], "late", timeout_s=0)


def test_lost_process_frees_its_devices_and_its_place(clients: Clients) -> None:
    clients.ask("one", group(A), holder="gw0")
    clients.ask("two", group(B), holder="gw1")
    clients.ask("waiting", group(B), holder="gw3")
    clients.ask("next", group(A), holder="gw2")
    assert clients.lose("gw0") == ("one",)
    assert clients.of("next") == (A,)
    assert clients.lose("gw3") == ()
    clients.release("two")
    assert clients.of("waiting") is None


def test_release_twice_and_cancel(clients: Clients) -> None:
    clients.ask("one", group(A))
    clients.release("one")
    clients.ask("two", group(A))
    clients.release("one")
    assert clients.broker.held() == {A: "two"}
    number = clients.ask("three", group(A))
    clients.broker.cancel(number)
    clients.release("two")
    assert clients.of("three") is None
    assert clients.broker.held() == {}


def test_interrupted_wait_leaves_no_request(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = broker.acquire([group(A)], "one")

    class Interrupted(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(threading, "Event", Interrupted)
        with pytest.raises(KeyboardInterrupt):
            broker.acquire([group(A)], "two")
    broker.release(lease)
    assert broker.acquire([group(A)], "three", timeout_s=0).keys == (A,)


def test_threads_wait_for_each_other(broker: Broker) -> None:
    first = broker.acquire([group(A)], "main")
    arrived: queue.SimpleQueue[Lease] = queue.SimpleQueue()
    thread = threading.Thread(target=lambda: arrived.put(broker.acquire([group(A)], "thread")))
    thread.start()
    assert arrived.empty()
    broker.release(first)
    assert arrived.get(timeout=30).owner == "thread"
    thread.join()


def test_many_threads_never_share_a_device(broker: Broker) -> None:
    in_use: set[str] = set()
    guard = threading.Lock()
    clashes: list[str] = []

    def work(seed: int) -> None:
        chance = random.Random(seed)
        for turn in range(40):
            wanted = chance.sample([A, B, C, D], 3)
            lease = broker.acquire([group(*wanted, count=chance.choice([1, 1, 2]))], f"{seed}.{turn}")
            with guard:
                clashes.extend(in_use.intersection(lease.keys))
                in_use.update(lease.keys)
            with guard:
                in_use.difference_update(lease.keys)
            broker.release(lease)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in threads)
    assert clashes == []
    assert broker.held() == {}


@settings(deadline=None, max_examples=150)
@given(
    st.lists(
        st.tuples(st.sets(st.sampled_from([A, B, C, D]), min_size=1), st.integers(1, 3), st.booleans()),
        min_size=1,
        max_size=12,
    )
)
def test_every_request_is_served_in_the_end(wishes: list[tuple[set[str], int, bool]]) -> None:
    clients = Clients(Broker(lambda: MACHINE))
    owners = []
    for number, (candidates, count, release_one) in enumerate(wishes):
        owner = f"test{number}"
        owners.append(owner)
        clients.ask(owner, group(*sorted(candidates), count=min(count, len(candidates))))
        if release_one and clients.granted:
            clients.release(next(iter(clients.granted)))
    for owner in owners:  # the order of arrival: the first that waits is always the next to be served
        assert clients.of(owner) is not None
        clients.release(owner)
    assert clients.broker.held() == {}


def test_lease_and_errors_can_be_pickled(broker: Broker) -> None:
    lease = broker.acquire([group(A)], "one")
    assert pickle.loads(pickle.dumps(lease)) == lease
    assert str(pickle.loads(pickle.dumps(DeviceBusyError("busy")))) == "busy"
