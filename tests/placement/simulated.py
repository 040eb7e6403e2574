"""Workers, devices and a controller that take time, in no time: drives the engine and watches what it does.

Every hold is checked against the capacity of its devices; what a run comes to is its span, from the first hold to the
end of the last one.
"""

from __future__ import annotations

import heapq
import itertools
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.model.groups import Group
from pytest_gpucoexist.model.machine import Gpu, Machine
from pytest_gpucoexist.model.requirement import Requirement
from pytest_gpucoexist.placement.engine.values import Assignment, Demand, Device, Site, Test

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpucoexist.placement.engine import Engine

GIB = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Times:
    """What things cost, in seconds. With `hand_over_s` None a successor hears from the controller, else from a lock."""

    message_s: float = 0.0005
    before_s: float = 0.0015
    inside_s: float = 0.003
    teardown_s: float = 0.001
    hand_over_s: float | None = 0.0005


@dataclass(kw_only=True)
class Outcome:
    """What a run came to."""

    span_s: float
    ran: list[tuple[int, str, float, float]]
    setups: int
    decisions_s: list[float]
    skipped: list[int]
    crashed: list[int]
    ended_s: float


@dataclass(eq=False)
class _Worker:
    name: str
    queue: list[Assignment] = field(default_factory=list)
    running: Assignment | None = None
    ready_s: float = 0.0
    unit: str | None = None
    generation: int = 0


