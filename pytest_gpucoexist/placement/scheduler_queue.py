"""The queue of one worker, as its controller sees it: which positions run, which wait, which are mere predictions.

pytest-xdist's worker begins a test only when it knows the next one, so that it tears down no more than it must. So
every queue ends in a prediction until nothing is left to predict. A position is never taken back: one whose prediction
did not come true is cancelled, and the worker passes it by when it gets there.
"""

from __future__ import annotations

import contextlib
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from pytest_gpucoexist.placement.engine.values import Assignment
from pytest_gpucoexist.placement.transport import AWAITED, CANCEL, RUN

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from pytest_gpucoexist.placement.engine import Engine
    from pytest_gpucoexist.placement.scheduler import Node
    from pytest_gpucoexist.placement.transport import Over

__all__ = ["Orders", "Position", "QueuedWorker", "WorkerQueue", "await_blockers", "guess", "hand_over", "take_back"]


@dataclass(slots=True, kw_only=True, eq=False)
class Position:
    """One place in a worker's queue. `blockers`: (worker, test) that still hold what it was assigned.

    `soon`: one of them was being torn down when it stopped to count. `awaited`: another worker has this as a blocker.
    """

    number: int
    test: int
    state: Literal["predicted", "assigned", "granted", "cancelled"] = "predicted"
    assignment: Assignment | None = None
    blockers: set[tuple[str, int]] = field(default_factory=set)
    waits: bool = False
    soon: bool = False
    awaited: bool = False
    has_begun: bool = False


@dataclass(slots=True, kw_only=True)
class Orders:
    """What a worker is to be told: indices to append to its queue, positions to pass by, positions to run.

    `ends`: every scope ends where it passes by.
    """

    indices: list[int] = field(default_factory=list)
    cancel: list[int] = field(default_factory=list)
    run: list[Position] = field(default_factory=list)
    ends: bool = False


class WorkerQueue:
    """Positions of one worker that are not over yet, in the order in which it meets them."""

    def __init__(self, index_of: Mapping[int, int]) -> None:
        """`index_of` leads from a test's id to its place in the list that this worker collected."""
        self.index_of = index_of
        self.positions: deque[Position] = deque()
        self.last_ran: int | None = None
        self.is_closed = False
        self._next = 0

    def assign(self, assignment: Assignment, orders: Orders) -> Position:
        """Give the worker a test, at the position that was predicted for it if that came true."""
        predicted = [each for each in self.positions if each.state == "predicted"]
        if predicted and predicted[0].test == assignment.test:
            position = predicted[0]
        else:
            for each in predicted:
                self._cancel(each, orders)
            position = self._append(assignment.test, orders)
        position.state = "assigned"
        position.assignment = assignment
        position.blockers = {pair for pair in assignment.after if pair[0] != assignment.worker}
        return position

    @property
    def needs_prediction(self) -> bool:
        """Whether the worker could not begin its last position, because it does not know what comes after it."""
        return bool(self.positions) and self.positions[-1].state in {"assigned", "granted"} and not self.is_closed

    def predict(self, test: int, orders: Orders) -> None:
        """Let the queue end in a guess."""
        self._append(test, orders)

    def cancel_predictions(self, orders: Orders) -> None:
        """Take back every guess."""
        for each in self.positions:
            if each.state == "predicted":
                self._cancel(each, orders)

    def grant(self, orders: Orders) -> None:
        """Let positions run that nobody else stands in the way of: none overtakes an earlier one of this queue."""
        for each in self.positions:
            if each.state == "assigned":
                if each.blockers:
                    return
                each.state = "granted"
                orders.run.append(each)

    def unblock(self, name: str, test: int | None, *, soon: bool = False) -> None:
        """Wait no more for what a worker held for a test, or (None) for any. `soon`: it is free in a moment."""
        for position in self.positions:
            if position.blockers:
                gone = {each for each in position.blockers if each[0] == name and test in {None, each[1]}}
                position.blockers -= gone
                position.soon = position.soon or (soon and bool(gone))

    def crashed(self) -> int | None:
        """Say which test a worker that died is to be blamed on; None when it died idle.

        Between two tests it is the one before: what it left was being torn down, or went on in a thread.
        """
        if not self.positions or self.positions[0].state == "predicted":
            return None
        head = self.positions[0]
        return head.test if head.state == "granted" and head.has_begun else self.last_ran

    @property
    def is_idle(self) -> bool:
        """Whether nothing is assigned to the worker."""
        return all(each.state in {"predicted", "cancelled"} for each in self.positions)

    def _append(self, test: int, orders: Orders) -> Position:
        position = Position(number=self._next, test=test)
        self._next += 1
        self.positions.append(position)
        orders.indices.append(self.index_of[test])
        return position

    @staticmethod
    def _cancel(position: Position, orders: Orders) -> None:
        position.state = "cancelled"
        orders.cancel.append(position.number)


