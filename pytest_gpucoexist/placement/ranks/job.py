"""The ranks of one node as a job: what each says of itself when it has collected, and what it can do with the others.

    member → leader   {"number": n, "verb": …, "value": …}      number 0: nothing is to be answered
    leader → member   {"number": n, "kind": "ok" | "error" | "stop" | "broken", "value": …}

`hello` compares what the ranks collected before anything runs. The verbs of `board` are steps, which all ranks
take together; others are answered at once, by whoever registered them with the leader.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_gpucoexist.placement.ranks.board import Answer, Verb
    from pytest_gpucoexist.placement.ranks.place import RankPlace

__all__ = ["HELLO", "STEPS", "Hello", "Job", "difference"]

STEPS = ("begin", "acquire", "ready", "end")
HELLO = -1
"""The number of a member's first message, and of its answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """What a rank says when it has collected: its tests in order, its options, its view of the devices, its files."""

    rank: int
    tests: tuple[str, ...]
    options: Mapping[str, str] = field(default_factory=dict)
    view: str = ""
    files: Mapping[str, str] = field(default_factory=dict)


def difference(one: Hello, other: Hello) -> str | None:
    """Say how what two ranks are to do differs; None when it does not."""
    names = f"rank {one.rank}", f"rank {other.rank}"
    for name in sorted({*one.options, *other.options}):
        values = one.options.get(name, "not given"), other.options.get(name, "not given")
        if values[0] != values[1]:
            return f"--gpu-{name} is {values[0]} on {names[0]}, {values[1]} on {names[1]}"
    if one.tests == other.tests:
        return None
    if sorted(one.tests) == sorted(other.tests):
        at = next(at for at, (mine, its) in enumerate(zip(one.tests, other.tests, strict=True)) if mine != its)
        return (
            f"the same tests are in different orders (test {at + 1} is {one.tests[at]} on {names[0]} and "
            f"{other.tests[at]} on {names[1]}): with pytest-randomly, give all ranks one --randomly-seed"
        )
    lacking = []
    for who, mine, its in ((names[0], one.tests, set(other.tests)), (names[1], other.tests, set(one.tests))):
        if only := [test for test in mine if test not in its]:
            lacking.append(f"{len(only)} only on {who}, such as {only[0]}")
    return (
        f"{names[0]} selected {len(one.tests)} tests and {names[1]} {len(other.tests)} "
        f"({'; '.join(lacking) or 'some of them twice'}): select and parametrize alike on all ranks"
    )


class Job(ABC):
    """What a rank can do with the others of its node, whichever it is."""

    def __init__(self, place: RankPlace) -> None:
        """`place` is this rank's."""
        self.place = place
        self.inside = False
        """Whether this rank is between the begin and the end of a test: then its going breaks the job."""
        self.on_broken: Callable[[str], None] = lambda _words: None
        """Called once, in another thread, when the job broke."""
        self._pid = os.getpid()

    @abstractmethod
    def meet(self, verb: Verb, what: str, value: Any = None) -> Answer:
        """Come to a step and wait for the others, as long as they live."""

    @abstractmethod
    def tell(self, verb: str, value: Any = None) -> None:
        """Tell the leader; there is nothing to wait for."""

    @abstractmethod
    def leave(self, words: str) -> None:
        """Say that this rank ends its run, and why: the others hear it at their next test."""

    @abstractmethod
    def close(self) -> None:
        """End every thread and connection. Ask for nothing after it."""