class Simulation:
    """One run. `actual_s` are the durations that happen, whatever the engine expects; `setups_s` of units likewise."""

    def __init__(
        self,
        engine: Engine,
        site: Site,
        tests: Sequence[Test],
        workers: int,
        *,
        actual_s: Mapping[int, float],
        setups_s: Mapping[str, float] | None = None,
        times: Times | None = None,
        crashes: int = 0,
        refusals: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.engine = engine
        self.site = site
        self.tests = {test.id: test for test in tests}
        self.actual_s = actual_s
        self.setups_s = dict(setups_s or {})
        self.times = times or Times()
        self.random = random.Random(seed)
        self.refusals = refusals
        self.now_s = 0.0
        self._events: list[tuple[float, int, str, Any]] = []
        self._number = itertools.count()
        self._workers: dict[str, _Worker] = {}
        self._over: set[tuple[str, int]] = set()
        self._in_use: dict[str, dict[tuple[str, int], int]] = {device.key: {} for device in site.devices}
        self._capacity = {device.key: device.capacity_bytes or 1 for device in site.devices}
        self._names = itertools.count()
        self.ran: list[tuple[int, str, float, float]] = []
        self.skipped: list[int] = []
        self.crashed: list[int] = []
        self.setups = 0
        self.decisions_s: list[float] = []
        for _ in range(workers):
            self._up()
        for _ in range(crashes):
            self._at(self.random.uniform(0.01, 2.0), "crash", None)

    def _at(self, when_s: float, kind: str, what: Any) -> None:
        heapq.heappush(self._events, (when_s, next(self._number), kind, what))

    def _up(self) -> None:
        name = f"gw{next(self._names)}"
        self._workers[name] = _Worker(name, ready_s=self.now_s)
        self.engine.worker_up(name, self.site.name)

    def run(self) -> Outcome:
        """Go on until nothing happens any more."""
        self._decide()
        while self._events:
            self.now_s, _, kind, what = heapq.heappop(self._events)
            getattr(self, f"_{kind}")(what)
        starts = [start for _, _, start, _ in self.ran]
        ends = [end for _, _, _, end in self.ran]
        return Outcome(
            span_s=max(ends) - min(starts) if ends else 0.0,
            ran=self.ran,
            setups=self.setups,
            decisions_s=self.decisions_s,
            skipped=self.skipped,
            crashed=self.crashed,
            ended_s=self.now_s,
        )

    def _decide(self, _: None = None) -> None:
        began = time.perf_counter()
        made = self.engine.decide(self.now_s)
        self.decisions_s.append(time.perf_counter() - began)
        for assignment in made:
            self._over.discard((assignment.worker, assignment.test))
            self._at(self.now_s + self.times.message_s, "arrive", (assignment, self._workers[assignment.worker]))

    # What happens to a worker

    def _arrive(self, what: tuple[Assignment, _Worker]) -> None:
        assignment, worker = what
        if self._workers.get(worker.name) is not worker:
            return
        if not any(assignment is each for each in self.engine.assigned(worker.name)):
            return  # taken back while the word was on its way
        first = self.engine.assigned(worker.name)[0] is assignment
        if assignment.devices and first and self.random.random() < self.refusals and not worker.queue:
            self._over |= {(worker.name, each.test) for each in self.engine.assigned(worker.name)}
            self.engine.refused(worker.name, assignment.test, assignment.keys[:1], self.now_s)
            for other in self._workers.values():
                self._at(self.now_s + self.times.message_s, "start", other)
            self._at(self.now_s + 0.05, "freed", assignment.keys[:1])
            self._decide()
            return
        worker.queue.append(assignment)
        self._start(worker)

    def _freed(self, keys: tuple[str, ...]) -> None:
        self.engine.freed(self.site.name, keys, self.now_s)
        self._decide()

    def _start(self, worker: _Worker) -> None:
        if self._workers.get(worker.name) is not worker or worker.running is not None or not worker.queue:
            return
        if self.now_s < worker.ready_s:
            self._at(worker.ready_s, "start", worker)
            return
        assignment = worker.queue[0]
        if any(who not in self._over and who[0] in self._workers for who in assignment.after):
            return  # its end starts this
        if self.times.hand_over_s is None and any(
            who != worker.name and (other := self.engine.assigned(who)) and other[0].test == test
            for who, test in assignment.after
            if who in self._workers
        ):
            return  # the controller has not heard of that end
        worker.queue.pop(0)
        worker.running = assignment
        test = self.tests[assignment.test]
        seconds = self.times.inside_s + (0.0 if assignment.unmet else self.actual_s[test.id])
        setup_s = None
        if test.unit is not None and worker.unit != test.unit:
            setup_s = self.setups_s.get(test.unit, 0.0)
            seconds += setup_s
            self.setups += 1
        worker.unit = test.unit
        self._hold(assignment)
        end_s = self.now_s + seconds
        what = worker, assignment, self.now_s, setup_s
        self._at(max(self.now_s, end_s - self.times.teardown_s) + self.times.message_s, "ending", what)
        self._at(end_s, "end", what)

    def _hold(self, assignment: Assignment) -> None:
        shares = {share.key: share.memory_bytes for share in assignment.shares}
        for key in assignment.keys:
            uses = self._in_use[key]
            uses[assignment.worker, assignment.test] = shares.get(key, self._capacity[key])
            if sum(uses.values()) > self._capacity[key]:
                raise AssertionError(f"{key} is over its capacity at {self.now_s}: {uses}")

    def _let_go(self, assignment: Assignment) -> None:
        for key in assignment.keys:
            del self._in_use[key][assignment.worker, assignment.test]

    def _ending(self, what: tuple[_Worker, Assignment, float, float | None]) -> None:
        worker, assignment, *_ = what
        if worker.running is assignment and self._workers.get(worker.name) is worker:
            self.engine.ending(worker.name, assignment.test, self.now_s)
            self._decide()

    def _end(self, what: tuple[_Worker, Assignment, float, float | None]) -> None:
        worker, assignment, start_s, setup_s = what
        if worker.running is not assignment or self._workers.get(worker.name) is not worker:
            return
        worker.running = None
        worker.ready_s = self.now_s + self.times.before_s
        self._let_go(assignment)
        self._over.add((worker.name, assignment.test))
        self.ran.append((assignment.test, worker.name, start_s, self.now_s))
        if assignment.unmet:
            self.skipped.append(assignment.test)
        self._at(self.now_s + self.times.message_s, "report", (worker, assignment, setup_s))
        self._at(worker.ready_s, "start", worker)
        self._wake()

    def _wake(self) -> None:
        """Whoever waits for a lock finds it free."""
        if self.times.hand_over_s is not None:
            for other in self._workers.values():
                if other.queue and other.running is None:
                    self._at(self.now_s + self.times.hand_over_s, "start", other)

    def _report(self, what: tuple[_Worker, Assignment, float | None]) -> None:
        worker, assignment, setup_s = what
        if self._workers.get(worker.name) is not worker:
            return
        self.engine.finished(worker.name, assignment.test, self.now_s, setup_s=setup_s)
        self._decide()
        if self.times.hand_over_s is None:
            for other in self._workers.values():
                self._at(self.now_s + self.times.message_s, "start", other)

    def _deliver(self, worker: _Worker) -> None:
        """What a worker said before it died still arrives."""
        for event in [each for each in sorted(self._events) if each[2] == "report" and each[3][0] is worker]:
            self._events.remove(event)
            heapq.heapify(self._events)
            self._report(event[3])

    def _crash(self, _: None) -> None:
        running = [worker for worker in self._workers.values() if worker.running is not None]
        if not running:
            return
        worker = self.random.choice(running)
        assert worker.running is not None
        self._deliver(worker)
        del self._workers[worker.name]
        self._let_go(worker.running)
        down = self.engine.worker_down(worker.name, self.now_s, began=worker.running.test)
        assert down.running == worker.running.test
        self.crashed.append(worker.running.test)
        self._at(self.now_s + 0.2, "replace", None)
        for other in self._workers.values():
            self._at(self.now_s + self.times.message_s, "start", other)
        self._decide()

    def _replace(self, _: None) -> None:
        self._up()
        self._decide()


# Machines and demands


def machine(vendors: Sequence[str], gib: float = 24, nodes: int = 1) -> Machine:
    """Return one with a device for each vendor named, spread over NUMA nodes."""
    gpus = tuple(
        Gpu(
            id=f"{vendor}{number}",
            pci_address=f"0000:{number + 1:02x}:00.0",
            vendor=vendor,  # type: ignore[arg-type]
            kind="discrete",
            memory_total_bytes=int(gib * GIB),
            numa_node=number % nodes,
        )
        for number, vendor in enumerate(vendors)
    )
    return Machine(name="simulated", gpus=gpus)


def group(there: Machine, vendor: str | None = None, count: int = 1, gib: float | None = None, **more: Any) -> Group:
    """Return what a mark would ask for."""
    memory = None if gib is None else int(gib * GIB)
    requirement = Requirement(vendor=vendor, count=count, memory_bytes=memory, **more)  # type: ignore[arg-type]
    keys = tuple(gpu.key for gpu in there.gpus if vendor in {None, gpu.vendor})
    return Group(requirement=requirement, candidates=keys)


def site(there: Machine, demands: Sequence[Demand | None]) -> Site:
    """Return a machine as the engine sees it."""
    devices = tuple(
        Device(key=gpu.key, capacity_bytes=gpu.memory_total_bytes, vendor=gpu.vendor, numa_node=gpu.numa_node)
        for gpu in there.gpus
    )
    return Site(name=there.name, machine=there, devices=devices, demands=tuple(demands))