class QueuedWorker:
    """A worker that is up: its queue, and what became of it. `kind` is shared by workers that can run the same."""

    __slots__ = ("kind", "name", "node", "queue", "refusals", "said", "shutdown", "unit")

    def __init__(self, name: str, node: Node, queue: WorkerQueue, kind: Hashable) -> None:
        """`node` is pytest-xdist's."""
        self.name = name
        self.kind = kind
        self.node = node
        self.queue = queue
        self.shutdown: Callable[[], None] = node.shutdown
        self.unit: str | None = None
        self.refusals = 0
        self.said: dict[int, Over] = {}
        """What it said about positions at which it has arrived, as far as is known here, only later."""

    def first_said(self) -> Over | None:
        """Take out what it said about its first position, if it has."""
        return self.said.pop(self.queue.positions[0].number, None) if self.queue.positions else None

    @property
    def goes_on(self) -> bool:
        """Whether it runs a test now, or begins one without any further word."""
        positions = self.queue.positions
        return bool(positions) and positions[0].state == "granted" and (len(positions) > 1 or self.queue.is_closed)

    def go_on(self, push: Callable[[str, str, object], None]) -> Position | None:
        """Let the first position run, if it was assigned and nothing stands in its way any more; return it then."""
        head = self.queue.positions[0] if self.queue.positions else None
        if head is None or head.state != "assigned" or head.blockers:
            return None
        orders = Orders()
        self.queue.grant(orders)
        self.tell(push, orders)
        return head

    def tell(self, push: Callable[[str, str, object], None], orders: Orders) -> None:
        """Send what is to be told; `push(worker, verb, value)` reaches a worker."""
        if self.node.shutting_down:
            return
        with contextlib.suppress(OSError):  # it has died: that is told next, and what it was given goes back then
            for number in orders.cancel:
                push(self.name, CANCEL, [number, orders.ends])
            for position in orders.run:
                devices = () if position.assignment is None else position.assignment.devices
                keys = [list(group) for group in devices]
                flags = position.soon, position.awaited
                push(self.name, RUN, [position.number, keys, position.waits, self.refusals, *flags])
            if orders.indices:
                self.node.send_runtest_some(orders.indices)


def guess(engine: Engine, name: str, queue: WorkerQueue) -> int | None:
    """Guess what a worker runs after its last position; any other test when something is left, None when not."""
    guessed = engine.predict(name)
    if guessed is not None and guessed in queue.index_of:
        return guessed
    if not engine.left:
        return None
    last = queue.positions[-1].test
    return next((test for test in engine.pending if test in queue.index_of and test != last), None)


def await_blockers(
    workers: Mapping[str, QueuedWorker], position: Position, push: Callable[[str, str, object], None]
) -> None:
    """Have the workers that hold what a position was assigned tell when they are about to give it back."""
    for name, test in position.blockers:
        holder = workers.get(name)
        for each in () if holder is None else holder.queue.positions:
            if each.test == test and each.state in {"assigned", "granted"} and not each.awaited:
                each.awaited = True
                if each.state == "granted":
                    with contextlib.suppress(OSError):  # it has died: that is told next
                        push(name, AWAITED, each.number)


def hand_over(
    workers: Mapping[str, QueuedWorker], name: str, number: int, push: Callable[[str, str, object], None]
) -> None:
    """Let go on who only waits for a test that is being torn down, at this position of the worker `name`."""
    giver = workers.get(name)
    head = giver.queue.positions[0] if giver is not None and giver.queue.positions else None
    if head is None or head.number != number or head.state != "granted":
        return
    for worker in workers.values():
        worker.queue.unblock(name, head.test, soon=True)
        worker.go_on(push)


def take_back(worker: QueuedWorker, push: Callable[[str, str, object], None]) -> list[int]:
    """Make predictions of all assignments of a worker; one that is to end passes them by. Returns their tests.

    What was on its way to the worker counts for nothing: it has refused an earlier one, or it was not granted yet.
    """
    taken = [each for each in worker.queue.positions if each.state in {"assigned", "granted"}]
    for position in taken:
        position.state = "cancelled" if worker.queue.is_closed else "predicted"
        if worker.queue.is_closed:
            with contextlib.suppress(OSError):  # it has died: that is told next
                push(worker.name, CANCEL, [position.number, False])
    return [position.test for position in taken]
