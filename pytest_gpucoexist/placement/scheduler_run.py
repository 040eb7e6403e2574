"""A run under a plan: what workers report goes to the engine, what the engine decides goes to workers' queues.

Workers report from execnet's receiver threads and pytest-xdist from its main loop, so one lock is held throughout.
Nothing here waits: a worker that is to be told something is told by a message that the kernel buffers.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.placement.scheduler_avoided import Avoided
from pytest_gpucoexist.placement.scheduler_queue import (
    Orders,
    QueuedWorker,
    WorkerQueue,
    await_blockers,
    guess,
    hand_over,
    take_back,
)
from pytest_gpucoexist.placement.scheduler_scopes import Scopes
from pytest_gpucoexist.placement.scheduler_surplus import Surplus
from pytest_gpucoexist.placement.suite import distinct
from pytest_gpucoexist.placement.timeline import Hold
from pytest_gpucoexist.placement.transport import REFUSED, UNRUN

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from pytest_gpucoexist.placement.engine import Engine
    from pytest_gpucoexist.placement.engine.values import Assignment, Statistics
    from pytest_gpucoexist.placement.scheduler import Node
    from pytest_gpucoexist.placement.scheduler_queue import Position
    from pytest_gpucoexist.placement.transport import Over

__all__ = ["Run"]


class Run:
    """One distributed run. `ids` are the suite's tests in order; a test's id for the engine is its place in it."""

    def __init__(
        self,
        engine: Engine,
        ids: Sequence[str],
        push: Callable[[str, str, object], None],
        *,
        unit_of: Callable[[int], str | None] = lambda _test: None,
        place: Callable[[str], dict[str, Any] | None] = lambda _worker: {"site": ""},
        measured: Callable[[int, Over, bool], None] = lambda _test, _over, _first: None,
        coming: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`push(worker, verb, value)` reaches a worker. `place(worker)` gives arguments of `Engine.worker_up`.

        `measured(test, over, first)` hears of every test that ran; `first`: it began its unit on that worker.
        `coming()`: whether a worker has been started that has not collected yet.
        """
        self._engine = engine
        self._ids = ids
        self._test_of = {name: test for test, name in enumerate(distinct(ids))}
        self._push = push
        self._unit_of = unit_of
        self._place = place
        self._measured = measured
        self._clock = clock
        self._workers: dict[str, QueuedWorker] = {}
        self._avoided = Avoided(engine)
        self._scopes = Scopes(push)
        self._surplus = Surplus(self._close)
        self._sites: dict[str, str] = {}
        self._patient: set[int] = set()
        self._is_postponed = False
        self._coming = coming
        self.holds: list[Hold] = []
        self._lock = threading.RLock()

    @property
    def is_finished(self) -> bool:
        """Whether there is nothing left that any worker could run."""
        with self._lock:
            if self._engine.is_done or self._coming() or not self._nobody_runs():
                return self._engine.is_done
            return len(self._engine.stranded()) == self._engine.left

    def add_worker(self, name: str, node: Node, collection: Sequence[str]) -> None:
        """Count on a worker that has collected these ids. One that no test can use is told to end."""
        with self._lock:
            known, names = self._test_of, enumerate(distinct(collection))
            index_of = {known[each]: index for index, each in names if each in known}
            place = self._place(name)
            if place is None or node.shutting_down:
                node.shutdown()
                return
            can_run = None if len(index_of) == len(self._ids) else frozenset(index_of)
            kind = place["site"], frozenset(place.get("only") or ()), can_run
            worker = self._workers[name] = QueuedWorker(name, node, WorkerQueue(index_of), kind)
            self._sites[name] = place["site"]
            self._engine.worker_up(name, can_run=can_run, **place)
            # pytest-xdist tells workers to end where a run stops early, and no hook says so: what is not granted by
            # then must not keep them waiting.
            node.shutdown = lambda: self._close(worker)  # type: ignore[method-assign]

    def go_on(self) -> None:
        """Hand out what can be handed out now, and tell the workers."""
        with self._lock:
            self._retire_surplus()
            self._hand_out()

    def began(self, item: str) -> None:
        """Note that a test has begun, so that a crash is not told of one that was only granted."""
        with self._lock:
            for worker in self._workers.values():
                head = worker.queue.positions[0] if worker.queue.positions else None
                if head is not None and self._ids[head.test] == item and head.state == "granted":
                    head.has_begun = True

    def over(self, name: str, said: Over) -> None:
        """Take a worker's word that it has left a position behind. One can overtake another: they come in two ways."""
        with self._lock:
            if (worker := self._workers.get(name)) is not None:
                worker.said[said[0]] = said
                while (first := worker.first_said()) is not None:
                    self._left_behind(name, worker, first)

    def was_set_up(self) -> None:
        """Do what was postponed until now: a test has been set up, and its body runs."""
        with self._lock:
            if self._is_postponed:
                self._hand_out()
            self._surplus.end_one()

    def ending(self, name: str, number: int) -> None:
        """Let go on who waits for a test that has passed, when its teardown begins: locks keep it out until the end."""
        with self._lock:
            hand_over(self._workers, name, number, self._push)

    def again(self, item: str) -> None:
        """Make a test pending that was reported already."""
        with self._lock:
            self._engine.give_back([self._test_of[item]])
            self._hand_out()

    def lost(self, site: str, keys: Collection[str], reason: str) -> None:
        """Plan without devices that are unfit from now on."""
        with self._lock:
            self._engine.lost(site, keys, reason, self._clock())
            self._hand_out()

    def remove_worker(self, name: str) -> str | None:
        """Forget a worker that ended or died, and return the id of the test to blame, if any."""
        with self._lock:
            worker = self._workers.pop(name, None)
            if worker is None:
                return None
            blamed = worker.queue.crashed()
            down = self._engine.worker_down(name, self._clock())
            if down.running is not None and down.running != blamed:
                self._engine.give_back([down.running])  # it had been granted, but had not begun
            self._unblock(name, None)
            self._hand_out()
            return None if blamed is None else self._ids[blamed]

    @property
    def stranded(self) -> tuple[str, ...]:
        """Tests that are left although no worker could run them any more."""
        with self._lock:
            return tuple(self._ids[test] for test in self._engine.stranded()) if self.is_finished else ()

    def statistics(self) -> Statistics:
        """Tell what was done with the devices until now."""
        with self._lock:
            return self._engine.statistics(self._clock())

    def _left_behind(self, name: str, worker: QueuedWorker, said: Over) -> None:
        how, now_s = said[1], self._clock()
        position = worker.queue.positions.popleft()
        if position.state == "granted" and how != UNRUN:
            self._unblock(name, position.test)
            follows = self._was_refused if how == REFUSED else self._ran
            follows(name, worker, position, said, now_s)
        # A worker that hears something while it sets up a test is slowed down with a device in its hands.
        self._is_postponed = how != UNRUN and all(each.goes_on for each in self._workers.values())
        if not self._is_postponed:
            self._hand_out()

    def _ran(self, name: str, worker: QueuedWorker, position: Position, said: Over, now_s: float) -> None:
        # Who has only waited for this goes on before anything is thought about.
        for each in self._workers.values():
            each.go_on(self._push)
        test = worker.queue.last_ran = position.test
        self._scopes.ran(name)
        if said[7] and position.assignment is not None:
            shares = {share.key: share.memory_bytes for share in position.assignment.shares}
            start_s = now_s - said[2] + said[3]
            hold = Hold(test=test, worker=name, start_s=start_s, end_s=now_s, keys=tuple(said[7]), memory_bytes=shares)
            self.holds.append(hold)
        unit = self._unit_of(test)
        first = unit is not None and unit != worker.unit
        worker.unit = unit
        self._engine.finished(name, test, now_s, setup_s=said[4] if first else None)
        self._measured(test, said, first)
        following = worker.queue.positions[0] if worker.queue.positions else None
        if following is not None and following.state == "granted":
            self._engine.started(name, following.test, now_s)

    def _was_refused(self, name: str, worker: QueuedWorker, position: Position, said: Over, now_s: float) -> None:
        worker.refusals += 1
        self._take_back(name, position.test, said[7], now_s)
        self._avoided.note(self._sites[name], said[7], now_s)

    def _take_back(self, name: str, test: int, keys: Collection[str], now_s: float) -> None:
        """Have all assignments of a worker go back, of which this test is the first."""
        self._engine.refused(name, test, tuple(keys), now_s)
        for each in take_back(self._workers[name], self._push):
            self._unblock(name, each)

    def _unblock(self, name: str, test: int | None) -> None:
        """Nobody waits any more for what a worker held for a test, or (None) for any."""
        for other in self._workers.values():
            other.queue.unblock(name, test)

    def _hand_out(self) -> None:
        self._is_postponed = False
        now_s = self._clock()
        self._avoided.ask_again(now_s)
        made = self._engine.decide(now_s)
        if not made and self._avoided and not self._engine.is_done and self._nobody_runs():
            if self._scopes.end(self._workers, self._engine.pending):
                return
            # Everything that is left wants devices of other sessions: workers wait for them in the kernel's queues.
            self._patient.update(self._engine.pending)
            self._avoided.ask_again(now_s, at_once=True)
            made = self._engine.decide(now_s)
        orders: dict[str, Orders] = {}
        for assignment in made:
            self._assign(assignment, orders.setdefault(assignment.worker, Orders()))
        for name, worker in tuple(self._workers.items()):
            self._complete(name, worker, orders.setdefault(name, Orders()), now_s)
        heads = {name: worker.queue.positions[0] for name, worker in self._workers.items() if worker.queue.positions}
        waiting = [head for head in heads.values() if head.waits and head.state == "granted"]
        if any(head.test in self._patient and not head.has_begun for head in waiting):  # perhaps for a scope of ours
            for name in self._scopes.blocked(self._workers):
                self._take_back(name, heads[name].test, (), now_s)
        if waiting:
            self._scopes.end(self._workers, self._engine.pending)

    def _assign(self, assignment: Assignment, orders: Orders) -> None:
        worker = self._workers[assignment.worker]
        if worker.queue.is_closed:
            return  # it will be forgotten when its last test is over, and what it was assigned goes elsewhere
        position = worker.queue.assign(assignment, orders)
        position.waits = assignment.test in self._patient
        await_blockers(self._workers, position, self._push)

    def _complete(self, name: str, worker: QueuedWorker, orders: Orders, now_s: float) -> None:
        """Let a queue end in a prediction, or end it; grant what may run; tell the worker."""
        queue = worker.queue
        if queue.needs_prediction:
            following = guess(self._engine, name, queue)
            if following is None:
                queue.positions[-1].waits = True  # it could not give the test back to anybody
            else:
                queue.predict(following, orders)
            queue.grant(orders)
            # Not before it is the first: what comes before it may be refused, and then it goes back.
            closes = following is None and len(queue.positions) == 1 and queue.positions[0].state == "granted"
        else:
            queue.grant(orders)
            closes = queue.is_idle and not queue.is_closed and not self._engine.left
        if queue.positions and queue.positions[0] in orders.run:
            self._engine.started(name, queue.positions[0].test, now_s)
        worker.tell(self._push, orders)
        if closes:
            worker.node.shutdown()

    def _close(self, worker: QueuedWorker) -> None:
        """Let a worker end: what was granted runs, everything else is passed by."""
        with self._lock:
            queue = worker.queue
            if not queue.is_closed:
                queue.is_closed = True
                orders = Orders()
                for position in queue.positions:
                    if position.state in {"predicted", "assigned"}:
                        position.state = "cancelled"
                        orders.cancel.append(position.number)
                worker.tell(self._push, orders)
            worker.shutdown()

    def _retire_surplus(self) -> None:
        """Count out workers that have nothing to do yet and will not be needed."""
        for name in self._surplus.choose(self._workers, self._engine.useful_workers):
            del self._workers[name]
            self._engine.worker_down(name, self._clock())

    def _nobody_runs(self) -> bool:
        return all(worker.queue.is_idle for worker in self._workers.values())
