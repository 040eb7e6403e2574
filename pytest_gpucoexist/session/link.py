"""The way from an xdist worker to the controller: the machine, and who holds which device.

The controller puts an execnet channel into each worker's input. A worker asks over it when its first GPU test needs
something; until then nothing is sent, discovered or started. Answers are made by one thread of the controller, so
that execnet's receiver threads never do work. Only builtin types cross (execnet refuses everything else).

    worker → controller   (number, verb, arguments)      number 0: nothing is to be answered
    controller → worker   (number, "ok", value) | (number, error name, message) | (0, verb, value)

Other parts of a session add verbs of their own with `on`, on either side.
"""

from __future__ import annotations

import json
import os
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucoexist.session.wire import KEY, Leaser, lease_of, place, send

if TYPE_CHECKING:
    from pytest_gpucoexist.leases.broker import Broker, Lease
    from pytest_gpucoexist.model.machine import Machine
    from pytest_gpucoexist.model.matching import Group
    from pytest_gpucoexist.session.wire import Channel

__all__ = ["END", "ControllerLink", "Leaser", "WorkerLink", "worker_link"]

END = "end"
"""The verb under which each side hears that the other one is gone."""

Handler = Callable[[str, Any], Any]

_END: Any = object()


class ControllerLink:
    """Serves the workers of this session. Registered as a plugin in a controller of pytest-xdist."""

    def __init__(
        self,
        machine: Callable[[Sequence[str], Sequence[str] | None], Machine],
        broker: Broker,
        said: Callable[[], Mapping[str, Any]] = dict,
        take_out: Callable[[Mapping[str, str]], None] = lambda _lost: None,
    ) -> None:
        """`machine(ask, needed)` discovers and judges, once each; `broker` holds the leases.

        `said()` is what else workers must know of the judgement, as builtins.
        """
        self._machine = machine
        self._said = said
        self._take_out = take_out
        self._broker = broker
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._handlers: dict[str, Handler] = {}
        self._channels: dict[str, Channel] = {}

    def on(self, verb: str, handler: Handler) -> None:
        """Have `handler(worker, arguments)` called, in the serving thread, for what workers send under a verb.

        What it returns is the answer, of builtin types, where the worker waits for one. A worker that ended or died
        is told under the verb `END`, with None.
        """
        self._handlers[verb] = handler

    def push(self, worker: str, verb: str, value: object) -> None:
        """Send a worker what it did not ask for. Safe from any thread; nothing happens when the worker is gone."""
        channel = self._channels.get(worker)
        if channel is not None:
            send(channel, (0, verb, value))

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Give a worker, or the replacement of one, its channel."""
        channel: Channel = node.gateway.newchannel()
        node.workerinput.setdefault(KEY, {})["channel"] = channel
        worker = str(node.gateway.id)
        self._channels[worker] = channel
        channel.setcallback(lambda item: self._put(worker, channel, item), endmarker=_END)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:  # noqa: ARG002
        """Take back what a worker held that ended or died."""
        if self._thread is not None:
            self._inbox.put((str(node.gateway.id), None, _END))

    def pytest_unconfigure(self) -> None:
        """End the serving thread."""
        if self._thread is not None:
            self._inbox.put(None)
            # It may be inside a discovery; it is a daemon and ends with the process at the latest.
            self._thread.join(timeout=1)

    def _put(self, worker: str, channel: Channel, item: Any) -> None:
        if item is _END and self._thread is None:
            return
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="gpucoexist-link", daemon=True)
                self._thread.start()
        self._inbox.put((worker, channel, item))

    def _serve(self) -> None:
        while (entry := self._inbox.get()) is not None:
            worker, channel, item = entry
            if item is _END:
                self._broker.abandon(worker)
                if END in self._handlers:
                    self._handlers[END](worker, None)
            else:
                self._answer(worker, channel, item)

    def _answer(self, worker: str, channel: Channel, item: tuple[int, str, Any]) -> None:
        from pytest_gpucoexist.errors import GpuCoexistError

        number, verb, arguments = item
        try:
            if verb == "machine":
                send(channel, (number, "ok", self._machine_for(**arguments)))
            elif verb == "take_out":
                self._take_out(arguments)
            elif verb == "acquire":
                self._acquire(worker, channel, number, **arguments)
            elif verb == "release":
                self._broker.release(lease_of("", arguments))
            else:
                answer = self._handlers[verb](worker, arguments)
                if number:
                    send(channel, (number, "ok", answer))
        except GpuCoexistError as error:
            if number:
                send(channel, (number, type(error).__name__, str(error)))
        except Exception as error:  # noqa: BLE001  a worker that waits must hear of whatever went wrong here
            if not number:
                return
            send(channel, (number, "GpuCoexistError", f"the controller failed: {type(error).__name__}: {error}"))

    def _machine_for(self, ask: list[str], where: list[str | None], needed: list[str] | None) -> str:
        from pytest_gpucoexist.errors import UserError

        machine = self._machine(tuple(ask), needed)
        here = place()
        if not machine.simulated and where != here:
            raise UserError(
                f"this xdist worker runs on {where[0]} (boot id {where[1]}), the controller on {here[0]} (boot id "
                f"{here[1]}): devices of one machine cannot be given to tests on another. Run GPU tests with local "
                "workers (-n), or start one pytest per machine and merge the reports with `gpucoexist merge`"
            )
        return json.dumps({"machine": machine.to_json(), "said": self._said()})

    def _acquire(
        self,
        worker: str,
        channel: Channel,
        number: int,
        groups: str,
        owner: str,
        preferred: list[str],
        closest_pair: bool,
    ) -> None:
        from pytest_gpucoexist.leases.broker import Request
        from pytest_gpucoexist.model.codec import decode
        from pytest_gpucoexist.model.matching import Group

        request = Request(
            groups=decode(tuple[Group, ...], json.loads(groups)),
            owner=owner,
            holder=worker,
            preferred=tuple(preferred),
            closest_pair=closest_pair,
        )
        self._broker.submit(
            request,
            lambda lease: send(channel, (number, "ok", [lease.number, [list(group) for group in lease.devices]])),
        )


class WorkerLink:
    """A worker's side: asks the controller and waits for the answer.

    When the controller is gone, every wait ends with a GpuCoexistError.
    """

    def __init__(self, channel: Channel, worker: str) -> None:
        """`channel` is the one that the controller sent in `workerinput`."""
        self._channel = channel
        self._gone = False
        self._worker = worker
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._last = 0
        self._pending: dict[int, queue.SimpleQueue[tuple[str, Any]]] = {}
        self._machines: dict[tuple[str, ...], Machine] = {}
        self._pushed: dict[str, Callable[[Any], None]] = {}
        self.said: Mapping[str, Any] = {}
        self._listening = False

    def machine(self, ask: Sequence[str] = ()) -> Machine:
        """Return the controller's machine, with the facts of the vendor libraries in `ask`."""
        wanted = tuple(sorted(set(ask)))
        known = [self._machines[each] for each in self._machines if set(each) >= set(wanted)]
        if known:
            return known[0]
        return self._ask_for(wanted, None)

    def judged(self, needed: Sequence[str]) -> Machine:
        """Return the machine after the controller has judged it, once, for tests that name the vendors `needed`."""
        known = max(self._machines, key=len, default=())
        self._machines.clear()
        return self._ask_for(known, list(needed))

    def _ask_for(self, ask: tuple[str, ...], needed: list[str] | None) -> Machine:
        from pytest_gpucoexist.model.machine import Machine

        answer = json.loads(self._call("machine", {"ask": list(ask), "where": place(), "needed": needed}))
        self.said = answer["said"]
        machine = Machine.from_json(answer["machine"])
        self._machines[ask] = machine
        return machine

    def acquire(
        self,
        groups: Sequence[Group],
        owner: str,
        preferred: Sequence[str] = (),
        *,
        closest_pair: bool = False,
        timeout_s: float | None = None,
    ) -> Lease:
        """Like `Broker.acquire`, in the controller."""
        from pytest_gpucoexist.model.codec import encode

        arguments = {
            "groups": json.dumps(encode(tuple(groups))),
            "owner": owner,
            "preferred": list(preferred),
            "closest_pair": closest_pair,
        }
        return lease_of(owner, self._call("acquire", arguments, timeout_s))

    def ask(self, verb: str, arguments: object = None, timeout_s: float | None = None) -> Any:
        """Ask the controller under a verb that it knows by `ControllerLink.on`. Raises what its handler raised."""
        return self._call(verb, arguments, timeout_s)

    def tell(self, verb: str, arguments: object = None) -> None:
        """Tell the controller; there is nothing to wait for, and nothing happens when it is gone."""
        send(self._channel, (0, verb, arguments))

    def on(self, verb: str, handler: Callable[[Any], None]) -> None:
        """Have `handler(value)` called for what the controller pushes, in execnet's receiver thread: be quick.

        Also under `END` with None, when the controller is gone.
        """
        self._pushed[verb] = handler
        self._listen()

    def take_out(self, lost: Mapping[str, str]) -> None:
        """Tell the controller of devices that are gone, with words by key; there is nothing to wait for."""
        self._machines.clear()
        send(self._channel, (0, "take_out", dict(lost)))

    def release(self, lease: Lease) -> None:
        """Give devices back; there is nothing to wait for. A controller that is gone has freed them already."""
        if os.getpid() != self._pid:
            return  # a forked child has a copy of the lease; its parent still holds it
        send(self._channel, (0, "release", [lease.number, [list(group) for group in lease.devices]]))

    def _listen(self) -> None:
        with self._lock:
            begins, self._listening = not self._listening, True
        if begins:
            # Not under the lock: what has arrived by now, if only the end, is delivered at once in this thread.
            self._channel.setcallback(self._receive, endmarker=_END)

    def _call(self, verb: str, arguments: object, timeout_s: float | None = None) -> Any:
        from pytest_gpucoexist.errors import GpuCoexistError, error_named

        if os.getpid() != self._pid:
            raise GpuCoexistError(
                "a forked child cannot speak to the pytest controller: acquire the device before the fork"
            )
        answers: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        with self._lock:
            self._last += 1
            number = self._last
            self._pending[number] = answers
        answer = None
        try:
            self._listen()
            if not self._gone:  # a channel whose other side is gone may still take what is sent
                self._channel.send((number, verb, arguments))
                answer = answers.get(timeout=timeout_s)
        except OSError:
            self._gone = True
        except queue.Empty:
            answer = "DeviceBusyError", f"no device became free within {timeout_s} s"
        finally:
            with self._lock:
                self._pending.pop(number, None)
            if answer is None or answer[0] != "ok":
                self._give_back(answers)
        if answer is None:
            answer = "GpuCoexistError", "the pytest controller is gone"
        status, value = answer
        if status == "ok":
            return value
        raise error_named(status)(value)

    def _give_back(self, answers: queue.SimpleQueue[tuple[str, Any]]) -> None:
        """Release what was granted in the moment between a time-out or an interrupt and its consequences."""
        while not answers.empty():
            self._unwanted(*answers.get())

    def _unwanted(self, status: str, value: Any) -> None:
        if status == "ok" and isinstance(value, list):
            self.release(lease_of("", value))

    def _receive(self, item: Any) -> None:
        with self._lock:
            if item is _END:
                self._gone = True
                for answers in self._pending.values():
                    answers.put(("GpuCoexistError", "the pytest controller is gone"))
                pushed, value = self._pushed.get(END), None
            else:
                number, status, value = item
                pushed = None if number else self._pushed.get(status)
        if item is _END or not number:
            if pushed is not None:
                pushed(value)
            return
        with self._lock:
            answers_to = self._pending.get(number)
        if answers_to is not None:
            answers_to.put((status, value))
        else:
            self._unwanted(status, value)  # granted after the caller had given up


def worker_link(config: pytest.Config) -> WorkerLink | None:
    """Return the link of an xdist worker, or None in a controller, a serial run or without our plugin there."""
    given = getattr(config, "workerinput", {})
    channel = given.get(KEY, {}).get("channel")
    return None if channel is None else WorkerLink(channel, given["workerid"])
