"""A worker's side of the link: asks the controller and waits for the answer, and hears what it is told."""

from __future__ import annotations

import json
import os
import queue
import threading
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.session.wire import END, KEY, place, send

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pytest

    from pytest_gpucoexist.model.machine import Machine
    from pytest_gpucoexist.session.wire import Channel

__all__ = ["WorkerLink", "worker_link"]

_END: Any = object()


class WorkerLink:
    """A worker's side: asks the controller and waits for the answer.

    When the controller is gone, every wait ends with a GpuCoexistError.
    """

    def __init__(self, channel: Channel, worker: str, option: str | None = None) -> None:
        """`channel` is the one that the controller sent in `workerinput`; `option` is this side's `--gpu-machine`."""
        self._option = option
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
        self.apart = False
        """Whether the controller has said that this worker is on another machine; not known before it was asked."""
        self.host: str | None = None
        """The name of its host then."""
        self.told_apart = False
        self._listening = False

    def machine(self, ask: Sequence[str] = (), *, collecting: bool = False) -> Machine | None:
        """Return the controller's machine, with the facts of the vendor libraries in `ask`.

        None when this worker is on another machine, unless it only wants to collect what all others collect.
        """
        if self.apart and not collecting:
            return None
        wanted = tuple(sorted(set(ask)))
        known = [self._machines[each] for each in self._machines if set(each) >= set(wanted)]
        if known:
            return known[0]
        return self._ask_for(wanted, None, collecting=collecting)

    def judged(self, needed: Sequence[str]) -> Machine | None:
        """Return the machine after the controller has judged it, once, for tests that name the vendors `needed`."""
        known = max(self._machines, key=len, default=())
        self._machines.clear()
        return self._ask_for(known, list(needed), collecting=False)

    def _ask_for(self, ask: tuple[str, ...], needed: list[str] | None, *, collecting: bool) -> Machine | None:
        from pytest_gpucoexist.model.machine import Machine

        where = place()
        arguments = {
            "ask": list(ask),
            "where": where,
            "needed": needed,
            "option": self._option,
            "collecting": collecting,
        }
        answer = json.loads(self._call("machine", arguments))
        self.apart = answer["apart"]
        self.host = where[0] if self.apart else None
        if "machine" not in answer:
            return None
        self.said = answer["said"]
        machine = Machine.from_json(answer["machine"])
        self._machines[ask] = machine
        return machine

    def ask(self, verb: str, arguments: object = None, timeout_s: float | None = None) -> Any:
        """Ask the controller under a verb that it knows by `ControllerLink.on`.

        Raises what its handler raised, and GpuCoexistError when no answer came within `timeout_s`.
        """
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

    def _listen(self) -> None:
        with self._lock:
            begins, self._listening = not self._listening, True
        if begins:
            # Not under the lock: what has arrived by now, if only the end, is delivered at once in this thread.
            self._channel.setcallback(self._receive, endmarker=_END)

    def _call(self, verb: str, arguments: object, timeout_s: float | None = None) -> Any:
        from pytest_gpucoexist.errors import GpuCoexistError, error_named

        if os.getpid() != self._pid:
            raise GpuCoexistError("a forked child cannot speak to the pytest controller: ask before the fork")
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
            answer = "GpuCoexistError", f"the pytest controller gave no answer to {verb!r} within {timeout_s} s"
        finally:
            with self._lock:
                self._pending.pop(number, None)
        if answer is None:
            answer = "GpuCoexistError", "the pytest controller is gone"
        status, value = answer
        if status == "ok":
            return value
        raise error_named(status)(value)

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


def worker_link(config: pytest.Config, option: str | None = None) -> WorkerLink | None:
    """Return the link of an xdist worker, or None in a controller, a serial run or without our plugin there.

    `option` is the worker's own `--gpu-machine`.
    """
    given = getattr(config, "workerinput", {})
    channel = given.get(KEY, {}).get("channel")
    return None if channel is None else WorkerLink(channel, given["workerid"], option)
