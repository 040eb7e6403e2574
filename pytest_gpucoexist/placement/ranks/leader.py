"""Rank 0 of a node: the others come to it, and what all do together is decided in its main thread."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.errors import GpuCoexistError
from pytest_gpucoexist.placement.ranks.board import Answer, Board, Step, Verb
from pytest_gpucoexist.placement.ranks.job import HELLO, STEPS, Hello, Job, difference
from pytest_gpucoexist.placement.ranks.wire import Connection, address_of, listen, peer_uid

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_gpucoexist.placement.ranks.place import RankPlace

__all__ = ["Leader"]

_FAREWELL_S = 10.0
"""How long the leader stays for ranks that are about to end too: whoever started them all may end them with it."""


class Leader(Job):
    """Rank 0 of a node."""

    def __init__(self, place: RankPlace, hello: Hello, deadline_s: float) -> None:
        """Listen for the others. Raises GpuCoexistError."""
        super().__init__(place)
        self._board = Board(place.local_size, self.name)
        self._deadline_s = deadline_s
        self._hellos = {0: hello}
        self._members: dict[int, Connection] = {}
        self._changed = threading.Condition()
        self._verbs: dict[str, Callable[[int, Any], Any]] = {}
        self.resolve: dict[str, Callable[[Mapping[int, Any]], Mapping[int, Any]]] = {}
        """By verb: what a step comes to, decided in the thread that meets."""
        self._server = listen(address_of(place.job))
        threading.Thread(target=self._accept, name="gpucoexist-ranks", daemon=True).start()

    def name(self, local: int) -> str:
        """Say who a rank of this node is."""
        hello = self._hellos.get(local)
        return f"local rank {local}" if hello is None else f"rank {hello.rank}"

    def on(self, verb: str, handler: Callable[[int, Any], Any]) -> None:
        """Have `handler(local_rank, value)` answer what other ranks ask, in their threads."""
        self._verbs[verb] = handler

    @property
    def broken(self) -> str | None:
        """Why the job is broken, if it is."""
        return self._board.broken

    def gather(self) -> None:
        """Wait for all ranks of the node and compare them. Raises GpuCoexistError, here and in each of them."""
        size = self.place.local_size
        until = time.monotonic() + self._deadline_s
        with self._changed:
            while len(self._hellos) < size and (left := until - time.monotonic()) > 0:
                self._changed.wait(left)
            hellos = dict(self._hellos)
            members = dict(self._members)
        words = self._problem(hellos)
        shared = len({hello.view for hello in hellos.values()}) == 1
        for local, member in members.items():
            before = {path for other, hello in hellos.items() if other < local for path in hello.files.values()}
            value = {
                "leader": self.place.rank,
                "shared_view": shared,
                "same_files": [name for name, path in hellos[local].files.items() if path in before],
            }
            member.send({"number": HELLO, "kind": "error" if words else "ok", "value": words or value})
        if words:
            raise GpuCoexistError(words)

    def _problem(self, hellos: Mapping[int, Hello]) -> str | None:
        missing = [str(local) for local in range(self.place.local_size) if local not in hellos]
        if missing:
            return (
                f"{'rank' if len(missing) == 1 else 'ranks'} {', '.join(missing)} of {self.place.local_size} on this "
                f"node did not come within {self._deadline_s:g} s: it failed, or selected no test that needs a GPU"
            )
        words = [difference(hellos[0], hellos[local]) for local in sorted(hellos) if local]
        return "; ".join(each for each in words if each) or None

    def meet(self, verb: Verb, what: str, value: Any = None) -> Answer:
        """Come to a step; where it is one that all resolve together, resolve it here."""
        if os.getpid() != self._pid:
            return "error", "a forked child is no rank of the job: acquire the device before the fork"
        return self._board.meet(Step(verb=verb, what=what, value=value), self.resolve.get(verb, _nothing), str)

    def tell(self, verb: str, value: Any = None) -> None:
        """Do at once what others ask for."""
        if os.getpid() == self._pid:
            self._verbs[verb](0, value)

    def leave(self, words: str) -> None:
        """Say that this rank ends; who is in a test without it gets time to end it."""
        if self.inside:
            self._break(f"{self.name(0)} {words}")
        self._board.leave(0, words)

    def close(self) -> None:
        """Stay a moment for ranks that are about to end too, and go."""
        until = time.monotonic() + _FAREWELL_S
        with self._changed:
            while self._members and (left := until - time.monotonic()) > 0:
                self._changed.wait(left)
            members = tuple(self._members.values())
        self._server.close()
        for member in members:
            member.close()

    def _accept(self) -> None:
        while True:
            try:
                end, _ = self._server.accept()
            except OSError:
                return
            if peer_uid(end) != os.getuid():
                end.close()
                continue
            threading.Thread(target=self._serve, args=(Connection(end),), name="gpucoexist-rank", daemon=True).start()

    def _serve(self, member: Connection) -> None:
        hello = member.receive()
        if not isinstance(hello, dict) or hello.get("verb") != "hello":
            member.close()
            return
        local, said = hello["value"]
        with self._changed:
            self._hellos[local] = Hello(**{**said, "tests": tuple(said["tests"])})
            self._members[local] = member
            self._changed.notify_all()
        while (message := member.receive()) is not None:
            self._handle(local, member, message)
        if not self._board.has_left(local) and not self._board.has_left(0):
            self._break(f"{self.name(local)} died")
        with self._changed:
            self._members.pop(local, None)
            self._changed.notify_all()
        member.close()

    def _handle(self, local: int, member: Connection, message: Mapping[str, Any]) -> None:
        number, verb, value = message["number"], message["verb"], message["value"]

        def answer(said: Answer) -> None:
            member.send({"number": number, "kind": said[0], "value": said[1]})

        if verb in STEPS:
            self._board.arrive(local, Step(verb=verb, what=value[0], value=value[1]), answer)
        elif verb == "leave":
            words, inside = value
            if inside:
                self._break(f"{self.name(local)} {words}")
            self._board.leave(local, words)
        else:
            try:
                said: Answer = "ok", self._verbs[verb](local, value)
            except Exception as error:  # noqa: BLE001  who waits must hear of whatever went wrong here
                said = "error", str(error) if isinstance(error, GpuCoexistError) else f"rank 0 failed: {error!r}"
            if number:
                answer(said)

    def _break(self, words: str) -> None:
        if self._board.lose(words):
            with self._changed:
                members = tuple(self._members.values())
            for member in members:
                member.send({"number": 0, "kind": "broken", "value": words})
            self.on_broken(words)


def _nothing(values: Mapping[int, Any]) -> Mapping[int, Any]:
    return dict.fromkeys(values)
