"""Any rank of a node but its first: it asks that one."""

from __future__ import annotations

import os
import queue
import threading
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.errors import GpuCoexistError
from pytest_gpucoexist.placement.ranks.job import HELLO, Hello, Job
from pytest_gpucoexist.placement.ranks.wire import address_of, connect

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucoexist.placement.ranks.board import Answer, Verb
    from pytest_gpucoexist.placement.ranks.place import RankPlace

__all__ = ["Member"]


class Member(Job):
    """Any other rank of a node. Every wait ends when the leader is gone."""

    def __init__(self, place: RankPlace, hello: Hello, deadline_s: float) -> None:
        """Go to the leader and say what was collected. Raises GpuCoexistError when it does not come."""
        super().__init__(place)
        self._leader = "the first rank of this node"
        self._answers: dict[int, queue.SimpleQueue[Answer]] = {HELLO: queue.SimpleQueue()}
        self._lock = threading.Lock()
        self._last = 0
        self._over: Answer | None = None
        self._to = connect(address_of(place.job), deadline_s)
        said = {name: getattr(hello, name) for name in ("rank", "tests", "options", "view", "files")}
        self._to.send({"number": HELLO, "verb": "hello", "value": [place.local_rank, said]})
        threading.Thread(target=self._listen, name="gpucoexist-rank", daemon=True).start()

    def gathered(self) -> Mapping[str, Any]:
        """Wait until the leader has compared all ranks. Raises GpuCoexistError with what it found."""
        kind, value = self._answers[HELLO].get()
        if kind != "ok":
            raise GpuCoexistError(str(value))
        said: Mapping[str, Any] = value
        self._leader = f"rank {said['leader']}"
        return said

    def ask(self, verb: str, value: Any = None) -> Any:
        """Ask the leader. Raises GpuCoexistError with what it says, or because it is gone."""
        kind, said = self._call(verb, value)
        if kind != "ok":
            raise GpuCoexistError(str(said))
        return said

    def meet(self, verb: Verb, what: str, value: Any = None) -> Answer:
        """Come to a step."""
        return self._call(verb, [what, value])

    def tell(self, verb: str, value: Any = None) -> None:
        """Tell the leader, if it is there."""
        if os.getpid() == self._pid:
            self._to.send({"number": 0, "verb": verb, "value": value})

    def leave(self, words: str) -> None:
        """Say that this rank ends."""
        self.tell("leave", [words, self.inside])

    def close(self) -> None:
        """Go."""
        with self._lock:
            self._over = self._over or ("stop", "this rank has ended")
        self._to.close()

    def _call(self, verb: str, value: Any) -> Answer:
        if os.getpid() != self._pid:
            return "error", "a forked child is no rank of the job: acquire the device before the fork"
        answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        with self._lock:
            if self._over is not None:
                return self._over
            self._last += 1
            number = self._last
            self._answers[number] = answers
        if not self._to.send({"number": number, "verb": verb, "value": value}):
            self._end(("broken", f"{self._leader} died"))
        try:
            return answers.get()
        finally:
            self._answers.pop(number, None)

    def _listen(self) -> None:
        while (message := self._to.receive()) is not None:
            answer: Answer = message["kind"], message["value"]
            number = message["number"]
            if number == 0:
                self._end(answer)
            elif number in self._answers:
                self._answers[number].put(answer)
        self._end(("broken", f"{self._leader} died"))

    def _end(self, answer: Answer) -> None:
        with self._lock:
            first, self._over = self._over is None, self._over or answer
            waiting = tuple(self._answers.values())
        for answers in waiting:
            answers.put(self._over)
        if first and answer[0] == "broken":
            self.on_broken(str(answer[1]))
