"""The link without pytest-xdist: two ends of a channel that carries builtins only, as execnet's does."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Any, cast

import pytest

from pytest_gpucoexist.errors import DeviceBusyError, GpuCoexistError, UserError, error_named
from pytest_gpucoexist.session import link_worker, wire
from pytest_gpucoexist.session.link import END, ControllerLink, WorkerLink, worker_link
from tests.fixtures.machines import workstation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

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
        self.link = ControllerLink(self.discover)
        self.nodes: dict[str, Node] = {}

    def discover(self, ask: Sequence[str], needed: Sequence[str] | None = None) -> Machine:
        self.asked.append(tuple(ask))
        return self.machine

    def worker(self, name: str, option: str | None = None) -> WorkerLink:
        node = self.nodes[name] = Node(name)
        self.link.pytest_configure_node(node)
        far = End()
        far.other, node.gateway.end.other = node.gateway.end, far
        node.workerinput["gpucoexist"]["channel"] = far
        config = cast("pytest.Config", type("Config", (), {"workerinput": node.workerinput}))
        made = worker_link(config, option)
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


def test_verbs_of_ones_own(controller: Controller) -> None:
    worker = controller.worker("gw0")
    heard: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
    controller.link.on("told", lambda who, value: heard.put((who, value)))
    controller.link.on("asked", lambda who, value: [who, value])
    worker.tell("told", {"a": 1})
    assert heard.get(timeout=30) == ("gw0", {"a": 1})
    assert worker.ask("asked", 2) == ["gw0", 2]
    pushed: queue.SimpleQueue[Any] = queue.SimpleQueue()
    worker.on("news", pushed.put)
    controller.link.push("gw0", "news", [3])
    assert pushed.get(timeout=30) == [3]
    controller.link.push("gw7", "news", [3])  # nobody of that name: nothing happens


@pytest.mark.parametrize("how", ["channel", "node"])
def test_the_end_of_a_worker_is_told(controller: Controller, how: str) -> None:
    worker = controller.worker("gw0")
    ends: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
    controller.link.on(END, lambda who, value: ends.put((who, value)))
    worker.machine()
    if how == "channel":
        controller.cut("gw0")
    else:
        controller.link.pytest_testnodedown(controller.nodes["gw0"], "Not properly terminated")
    assert ends.get(timeout=30) == ("gw0", None)


def test_errors_keep_their_kind(controller: Controller) -> None:
    def refuse(_who: str, value: Any) -> None:
        raise UserError(f"no {value}")

    controller.link.on("asked", refuse)
    with pytest.raises(UserError, match="no thing"):
        controller.worker("gw0").ask("asked", "thing")


def test_failure_in_the_controller_reaches_the_worker(controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(ask: Sequence[str], needed: Sequence[str] | None) -> Machine:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(controller.link, "_machine", broken)
    with pytest.raises(GpuCoexistError, match="the controller failed: ZeroDivisionError: a bug"):
        controller.worker("gw0").machine()


def test_a_worker_on_another_machine_is_on_its_own(controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = controller.worker("gw0")
    monkeypatch.setattr(link_worker, "place", lambda: ["elsewhere", "5b0f6a4e", None])
    assert worker.machine() is None
    assert worker.apart is True
    assert worker.machine(collecting=True) == controller.machine, "all collect the same tests"


def test_a_replayed_machine_is_the_same_everywhere(controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    controller.machine = workstation(simulated=True)
    controller.link._option = "demo"
    monkeypatch.setattr(link_worker, "place", lambda: ["elsewhere", None, None])
    assert controller.worker("gw0", "demo").machine() == controller.machine


def test_a_worker_in_an_allocation_of_its_own_is_on_its_own(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm gives it devices that the controller's masks say nothing of, and takes others away."""
    controller.machine = workstation(simulated=True)
    controller.link._option = "demo"
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    place = wire.place()
    assert place[2] == "12.0"
    monkeypatch.setattr(link_worker, "place", lambda: [*place[:2], "12.1"])
    worker = controller.worker("gw0", "demo")
    assert worker.machine() is None
    assert worker.apart is True


def test_place_is_this_boot_of_this_host() -> None:
    name, boot_id, _step = wire.place()
    assert name
    assert boot_id is None or len(boot_id) == 36


def test_place_without_a_boot_id(monkeypatch: pytest.MonkeyPatch) -> None:
    import pytest_gpucoexist.host as hosts

    real = hosts.local_host()

    class Elsewhere:
        name = real.name
        environ: Mapping[str, str] = {}

        def read_text(self, path: str) -> str:
            raise FileNotFoundError(2, "No such file or directory", path)

    monkeypatch.setattr(hosts, "local_host", Elsewhere)
    assert wire.place()[:2] == [real.name, None]


def test_nothing_hangs_when_the_controller_is_gone(controller: Controller) -> None:
    worker = controller.worker("gw0")
    begun, go_on = threading.Event(), threading.Event()

    def slow(_who: str, _value: Any) -> None:
        begun.set()
        go_on.wait(30)

    controller.link.on("asked", slow)
    failed: queue.SimpleQueue[BaseException] = queue.SimpleQueue()
    gone: queue.SimpleQueue[Any] = queue.SimpleQueue()
    worker.on(END, gone.put)

    def wait() -> None:
        try:
            worker.ask("asked")
        except GpuCoexistError as error:
            failed.put(error)

    thread = threading.Thread(target=wait)
    thread.start()
    assert begun.wait(30)
    controller.cut("gw0")
    assert "the pytest controller is gone" in str(failed.get(timeout=30))
    assert gone.get(timeout=30) is None
    thread.join()
    go_on.set()
    with pytest.raises(GpuCoexistError, match="the pytest controller is gone"):
        worker.machine()


def test_an_answer_that_nobody_waits_for_any_more(controller: Controller) -> None:
    worker = controller.worker("gw0")
    go_on = threading.Event()
    controller.link.on("asked", lambda _who, _value: go_on.wait(30))
    with pytest.raises(GpuCoexistError, match="gave no answer to 'asked' within 0 s"):
        worker.ask("asked", timeout_s=0)
    go_on.set()
    assert worker.machine() == controller.machine, "the late answer is nobody's"


def test_forked_child_is_told_so(controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = controller.worker("gw0")
    monkeypatch.setattr(worker, "_pid", 1)
    with pytest.raises(GpuCoexistError, match="a forked child cannot speak to the pytest controller"):
        worker.ask("anything")


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


def test_unknown_error_of_a_controller_is_still_ours() -> None:
    assert error_named("DeviceBusyError") is DeviceBusyError
    assert error_named("SystemExit") is error_named("annotations") is GpuCoexistError
