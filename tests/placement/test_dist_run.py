"""What a run tells its workers, whatever they do and in whichever order they do it: every test runs, and runs once."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist.model.groups import Group
from pytest_gpucoexist.model.machine import Gpu, Machine
from pytest_gpucoexist.model.requirement import Requirement
from pytest_gpucoexist.placement.engine import Engine
from pytest_gpucoexist.placement.engine.values import Demand, Device, Site, Test, Unit
from pytest_gpucoexist.placement.scheduler_run import Run
from pytest_gpucoexist.placement.transport import RAN
from tests.placement.xdist_fakes import FakeWorker

if TYPE_CHECKING:
    from pytest_gpucoexist.placement.transport import Over

KEYS = ("a", "b", "c", "d")
MACHINE = Machine(name="m", gpus=tuple(Gpu(id=key, pci_address=key) for key in KEYS))


def demand(count: int) -> Demand:
    return Demand(groups=(Group(requirement=Requirement(count=count), candidates=KEYS),))


SITE = Site(
    name="m",
    machine=MACHINE,
    devices=tuple(Device(key=key) for key in KEYS),
    demands=(demand(1), demand(2), demand(4)),
)


@dataclass
class Stage:
    """A suite, its workers, and what they did."""

    tests: list[Test]
    units: tuple[Unit, ...] = ()
    outside: set[str] = field(default_factory=set)
    now_s: float = 0.0
    keep_order: bool = False
    keeps: bool = False

    def __post_init__(self) -> None:
        self.ids = [f"test_{test.id}" for test in self.tests]
        self.workers: dict[str, FakeWorker] = {}
        self.log: list[tuple[str, str, tuple[str, ...]]] = []
        self.blamed: list[str] = []
        self.coming = 0
        engine = Engine(self.tests, units=self.units, sites=[SITE], keep_order=self.keep_order)
        self.run = Run(
            engine,
            self.ids,
            lambda worker, verb, value: self.workers[worker].hear(verb, value),
            unit_of=lambda test: self.tests[test].unit,
            place=lambda _worker: {"site": "m"},
            coming=lambda: self.coming > 0,
            clock=lambda: self.now_s,
        )

    def start(self, name: str, collection: list[str] | None = None) -> FakeWorker:
        worker = FakeWorker(
            name=name,
            collection=collection or self.ids,
            outside=self.outside,
            log=self.log,
            peers=self.workers,
            keeps=self.keeps,
        )
        self.workers[name] = worker
        self.run.add_worker(name, worker, worker.collection)
        return worker

    def begin(self, count: int) -> None:
        for number in range(count):
            self.start(f"gw{number}")
        self.run.go_on()

    def check(self) -> None:
        held = Counter(key for worker in self.workers.values() for key in worker.keys)
        assert max(held.values(), default=0) <= 1, f"held twice: {held}"

    def finish(self, chance: random.Random | None = None, crashes: int = 0) -> None:
        """Let workers step in any order until nothing moves; some die and are replaced."""
        order = chance or random.Random(0)
        while True:
            self.now_s += 0.01
            moved = False
            workers = list(self.workers.values())
            order.shuffle(workers)
            for worker in workers:
                if crashes and not worker.is_over and order.random() < 0.02:
                    crashes -= 1
                    worker.is_dead = moved = True
                elif worker.is_dead and not worker.is_over:
                    blamed = worker.die(self.run)
                    self.blamed += [blamed] if blamed is not None else []
                    self.start(f"gw{len(self.workers)}", worker.collection)
                    self.run.go_on()
                    moved = True
                elif order.random() < 0.7:
                    moved |= worker.step(self.run)
                self.check()
            if self.run.is_finished:
                for worker in workers:
                    if not worker.shutting_down:
                        worker.shutdown()
            if not moved and not any(worker.step(self.run) for worker in self.workers.values()):
                break


def suite(chance: random.Random, count: int = 60) -> tuple[list[Test], tuple[Unit, ...]]:
    units = tuple(
        Unit(name=f"u{number}", demand=0 if number % 2 else None, divisible=number != 2) for number in range(4)
    )
    tests = []
    for number in range(count):
        unit = f"u{number // 10}" if number < 40 and chance.random() < 0.7 else None
        wanted = 0 if unit is not None else chance.choice([None, 0, 0, 0, 1, 2])
        tests.append(Test(id=number, demand=wanted, unit=unit, duration_s=chance.choice([None, 0.1, 1.0, 3.0])))
    return tests, units


@pytest.mark.parametrize("seed", range(25))
def test_every_test_runs_once(seed: int) -> None:
    chance = random.Random(seed)
    stage = Stage(*suite(chance))
    stage.begin(chance.choice([1, 2, 3, 8]))
    stage.finish(chance)
    assert Counter(nodeid for _, nodeid, _ in stage.log) == Counter(stage.ids)
    assert stage.run.is_finished
    assert all(worker.is_over for worker in stage.workers.values())


@pytest.mark.parametrize("seed", range(25))
def test_crashes_cost_the_tests_that_ran_and_no_others(seed: int) -> None:
    chance = random.Random(1000 + seed)
    stage = Stage(*suite(chance))
    stage.begin(4)
    stage.finish(chance, crashes=5)
    runs = Counter(nodeid for _, nodeid, _ in stage.log)
    assert set(runs) | set(stage.blamed) == set(stage.ids)
    assert max(runs.values()) == 1
    assert stage.run.is_finished


@pytest.mark.parametrize("seed", range(25))
def test_what_another_session_holds_is_waited_for_when_nothing_else_is_left(seed: int) -> None:
    chance = random.Random(2000 + seed)
    stage = Stage(*suite(chance), outside={"a", "c"})
    stage.begin(4)
    stage.finish(chance)
    ran = {nodeid for _, nodeid, _ in stage.log}
    left = set(stage.ids) - ran
    assert left, "tests that need all devices cannot have run"
    stage.outside.clear()
    stage.finish(chance)
    assert Counter(nodeid for _, nodeid, _ in stage.log) == Counter(stage.ids)


def test_a_worker_without_a_test_gives_back_what_its_scopes_keep() -> None:
    tests = [*(Test(id=number, demand=0) for number in range(6)), *(Test(id=number, demand=2) for number in (6, 7))]
    stage = Stage(tests, keeps=True, keep_order=True)
    stage.begin(4)
    stage.finish()
    assert Counter(nodeid for _, nodeid, _ in stage.log) == Counter(stage.ids)
    assert stage.run.is_finished


@pytest.mark.parametrize("seed", range(25))
def test_who_waits_for_a_scope_is_not_waited_for_by_who_keeps_it(seed: int) -> None:
    chance = random.Random(3000 + seed)
    stage = Stage(*suite(chance), keeps=True)
    stage.begin(3)
    stage.finish(chance)
    assert Counter(nodeid for _, nodeid, _ in stage.log) == Counter(stage.ids)
    assert stage.run.is_finished


def test_a_prediction_does_not_run_before_it_is_granted() -> None:
    stage = Stage([Test(id=0, demand=2), Test(id=1, demand=2), Test(id=2, demand=2)])
    stage.begin(2)
    while stage.workers["gw0"].step(stage.run) and stage.workers["gw0"].running is None:
        pass
    while stage.workers["gw1"].step(stage.run):
        pass
    assert [nodeid for _, nodeid, _ in stage.log] == ["test_0"]


def test_a_run_that_is_stopped_keeps_nobody_waiting() -> None:
    stage = Stage([Test(id=number, demand=2) for number in range(9)])
    stage.begin(3)
    while not stage.log:
        for worker in stage.workers.values():
            worker.step(stage.run)
    for worker in tuple(stage.workers.values()):
        worker.shutdown()  # as pytest-xdist does after the first failure with -x
    stage.finish()
    assert all(worker.is_over for worker in stage.workers.values())
    assert len(stage.log) < 4


def test_a_worker_is_given_only_what_it_collected() -> None:
    stage = Stage([Test(id=number, demand=0) for number in range(8)])
    stage.start("gw0", stage.ids[:5])
    stage.start("gw1", stage.ids[::-1])
    stage.run.go_on()
    stage.finish()
    assert Counter(nodeid for _, nodeid, _ in stage.log) == Counter(stage.ids)
    assert {nodeid for name, nodeid, _ in stage.log if name == "gw0"} <= set(stage.ids[:5])


def test_tests_that_nobody_collected_any_more_end_the_run() -> None:
    stage = Stage([Test(id=number, demand=0) for number in range(8)])
    stage.start("gw0", stage.ids[:5])
    lonely = stage.start("gw1", stage.ids)
    stage.run.go_on()
    lonely.die(stage.run)
    stage.coming = 1
    for _ in range(100):
        stage.workers["gw0"].step(stage.run)
    while_one_is_coming = stage.run.is_finished, stage.run.stranded
    stage.coming = 0
    stage.finish()
    assert while_one_is_coming == (False, ())
    assert stage.run.is_finished
    assert stage.run.stranded == ("test_5", "test_6", "test_7")


def test_a_worker_that_dies_while_it_passes_a_position_by_is_blamed_on_what_ran_before() -> None:
    stage = Stage([Test(id=number, demand=2) for number in range(3)])
    stage.begin(1)
    worker = stage.workers["gw0"]
    while not stage.log:
        worker.step(stage.run)
    worker.shutdown()  # takes back every guess
    worker.step(stage.run)
    worker.step(stage.run)
    assert worker.at == 1
    assert worker.words[1] is None
    assert worker.die(stage.run) == "test_0"


def test_a_test_that_was_granted_but_had_not_begun_is_not_to_blame() -> None:
    stage = Stage([Test(id=number, demand=0) for number in range(4)])
    stage.begin(1)
    worker = stage.workers["gw0"]
    while not stage.log:
        worker.step(stage.run)
    worker.step(stage.run)
    assert worker.words[1] is not None, "the next test may begin"
    assert worker.die(stage.run) == stage.log[0][1]
    stage.start("gw1")
    stage.run.go_on()
    stage.finish()
    assert Counter(nodeid for _, nodeid, _ in stage.log) == Counter(stage.ids)


def test_surplus_workers_run_nothing_and_end_one_by_one_while_the_others_are_at_work() -> None:
    stage = Stage([Test(id=number, demand=0) for number in range(20)])
    stage.begin(7)
    ending = [0]
    while len(stage.log) < 5:
        for worker in tuple(stage.workers.values()):
            worker.step(stage.run)
            now = sum(worker.shutting_down for worker in stage.workers.values())
            assert now - ending[-1] in {0, 1}
            ending.append(now)
    assert ending[-1] == 3
    stage.finish()
    assert len({name for name, _, _ in stage.log}) == 4


def test_words_that_overtake_each_other_count_in_the_order_of_positions() -> None:
    stage = Stage([Test(id=number, demand=1) for number in range(8)])
    stage.begin(1)
    worker = stage.workers["gw0"]
    while worker.running is None:
        assert worker.step(stage.run)
    later: Over = (1, RAN, 0.01, 0.0, 0.0, 0.01, True, ["a", "b"])
    stage.run.over("gw0", later)
    assert stage.run.holds == [], "what came before is not over, as far as is known"
    stage.run.over("gw0", (0, *later[1:]))
    assert len(stage.run.holds) == 2
    stage.run.over("gw0", later)
    stage.run.over("gw0", (0, *later[1:]))
    assert len(stage.run.holds) == 2, "each counts once"


@pytest.mark.parametrize("count", [1, 3, 6])
def test_a_run_goes_on_where_nobody_hears_that_a_test_is_set_up(count: int) -> None:
    stage = Stage([Test(id=number, demand=number % 3) for number in range(20)])
    stage.begin(count)
    for worker in stage.workers.values():
        worker.reports = False
    stage.finish()
    assert Counter(nodeid for _, nodeid, _ in stage.log) == Counter(stage.ids)


def test_a_test_that_a_plugin_wants_again_runs_again() -> None:
    stage = Stage([Test(id=number, demand=0) for number in range(4)])
    stage.begin(1)
    while not stage.log:
        stage.workers["gw0"].step(stage.run)
    blamed = stage.workers["gw0"].die(stage.run)
    assert blamed == stage.log[0][1]
    stage.run.again(blamed)
    stage.start("gw1")
    stage.run.go_on()
    stage.finish()
    assert Counter(nodeid for _, nodeid, _ in stage.log)[blamed] == 2
    assert {nodeid for _, nodeid, _ in stage.log} == set(stage.ids)
