"""The controller's side of the link: answers its workers, and tells them what they did not ask for.

It puts an execnet channel into each worker's input. Until a worker asks, nothing is sent, discovered or started.
Answers are made by one thread of the controller, so that execnet's receiver threads never do work.
"""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucoexist.session.wire import END, KEY, place, send

if TYPE_CHECKING:
    from pytest_gpucoexist.model.machine import Machine
    from pytest_gpucoexist.session.wire import Channel

__all__ = ["ControllerLink"]

Handler = Callable[[str, Any], Any]

_END: Any = object()


class ControllerLink:
    """Serves the workers of this session. Registered as a plugin in a controller of pytest-xdist."""

    def __init__(
        self,
        machine: Callable[[Sequence[str], Sequence[str] | None], Machine],
        said: Callable[[], Mapping[str, Any]] = dict,
        take_out: Callable[[Mapping[str, str]], None] = lambda _lost: None,
        option: str | None = None,
    ) -> None:
        """`machine(ask, needed)` discovers and judges, once each.

        `said()` is what else workers must know of the judgement, as builtins; `option` is this side's `--gpu-machine`.
        """
        self._option = option
        self._machine = machine
        self._said = said
        self._take_out = take_out
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._handlers: dict[str, Handler] = {}
        self._at_once: dict[str, Callable[[str, Any], None]] = {}
        self._channels: dict[str, Channel] = {}

    def on(self, verb: str, handler: Handler) -> None:
        """Have `handler(worker, arguments)` called, in the serving thread, for what workers send under a verb.

        What it returns is the answer, of builtin types, where the worker waits for one. A worker that ended or died
        is told under the verb `END`, with None.
        """
        self._handlers[verb] = handler

    def at_once(self, verb: str, handler: Callable[[str, Any], None]) -> None:
        """Have `handler(worker, arguments)` called in the receiver thread, before anything that the worker sends later.

        For what must not stand in line behind a discovery: it has to be quick, and may not raise.
        """
        self._at_once[verb] = handler

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
        """Tell those who want to know that a worker ended or died."""
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
        if item is not _END and (handler := self._at_once.get(item[1])) is not None:
            handler(worker, item[2])
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

    def _machine_for(
        self,
        ask: list[str],
        where: list[str | None],
        needed: list[str] | None,
        option: str | None,
        collecting: bool,  # an argument of a message
    ) -> str:
        """Answer with the machine of this session, or, to a worker on another one, that it is on its own.

        A replayed machine is everybody's, but in another allocation. All that collect must collect the same, so for
        this they get it in any case.
        """
        here = place()
        apart = option != self._option or where[2] != here[2] or (option is None and where != here)
        if apart and not collecting:
            return json.dumps({"apart": True})
        machine = self._machine(tuple(ask), None if apart else needed)
        return json.dumps({"apart": apart, "machine": machine.to_json(), "said": {} if apart else self._said()})
