"""A worker's side of a plan: no position of its queue runs before the controller has said so.

Two plugins, because two places are needed: the gate stands around everything that happens to a test, so that waiting
for the controller's word counts in nobody's timer; the turnstile is inside, where a position can be kept from running.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from pytest_gpucoexist.placement.grant import CANCELLED, GRANTED, REFUSED, Grant
from pytest_gpucoexist.placement.transport import (
    AWAITED,
    CANCEL,
    ENDING,
    OPEN,
    OVER,
    RAN,
    REFUSED as WAS_REFUSED,
    RIDER,
    RUN,
    UNRUN,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

__all__ = ["Gate", "Leases", "Turnstile", "Words", "hear"]


class Words:
    """What the controller has said about positions. Filled by execnet's receiver thread, awaited by the main one."""

    def __init__(self) -> None:
        """Nothing has been said."""
        self._said: dict[int, Grant | None] = {}
        self._ends: set[int] = set()
        self._awaited: set[int] = set()
        self._refusals = 0
        self._changed = threading.Condition()
        self.is_open = False
        self._is_over = False

    def run(self, word: Sequence[Any]) -> None:
        """Take a word that a position may run. One that crossed a refusal counts for nothing."""
        number, keys, waits, refusals, soon, awaited = word
        with self._changed:
            if refusals == self._refusals:
                self._said[number] = Grant(keys=tuple(tuple(group) for group in keys), waits=waits, soon=soon)
                if awaited:
                    self._awaited.add(number)
                self._changed.notify_all()

    def awaited(self, number: int) -> None:
        """Take the word that others wait for what the test at a position holds."""
        self._awaited.add(number)

    def is_awaited(self, number: int) -> bool:
        """Whether others wait for what the test at a position holds."""
        return number in self._awaited

    def is_said(self, number: int) -> bool:
        """Whether it is known by now what becomes of a position."""
        return number in self._said

    def cancel(self, word: Sequence[Any]) -> None:
        """Take a word that a position is to be passed by, and whether every scope ends there."""
        number, ends = word
        with self._changed:
            self._said[number] = None
            if ends:
                self._ends.add(number)
            self._changed.notify_all()

    def open(self, _word: object) -> None:
        """Take the word that nothing is planned: every position runs."""
        with self._changed:
            self.is_open = True
            self._changed.notify_all()

    def end(self, _word: object) -> None:
        """Note that the controller is gone: nothing more is to run."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def refused(self) -> None:
        """Forget what was said about later positions: it was said before the refusal was known."""
        with self._changed:
            self._refusals += 1
            self._said = {number: said for number, said in self._said.items() if said is None}

    def ends(self, number: int) -> bool:
        """Say whether every scope ends at a position that is passed by."""
        return number in self._ends

    def wait(self, number: int) -> Grant | None:
        """Wait for the word about a position: a grant, or None for one that is to be passed by."""
        with self._changed:
            while not (self.is_open or self._is_over or number in self._said):
                self._changed.wait()
            return Grant() if self.is_open else self._said.pop(number, None)


class Leases(Protocol):
    """What the gate must know of, and tell, whoever leases devices."""

    def waited_s(self, item: pytest.Item) -> float:
        """Return how long a test has waited for its devices."""
        ...

    def keys(self, item: pytest.Item) -> list[str]:
        """Return the devices that a test had."""
        ...

    def are_locks(self, item: pytest.Item) -> bool:
        """Say whether a test has devices, by locks that keep every other worker from them until they are back."""
        ...

    def is_back(self, item: pytest.Item) -> bool:
        """Say whether the devices of a test that has been torn down went back before its last report is made."""
        ...

    def settle(self, nextitem: pytest.Item | None) -> None:
        """Give back what no scope keeps any more, after scopes have ended between two tests."""
        ...


class Gate:
    """Stands around the protocol of every test, outside of leases and timers."""

    def __init__(self, tell: Callable[[str, object], None], words: Words, leases: Leases) -> None:
        """`tell(verb, value)` reaches the controller."""
        self._leases = leases
        self._tell = tell
        self._words = words
        self._number = 0
        self._last: pytest.Item | None = None
        self._begin()

    def _begin(self) -> None:
        self._begin_s = time.perf_counter()
        self._setup_s = self._all_s = 0.0
        self._passed = True
        self._has_told = False
        self._rider: list[object] | None = None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, object, object]:
        """Wait for the word about this position, and tell when it is over."""
        number, self._number = self._number, self._number + 1
        grant = self._words.wait(number)
        if self._words.is_open:
            self._has_told = True
            return (yield)
        item.stash[CANCELLED] = grant is None
        if grant is not None:
            item.stash[GRANTED] = grant
        if REFUSED in item.stash:
            del item.stash[REFUSED]
        self._begin()
        try:
            result = yield
            if grant is None or REFUSED in item.stash:
                following = None if self._words.ends(number) else nextitem
                self._pass_by(item, following)
                self._leases.settle(following)
            else:
                self._last = item
            return result
        except pytest.exit.Exception:
            # It is not over: pytest-xdist passes over a worker that ends so, unless something is left of its work.
            self._has_told = True
            raise
        finally:
            if not self._has_told:
                self._tell(OVER, self._rider or self._over(item, number, grant))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Tell that a test has passed: who is next for its devices gets ready while it is torn down."""
        result = yield
        if not self._has_told and self._words.is_awaited(self._number - 1) and self._leases.are_locks(item):
            self._tell(ENDING, self._number - 1)
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        """Tell already here that a position is over, when its devices are back: the next test can have them.

        When nobody waits for them, and this worker goes on without a word, the last report takes that along.
        """
        begin_s = time.perf_counter()
        result = yield
        if self._leases.is_back(item) and self._passed and not self._has_told:
            number = self._number - 1
            self._all_s += time.perf_counter() - begin_s
            over = self._over(item, number, item.stash.get(GRANTED, None))
            if self._words.is_awaited(number) or not self._words.is_said(self._number):
                self._has_told = True
                self._tell(OVER, over)
            else:
                self._rider = over
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:  # noqa: ARG002
        """Let the word that a position is over ride on its last report."""
        report = yield
        if report.when == "teardown" and self._rider is not None:
            setattr(report, RIDER, self._rider)
        return report

    def _over(self, item: pytest.Item, number: int, grant: Grant | None) -> list[object]:
        if grant is None:
            return [number, UNRUN, 0.0, 0.0, 0.0, 0.0, False, []]
        if REFUSED in item.stash:
            self._words.refused()
            return [number, WAS_REFUSED, 0.0, 0.0, 0.0, 0.0, False, [*item.stash[REFUSED]]]
        waited_s = self._leases.waited_s(item)
        held_s = time.perf_counter() - self._begin_s
        return [number, RAN, held_s, waited_s, self._setup_s, self._all_s, self._passed, self._leases.keys(item)]

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> Generator[None, object, object]:
        """Add up what the phases of the running test took, without any wait for devices. A rerun begins anew."""
        if report.when == "setup":
            self._setup_s, self._all_s, self._passed = report.duration, 0.0, True
        self._all_s += report.duration
        self._passed = self._passed and report.outcome == "passed"
        result = yield
        self._has_told = self._has_told or hasattr(report, RIDER)  # pytest-xdist has sent it
        return result

    def _pass_by(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        """Tear down what earlier tests left for this one; errors belong to the test that ran last."""
        state = item.session._setupstate  # noqa: SLF001  pytest has no public way to end wider scopes early
        call = pytest.CallInfo.from_call(
            lambda: state.teardown_exact(nextitem), "teardown", reraise=(pytest.exit.Exception, KeyboardInterrupt)
        )
        if call.excinfo is None:
            return
        blamed = self._last if self._last is not None else item
        report = blamed.ihook.pytest_runtest_makereport(item=blamed, call=call)
        with _reporting(item, blamed):
            blamed.ihook.pytest_runtest_logreport(report=report)


class Turnstile:
    """Keeps a position from running that is not to run: the innermost part of a protocol is left out."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        """Say that the test is dealt with, when it was cancelled or its devices were refused."""
        return True if item.stash.get(CANCELLED, False) or REFUSED in item.stash else None


class _reporting:  # noqa: N801  used like a function
    """While it lasts, pytest-xdist takes reports about `blamed` although its queue is at `item`."""

    def __init__(self, item: pytest.Item, blamed: pytest.Item) -> None:
        self._item = item
        self._blamed = blamed
        self._interactor: Any = next(
            (each for each in item.config.pluginmanager.get_plugins() if hasattr(each, "item_index")), None
        )

    def __enter__(self) -> None:
        if self._interactor is not None:
            self._before = self._interactor.item_index
            self._interactor.item_index = self._item.session.items.index(self._blamed)

    def __exit__(self, *_exc: object) -> None:
        if self._interactor is not None:
            self._interactor.item_index = self._before


def hear(words: Words, on: Callable[[str, Callable[[Any], None]], None], end: str) -> None:
    """Have words arrive that the controller pushes; `end` is the verb under which its end is heard."""
    handlers: dict[str, Callable[[Any], None]] = {
        RUN: words.run,
        AWAITED: words.awaited,
        CANCEL: words.cancel,
        OPEN: words.open,
        end: words.end,
    }
    for verb, handler in handlers.items():
        on(verb, handler)
