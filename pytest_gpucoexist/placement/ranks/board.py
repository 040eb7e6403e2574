"""What the ranks of a job do together: each step waits until all have come to it, or says why they never will.

A test is four steps. *begin*: all have come to this test; one decision. *acquire*: all want devices; one lease.
*ready*: nobody failed on the way, so the test may start everywhere. *end*: all are through, so devices may be given
back. The board knows steps and ranks alone. What a step comes to is for who asks (`resolve`).

Ranks that do not come together are told so instead of waited for:

- one asks for devices where the others do not (`gpu_leases` on one rank alone): its request is refused;
- one skips by a mark of the suite's own: it is not asked whether it is ready;
- one has left between two tests (`-x`): the others stop before the next;
- one died, or is at another test: the job is broken, for all and for good.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["Answer", "Board", "Step", "Verb"]

Verb = Literal["begin", "acquire", "ready", "end"]

Answer = tuple[Literal["ok", "error", "stop", "broken"], Any]
"""`ok` with what the step came to; `error`, `stop`, `broken` with words."""

Resolve = Callable[[Mapping[int, Any]], Mapping[int, Any]]
"""From what each rank said at a step to what each is answered. May raise; then `failed` makes words of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A rank has come to a step: of which test or owner, and what it says there (builtins only)."""

    verb: Verb
    what: str
    value: Any = None


class Board:
    """Where the ranks of a node meet. Safe to use from several threads; rank 0 meets, the others arrive."""

    def __init__(self, size: int, name: Callable[[int], str] = "rank {}".format) -> None:
        """`size` ranks, numbered from 0; `name` says in words who one is."""
        self._size = size
        self._name = name
        self._changed = threading.Condition()
        self._here: dict[int, tuple[Step, Callable[[Answer], None]]] = {}
        self._left: dict[int, str] = {}
        self._due: dict[int, tuple[Step, Callable[[Answer], None]]] | None = None
        self.broken: str | None = None

    def arrive(self, rank: int, step: Step, answer: Callable[[Answer], None]) -> None:
        """Note that a rank waits at a step; `answer` is called once, from any thread, when it may go on."""
        with self._changed:
            self._here[rank] = step, answer
            calls = self._settle()
        _deliver(calls)

    def meet(self, step: Step, resolve: Resolve, failed: Callable[[BaseException], str]) -> Answer:
        """Come to a step as rank 0, wait for the others, and resolve it for all where it is one to resolve.

        `resolve` runs in this thread. What it raises is an `error` for the other ranks, in the words of `failed`, and
        raised here.
        """
        mine: list[Answer] = []

        def answered(answer: Answer) -> None:
            mine.append(answer)
            with self._changed:
                self._changed.notify_all()

        self.arrive(0, step, answered)
        with self._changed:
            while not mine and self._due is None:
                self._changed.wait()
            due, self._due = self._due, None
        if due is not None:
            self._resolve(due, resolve, failed)
        return mine[0]

    def leave(self, rank: int, words: str) -> None:
        """Note that a rank ended its run between two tests, and why."""
        with self._changed:
            self._left.setdefault(rank, words)
            self._here.pop(rank, None)
            calls = self._settle()
        _deliver(calls)

    def lose(self, words: str) -> bool:
        """Note that the job is broken. Returns False when it was before: then the first words count."""
        with self._changed:
            if self.broken is not None:
                return False
            calls = self._break(words)
        _deliver(calls)
        return True

    def has_left(self, rank: int) -> bool:
        """Whether a rank said that it ends."""
        return rank in self._left

    def _resolve(self, due: Mapping[int, Any], resolve: Resolve, failed: Callable[[BaseException], str]) -> None:
        try:
            said = resolve({rank: step.value for rank, (step, _) in due.items()})
        except BaseException as error:
            words = failed(error)
            _deliver([(answer, ("error", words)) for rank, (_, answer) in due.items() if rank])
            raise
        _deliver([(answer, ("ok", said[rank])) for rank, (_, answer) in due.items()])

    def _settle(self) -> list[tuple[Callable[[Answer], None], Answer]]:
        """Find what can be answered now. Called with the lock held; the calls are made without it."""
        calls: list[tuple[Callable[[Answer], None], Answer]] = []
        if self.broken is not None:
            return self._answer(self._here, "broken", self.broken)
        at: dict[str, list[int]] = {}
        for rank, (step, _) in self._here.items():
            at.setdefault(step.verb, []).append(rank)
        asking = at.get("acquire", [])
        others = [rank for rank in (*self._here, *self._left) if rank not in asking]
        if asking and others:
            who = ", ".join(self._name(rank) for rank in sorted(others))
            calls += self._answer(asking, "error", f"{who} did not ask for devices here: ranks ask together or not")
            return calls + self._settle()
        whats = {self._here[rank][0].what for rank in at.get("begin", [])}
        if len(whats) > 1 or (at.get("begin") and (at.get("end") or at.get("ready"))):
            return self._break("the ranks are not at the same test: " + self._whereabouts())
        if len(self._here) + len(self._left) < self._size:
            return calls
        if at.get("begin"):
            if self._left:
                words = "; ".join(f"{self._name(rank)} {why}" for rank, why in sorted(self._left.items()))
                calls += self._answer(at["begin"], "stop", words)
            else:
                self._make_due()
        elif at.get("ready"):
            problems = {rank: self._here[rank][0].value for rank in at["ready"] if self._here[rank][0].value}
            calls += self._answer(at["ready"], "ok", problems)
        elif at.get("end"):
            calls += self._answer(at["end"], "ok", None)
        elif asking:
            if len({self._here[rank][0].what for rank in asking}) > 1:
                words = "the ranks do not ask for the same: " + self._whereabouts()
                calls += self._answer(asking, "error", words)
            else:
                self._make_due()
        return calls

    def _make_due(self) -> None:
        self._due = dict(self._here)
        self._here.clear()
        self._changed.notify_all()

    def _answer(self, ranks: Any, kind: Any, value: Any) -> list[tuple[Callable[[Answer], None], Answer]]:
        return [(self._here.pop(rank)[1], (kind, value)) for rank in tuple(ranks)]

    def _break(self, words: str) -> list[tuple[Callable[[Answer], None], Answer]]:
        self.broken = words
        return self._answer(self._here, "broken", words)

    def _whereabouts(self) -> str:
        return ", ".join(f"{self._name(rank)} at {step.what}" for rank, (step, _) in sorted(self._here.items()))


def _deliver(calls: list[tuple[Callable[[Answer], None], Answer]]) -> None:
    for call, answer in calls:
        call(answer)
