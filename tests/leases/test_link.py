"""The link without pytest-xdist: two ends of a channel that carries builtins only, as execnet's does."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Any, cast

import pytest

from pytest_gpucoexist.errors import DeviceBusyError, GpuCoexistError, UserError, error_named
from pytest_gpucoexist.leases.broker import Broker, Lease
from pytest_gpucoexist.model.matching import Group
from pytest_gpucoexist.model.requirement import Requirement
from pytest_gpucoexist.session import link_worker, wire
from pytest_gpucoexist.session.link import ControllerLink, WorkerLink, worker_link
from tests.fixtures.machines import NVIDIA0, NVIDIA1, workstation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pytest_gpucoexist.model.machine import Machine


class End:
    """One end of a channel. Delivery is immediate, in the sender's thread; after `cut` sending fails."""

    def __init__(self) -> None:
        self.other: End = self
        self.waiting: list[Any] = []
        self.callback: Callable[[Any], Any] | None = None
        self.endmarker: object = None
        self.is_cut = False

    def send(self, item: object) -> None:
        if self.is_cut:
            raise OSError("cannot send to <Channel id=3 closed>")
        assert_builtin(item)
        self.other.receive(item)

    def receive(self, item: object) -> None:
        if self.callback is None:
            self.waiting.append(item)
        else:
            self.callback(item)

    def setcallback(self, callback: Callable[[Any], Any], endmarker: object = None) -> None:
        self.callback, self.endmarker = callback, endmarker
        while self.waiting:
            callback(self.waiting.pop(0))

    def cut(self) -> None:
        for end in (self, self.other):
            end.is_cut = True
            if end.callback is not None:
                end.callback(end.endmarker)


def assert_builtin(item: object) -> None:
    assert type(item) in {int, str, bool, type(None), list, tuple, dict, float}, type(item)
    for part in item.items() if isinstance(item, dict) else item if isinstance(item, (list, tuple)) else ():
        assert_builtin(part)


class Gateway:
    def __init__(self, name: str) -> None:
        self.id = name
        self.end = End()

    def newchannel(self) -> End:
        return self.end


class Node:
    def __init__(self, name: str) -> None:
        self.gateway = Gateway(name)
        self.workerinput: dict[str, Any] = {"workerid": name}


class Controller:
    """A controller with its workers; discoveries are counted."""

    def __init__(self) -> None:
        self.machine = workstation()
        self.asked: list[tuple[str, ...]] = []
        self.broker = Broker(lambda: self.machine)
        self.link = ControllerLink(self.discover, self.broker)
        self.nodes: dict[str, Node] = {}

    def discover(self, ask: Sequence[str], needed: Sequence[str] | None = None) -> Machine:
        self.asked.append(tuple(ask))
        return self.machine

    def worker(self, name: str) -> WorkerLink:
        node = self.nodes[name] = Node(name)
        self.link.pytest_configure_node(node)
        far = End()
        far.other, node.gateway.end.other = node.gateway.end, far
        node.workerinput["gpucoexist"]["channel"] = far
        config = cast("pytest.Config", type("Config", (), {"workerinput": node.workerinput}))
        made = worker_link(config)
        assert made is not None
        return made

    def cut(self, name: str) -> None:
        self.nodes[name].gateway.end.cut()


@pytest.fixture
def controller() -> Iterator[Controller]:
    made = Controller()
    yield made
    made.link.pytest_unconfigure()
    assert made.link._thread is None or not made.link._thread.is_alive()


def group(*candidates: str, count: int = 1) -> Group:
    return Group(requirement=Requirement(count=count, features=("ecc",)), candidates=candidates)


def test_nothing_starts_before_somebody_asks(controller: Controller) -> None:
    controller.worker("gw0")
    controller.cut("gw0")
    controller.link.pytest_testnodedown(controller.nodes["gw0"], None)
    assert controller.asked == []
    assert controller.link._thread is None


def test_every_worker_gets_the_same_machine(controller: Controller) -> None:
    one, two = controller.worker("gw0"), controller.worker("gw1")
    assert one.machine() == two.machine() == controller.machine
    assert one.machine(["nvidia", "amd"]) == controller.machine
    assert one.machine(["amd"]) == controller.machine
    assert controller.asked == [(), (), ("amd", "nvidia")], "what a worker knows it does not ask again"


def test_leases_exclude_each_other(controller: Controller) -> None:
    one, two = controller.worker("gw0"), controller.worker("gw1")
    first = one.acquire([group(NVIDIA0, NVIDIA1)], "test", preferred=[NVIDIA1])
    assert first.devices == ((NVIDIA1,),)
    assert first.owner == "test"
    second = two.acquire([group(NVIDIA0, NVIDIA1)], "test")
    assert second.keys == (NVIDIA0,)
    arrived: queue.SimpleQueue[Lease] = queue.SimpleQueue()
    thread = threading.Thread(target=lambda: arrived.put(one.acquire([group(NVIDIA0)], "next")))
    one.release(first)
    thread.start()
    two.release(second)
    assert arrived.get(timeout=30).keys == (NVIDIA0,)
    thread.join()


def test_closest_pair_and_preference_cross_over(controller: Controller) -> None:
    worker = controller.worker("gw0")
    lease = worker.acquire([group(NVIDIA0, NVIDIA1), group(NVIDIA0, NVIDIA1)], "test", closest_pair=True)
    assert set(lease.keys) == {NVIDIA0, NVIDIA1}


