"""What the scheduler decides, case by case."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given

from pytest_gpucoexist.model.groups import Group
from pytest_gpucoexist.model.requirement import Requirement
from pytest_gpucoexist.placement.engine import Engine
from pytest_gpucoexist.placement.engine.values import Assignment, Demand, Device, Site, Test, Unit
from tests.placement.simulated import GIB, Simulation, Times, group, machine, site
from tests.placement.test_engine_runs import MANY, Case, cases

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpucoexist.model.machine import Machine


def _engine(
    there: Machine,
    demands: Sequence[Demand | None],
    tests: Sequence[Test],
    *,
    workers: int,
    units: Sequence[Unit] = (),
    keep_order: bool = False,
) -> tuple[Engine, Site]:
    place = site(there, demands)
    engine = Engine(tests, units=units, sites=[place], keep_order=keep_order)
    for number in range(workers):
        engine.worker_up(f"gw{number}", place.name)
    return engine, place


def _given(made: Sequence[Assignment]) -> dict[int, Assignment]:
    return {each.test: each for each in made}


def test_the_longest_is_first_and_equals_keep_the_order_of_the_suite() -> None:
    there = machine(["nvidia"])
    whole = Demand(groups=(group(there),))
    tests = [Test(id=number, demand=0, duration_s=seconds) for number, seconds in enumerate([1, 2, 5, 2])]
    engine, _ = _engine(there, [whole], tests, workers=1)
    order: list[int] = []
    for _ in tests:
        (given_now,) = engine.decide(float(len(order)))
        order.append(given_now.test)
        engine.finished("gw0", given_now.test, float(len(order)))
    assert order == [2, 1, 3, 0]
    assert engine.is_done


def test_shares_are_packed_so_that_a_whole_device_stays_free() -> None:
    there = machine(["nvidia", "nvidia", "nvidia"])
    share, whole = Demand(groups=(group(there, gib=8),)), Demand(groups=(group(there),))
    tests = [Test(id=number, demand=0, duration_s=9) for number in range(3)] + [Test(id=3, demand=1, duration_s=1)]
    engine, _ = _engine(there, [share, whole], tests, workers=4)
    made = _given(engine.decide(0.0))
    assert len({made[number].keys for number in range(3)}) == 1
    assert {each.memory_bytes for number in range(3) for each in made[number].shares} == {8 << 30}
    assert made[3].shares == ()
    assert not set(made[3].keys) & set(made[0].keys)


def test_a_wide_test_comes_before_longer_narrow_ones() -> None:
    there = machine(["nvidia", "nvidia"])
    one, two = Demand(groups=(group(there),)), Demand(groups=(group(there, count=2),))
    tests = [Test(id=0, demand=0, duration_s=10), Test(id=1, demand=0, duration_s=4)]
    tests += [Test(id=2, demand=1, duration_s=3), Test(id=3, demand=0, duration_s=8)]
    engine, _ = _engine(there, [one, two], tests, workers=4)
    first = _given(engine.decide(0.0))
    assert set(first) == {2}, "two devices for three seconds are more urgent than one for ten"
    engine.finished(first[2].worker, 2, 3.0)
    assert set(_given(engine.decide(3.0))) == {0, 3}


def test_devices_are_kept_for_a_wide_test_that_waits() -> None:
    there = machine(["nvidia", "nvidia"])
    one, two = Demand(groups=(group(there),)), Demand(groups=(group(there, count=2),))
    tests = [
        Test(id=0, demand=0, duration_s=100),
        Test(id=1, demand=1, duration_s=20),
        Test(id=2, demand=0, duration_s=15),
        Test(id=3, demand=0, duration_s=5),
    ]
    engine, _ = _engine(there, [one, two], tests, workers=4)
    engine._rehearsed = True  # which would begin with the wide one
    made = _given(engine.decide(0.0))
    assert 0 in made
    assert 1 not in made
    assert {2, 3} & set(made) == {2}, "it ends before the wide one could begin"
    engine.finished(made[2].worker, 2, 98.0)  # it took far longer
    assert engine.decide(98.0) == (), "five seconds are too long now"
    engine.finished(made[0].worker, 0, 100.0)
    assert set(_given(engine.decide(100.0))) == {1}


def test_a_successor_is_named_for_a_test_that_is_about_to_end() -> None:
    there = machine(["nvidia"])
    whole = Demand(groups=(group(there),))
    tests = [Test(id=number, demand=0, duration_s=60 - number) for number in range(3)]
    engine, _ = _engine(there, [whole], tests, workers=2)
    assert [(each.worker, each.test, each.after) for each in engine.decide(0.0)] == [("gw0", 0, ())]
    engine.ending("gw0", 0, 59.0)
    assert [(each.worker, each.test, each.after) for each in engine.decide(59.0)] == [("gw1", 1, (("gw0", 0),))]
    engine.finished("gw0", 0, 60.0)
    assert engine.decide(60.0) == ()
    assert engine.began_s("gw1") == 60.0


def test_a_worker_goes_on_with_its_unit_and_nobody_else_gets_its_device() -> None:
    there = machine(["nvidia", "nvidia"])
    whole = Demand(groups=(group(there),))
    tests = [Test(id=number, demand=0, unit="model", duration_s=0.3) for number in range(4)]
    tests += [Test(id=number, demand=0, duration_s=1) for number in range(4, 12)]
    units = [Unit(name="model", demand=0, setup_s=30)]
    engine, place = _engine(there, [whole], tests, workers=0, units=units)
    outcome = Simulation(
        engine, place, tests, 3, actual_s={test.id: test.duration_s or 0 for test in tests}, setups_s={"model": 30}
    ).run()
    assert outcome.setups == 1
    assert len({worker for test, worker, *_ in outcome.ran if test < 4}) == 1


@pytest.mark.parametrize(("setup_s", "divisible", "setups"), [(0.5, True, 2), (60.0, True, 1), (0.5, False, 1)])
def test_a_unit_is_split_when_a_worker_idles_and_it_pays(setup_s: float, divisible: bool, setups: int) -> None:
    there = machine(["nvidia", "nvidia"])
    tests = [Test(id=number, demand=0, unit="model", duration_s=1) for number in range(8)]
    units = [Unit(name="model", demand=0, setup_s=setup_s, divisible=divisible)]
    engine, place = _engine(there, [Demand(groups=(group(there),))], tests, workers=0, units=units)
    outcome = Simulation(
        engine, place, tests, 2, actual_s=dict.fromkeys(range(8), 1.0), setups_s={"model": setup_s}
    ).run()
    assert outcome.setups == setups
    assert engine.statistics(99.0).setups == {"model": setups}


def test_a_scarce_vendor_is_left_to_those_who_need_it() -> None:
    there = machine(["amd", "nvidia"])
    anyone, amd = Demand(groups=(group(there),)), Demand(groups=(group(there, "amd"),))
    tests = [Test(id=0, demand=0, duration_s=9), *(Test(id=number, demand=1, duration_s=5) for number in range(1, 5))]
    engine, place = _engine(there, [anyone, amd], tests, workers=2)
    made = _given(engine.decide(0.0))
    assert made[0].keys == (place.devices[1].key,)


def test_a_refused_device_is_avoided_until_it_is_free() -> None:
    there = machine(["nvidia"])
    engine, place = _engine(there, [Demand(groups=(group(there),))], [Test(id=0, demand=0)], workers=1)
    (made,) = engine.decide(0.0)
    engine.refused("gw0", 0, made.keys, 0.1)
    assert engine.decide(0.1) == ()
    assert engine.pending == (0,)
    engine.freed(place.name, made.keys, 2.0)
    assert [each.test for each in engine.decide(2.0)] == [0]


def test_lost_devices_send_tests_elsewhere_or_make_them_unmet() -> None:
    there = machine(["nvidia", "nvidia"])
    one, two = Demand(groups=(group(there),)), Demand(groups=(group(there, count=2),))
    engine, place = _engine(there, [one, two], [Test(id=0, demand=0), Test(id=1, demand=1)], workers=2)
    lost = place.devices[0].key
    assert engine.lost(place.name, [lost], "fell off the bus", 0.0) == (1,)
    made = _given(engine.decide(0.0))
    assert made[0].keys == (place.devices[1].key,)
    assert made[1].keys == ()
    assert made[1].unmet == f"no machine has what it needs any more: {lost}: fell off the bus"


def test_a_test_goes_only_to_a_machine_that_has_what_it_needs() -> None:
    here, far = machine(["nvidia"]), machine(["amd"])
    needs = [(group(here, "nvidia"),), (group(far, "amd"),)]
    near_site = site(here, [Demand(groups=needs[0]), None])
    far_site = Site(name="far", machine=far, devices=site(far, []).devices, demands=(None, Demand(groups=needs[1])))
    engine = Engine([Test(id=0, demand=0), Test(id=1, demand=1)], sites=[near_site, far_site])
    engine.worker_up("far0", "far")
    engine.worker_up("near0", near_site.name)
    assert {each.test: (each.worker, each.unmet) for each in engine.decide(0.0)} == {
        0: ("near0", None),
        1: ("far0", None),
    }


def test_what_only_a_dead_machine_had_is_unmet_once_nobody_replaces_it() -> None:
    here, far = machine(["nvidia"]), machine(["amd"])
    near_site = site(here, [None])
    far_site = Site(name="far", machine=far, devices=site(far, []).devices, demands=(Demand(groups=(group(far),)),))
    engine = Engine([Test(id=0, demand=0)], sites=[near_site, far_site])
    engine.worker_up("near0", near_site.name)
    engine.worker_up("far0", "far")
    engine.worker_down("far0", 0.0)
    assert engine.decide(0.0) == ()
    engine.worker_up("far1", "far")
    engine.worker_down("far1", 1.0, replaced=False)
    (made,) = engine.decide(1.0)
    assert made.worker == "near0"
    assert made.unmet is not None


def test_parts_of_a_card_and_the_whole_card_exclude_each_other() -> None:
    there = machine(["nvidia", "nvidia", "nvidia"])
    card, *parts = [gpu.key for gpu in there.gpus]
    devices = (
        Device(key=card, capacity_bytes=80),
        *(Device(key=key, capacity_bytes=40, parent=card) for key in parts),
    )
    part = Demand(groups=(Group(requirement=Requirement(), candidates=tuple(parts)),))
    whole = Demand(groups=(Group(requirement=Requirement(), candidates=(card,)),))
    place = Site(name="mig", machine=there, devices=devices, demands=(part, whole))
    tests = [Test(id=0, demand=0, duration_s=9), Test(id=1, demand=0, duration_s=8), Test(id=2, demand=1, duration_s=1)]
    engine = Engine(tests, sites=[place])
    for number in range(3):
        engine.worker_up(f"gw{number}", "mig")
    assert set(_given(engine.decide(0.0))) == {0, 1}
    engine.finished("gw0", 0, 5.0)
    assert engine.decide(5.0) == ()
    engine.finished("gw1", 1, 8.0)
    assert set(_given(engine.decide(8.0))) == {2}
    assert engine.lost("mig", [card], "unfit", 9.6) == ()


def test_a_crash_gives_back_what_had_not_begun() -> None:
    there = machine(["nvidia"])
    tests = [Test(id=number, demand=0, unit="model", duration_s=1) for number in range(4)]
    units = [Unit(name="model", demand=0, setup_s=1)]
    engine, _ = _engine(there, [Demand(groups=(group(there),))], tests, workers=2, units=units)
    engine.decide(0.0)
    down = engine.worker_down("gw0", 0.5)
    assert (down.running, down.returned) == (0, (1,))
    assert [(each.worker, each.test) for each in engine.decide(0.5)] == [("gw1", 1), ("gw1", 2)]


def test_surplus_workers_are_those_that_no_device_and_no_other_test_needs() -> None:
    there = machine(["nvidia", "nvidia", "amd"])
    demands = [Demand(groups=(group(there, "nvidia"),))]
    tests = [Test(id=number, demand=0) for number in range(9)] + [Test(id=9)]
    engine, _ = _engine(there, demands, tests, workers=1)
    assert engine.useful_workers() == 2 + 1
    with pytest.raises(ValueError, match="worker gw0 is up already"):
        engine.worker_up("gw0", "simulated")


def test_shares_keep_more_workers_busy_than_there_are_devices() -> None:
    there = machine(["nvidia", "nvidia"])
    assert there.gpus[0].memory_total_bytes == 24 * GIB
    demands = [Demand(groups=(group(there, gib=8),)), Demand(groups=(group(there),))]
    tests = [Test(id=number, demand=int(number >= 5)) for number in range(8)]
    engine, _ = _engine(there, demands, tests, workers=1)
    assert engine.useful_workers() == 5  # the third of a card of five tests leaves no card whole
    few, _ = _engine(there, demands, tests[4:], workers=1)
    assert few.useful_workers() == 2


def test_a_worker_sees_only_its_own_devices() -> None:
    there = machine(["nvidia", "nvidia"])
    place = site(there, [Demand(groups=(group(there),))])
    engine = Engine([Test(id=0, demand=0), Test(id=1, demand=0)], sites=[place])
    for number, device in enumerate(reversed(place.devices)):
        engine.worker_up(f"gw{number}", place.name, only=[device.key])
    assert {each.worker: each.keys for each in engine.decide(0.0)} == {
        "gw0": (place.devices[1].key,),
        "gw1": (place.devices[0].key,),
    }


@MANY
@given(cases())
def test_in_order_no_test_is_handed_out_before_an_earlier_one(case: Case) -> None:
    engine = Engine(case.tests, units=case.units, sites=[case.there], keep_order=True)
    for number in range(case.workers):
        engine.worker_up(f"gw{number}", case.there.name)
    handed_out: list[int] = []
    now_s = 0.0
    while not engine.is_done:
        handed_out += [each.test for each in engine.decide(now_s)]
        now_s += 1
        for number in range(case.workers):
            if engine.assigned(f"gw{number}") and engine.began_s(f"gw{number}") is not None:
                engine.finished(f"gw{number}", engine.assigned(f"gw{number}")[0].test, now_s)
                break
    assert handed_out == sorted(handed_out)
    assert len(handed_out) == len(case.tests)


@pytest.mark.parametrize("hand_over_s", [None, 0.0005])
def test_short_tests_leave_no_gap_between_them(hand_over_s: float | None) -> None:
    there = machine(["nvidia"] * 4)
    tests = [Test(id=number, demand=0, duration_s=0.05) for number in range(200)]
    engine, place = _engine(there, [Demand(groups=(group(there),))], tests, workers=0)
    outcome = Simulation(
        engine, place, tests, 8, actual_s=dict.fromkeys(range(200), 0.05), times=Times(hand_over_s=hand_over_s)
    ).run()
    held_s = sum(end - start for _, _, start, end in outcome.ran)
    assert outcome.span_s <= 1.05 * held_s / 4