@pytest.mark.parametrize("how", ["channel", "node"])
def test_lost_worker_frees_its_devices(controller: Controller, how: str) -> None:
    one, two = controller.worker("gw0"), controller.worker("gw1")
    one.acquire([group(NVIDIA0)], "dies here")
    if how == "channel":
        controller.cut("gw0")
    else:
        controller.link.pytest_testnodedown(controller.nodes["gw0"], "Not properly terminated")
    assert two.acquire([group(NVIDIA0)], "next", timeout_s=30).keys == (NVIDIA0,)
    one.release(Lease(owner="dies here", devices=(), number=1))


def test_errors_keep_their_kind(controller: Controller) -> None:
    worker = controller.worker("gw0")
    with pytest.raises(GpuCoexistError, match="asks for more distinct devices"):
        worker.acquire([group(NVIDIA0), group(NVIDIA0)], "test")
    lease = worker.acquire([group(NVIDIA0)], "test")
    other = controller.worker("gw1")
    other.acquire([group(NVIDIA1)], "other")
    with pytest.raises(DeviceBusyError, match="does not wait for more"):
        other.acquire([group(NVIDIA0)], "other")
    worker.release(lease)


def test_failure_in_the_controller_reaches_the_worker(controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(ask: Sequence[str], needed: Sequence[str] | None) -> Machine:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(controller.link, "_machine", broken)
    with pytest.raises(GpuCoexistError, match="the controller failed: ZeroDivisionError: a bug"):
        controller.worker("gw0").machine()


def test_worker_on_another_host_is_refused(controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = controller.worker("gw0")
    monkeypatch.setattr(link_worker, "place", lambda: ["elsewhere", "5b0f6a4e"])
    with pytest.raises(UserError, match=r"this xdist worker runs on elsewhere .boot id 5b0f6a4e., the controller on"):
        worker.machine()


def test_simulated_machine_is_the_same_everywhere(controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    controller.machine = workstation(simulated=True)
    monkeypatch.setattr(link_worker, "place", lambda: ["elsewhere", None])
    assert controller.worker("gw0").machine().simulated


def test_place_is_this_boot_of_this_host() -> None:
    name, boot_id = wire.place()
    assert name
    assert boot_id is None or len(boot_id) == 36


def test_place_without_a_boot_id(monkeypatch: pytest.MonkeyPatch) -> None:
    import pytest_gpucoexist.host as hosts

    real = hosts.local_host()

    class Elsewhere:
        name = real.name

        def read_text(self, path: str) -> str:
            raise FileNotFoundError(2, "No such file or directory", path)

    monkeypatch.setattr(hosts, "local_host", Elsewhere)
    assert wire.place() == [real.name, None]


def test_nothing_hangs_when_the_controller_is_gone(controller: Controller) -> None:
    worker = controller.worker("gw0")
    controller.worker("gw1").acquire([group(NVIDIA0)], "one")
    failed: queue.SimpleQueue[BaseException] = queue.SimpleQueue()

    def wait() -> None:
        try:
            worker.acquire([group(NVIDIA0)], "two")
        except GpuCoexistError as error:
            failed.put(error)

    thread = threading.Thread(target=wait)
    thread.start()
    while len(worker._pending) == 0:
        thread.join(0.001)
    controller.cut("gw0")
    assert "the pytest controller is gone" in str(failed.get(timeout=30))
    thread.join()
    with pytest.raises(GpuCoexistError, match="the pytest controller is gone"):
        worker.machine()


def test_grant_after_a_timeout_is_given_back(controller: Controller) -> None:
    one, two = controller.worker("gw0"), controller.worker("gw1")
    lease = one.acquire([group(NVIDIA0)], "one")
    with pytest.raises(DeviceBusyError, match="no device became free"):
        two.acquire([group(NVIDIA0)], "two", timeout_s=0)
    one.release(lease)
    assert one.acquire([group(NVIDIA0)], "three", timeout_s=30).keys == (NVIDIA0,)


def test_forked_child_is_told_so(controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = controller.worker("gw0")
    monkeypatch.setattr(worker, "_pid", 1)
    with pytest.raises(GpuCoexistError, match="a forked child cannot speak to the pytest controller"):
        worker.acquire([group(NVIDIA0)], "child")


def test_no_link_without_a_controller_of_ours() -> None:
    assert worker_link(cast("pytest.Config", object())) is None
    plain = type("Config", (), {"workerinput": {"workerid": "gw0"}})
    assert worker_link(cast("pytest.Config", plain)) is None


def test_controller_that_ended_before_the_first_question(controller: Controller) -> None:
    worker = controller.worker("gw0")
    channel = worker._channel
    assert isinstance(channel, End)
    listen = channel.setcallback

    def closed(callback: Callable[[Any], Any], endmarker: object = None) -> None:
        listen(callback, endmarker)
        callback(endmarker)  # as execnet does for a channel that the other side has closed

    channel.setcallback = closed  # type: ignore[method-assign]
    channel.other = End()  # a pipe takes what nobody reads
    for _ in range(2):
        with pytest.raises(GpuCoexistError, match="the pytest controller is gone"):
            worker.machine()


def test_grant_in_the_moment_of_the_time_out_is_given_back(controller: Controller) -> None:
    worker = controller.worker("gw0")
    answers: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
    lease = worker.acquire([group(NVIDIA0)], "test")
    answers.put(("ok", [lease.number, [[NVIDIA0]]]))
    worker._give_back(answers)
    worker.machine()  # answered in order: the release has been heard
    assert controller.broker.held() == {}


def test_unknown_error_of_a_controller_is_still_ours() -> None:
    assert error_named("DeviceBusyError") is DeviceBusyError
    assert error_named("SystemExit") is error_named("annotations") is GpuCoexistError
