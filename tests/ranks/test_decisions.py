"""One decision and one request for all ranks: pure functions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_gpucoexist.model.choosing import choose
from pytest_gpucoexist.model.groups import Group
from pytest_gpucoexist.model.machine import NumaNode
from pytest_gpucoexist.model.plan import Decision, decide
from pytest_gpucoexist.model.requirement import Need, Requirement
from pytest_gpucoexist.placement.ranks.decisions import deal, decide_together, of_each
from tests.fixtures.machines import AMD0, INTEL0, NVIDIA0, NVIDIA1, workstation

MACHINE = workstation()
GIB = 1024**3


def alone(**what: object) -> Decision:
    """What each rank comes to without the others."""
    return decide(Need(requirements=(Requirement(**what),)), MACHINE, stand_ins=False)  # type: ignore[arg-type]


def served(ranks: int, *groups: Group) -> dict[int, tuple[tuple[str, ...], ...]] | None:
    """Deal and choose, as with every device free."""
    dealt = deal(dict.fromkeys(range(ranks), groups), MACHINE)
    if dealt is None:
        return None
    chosen = choose(dealt.groups, {gpu.key for gpu in MACHINE.gpus}, MACHINE)
    assert chosen is not None
    return of_each(chosen, dealt)


def test_a_test_that_needs_nothing_needs_nothing_together() -> None:
    assert decide_together({0: None, 1: None}, MACHINE) is None


def test_what_is_there_for_all_runs_and_what_is_not_is_missing_on_all() -> None:
    assert decide_together(dict.fromkeys(range(2), alone(vendor="nvidia")), MACHINE) is None
    together = decide_together(dict.fromkeys(range(3), alone(vendor="nvidia")), MACHINE)
    assert together is not None
    assert together.outcome == "missing"
    assert together.reason == (
        f"needs 3 NVIDIA GPUs (1 NVIDIA GPU for each of 3 ranks on this node); found {NVIDIA0} (fits), {NVIDIA1} (fits)"
    )


def test_a_device_that_is_unfit_or_hidden_makes_it_unfit_or_masked_for_all() -> None:
    """As it is for one test of several devices: an unfit card is no reason to skip."""
    need = Need(requirements=(Requirement(vendor="nvidia"),))
    for machine, outcome in (
        (workstation(nvidia1={"fit": False}), "unfit"),
        (workstation(nvidia1={"visible": False}), "masked"),
    ):
        decision = decide(need, machine, stand_ins=False)
        assert decision.outcome == "run"
        together = decide_together(dict.fromkeys(range(2), decision), machine)
        assert together is not None
        assert together.outcome == outcome
        assert "(1 NVIDIA GPU for each of 2 ranks on this node)" in str(together.reason)


def test_the_need_of_all_is_what_a_promise_is_compared_with() -> None:
    together = decide_together(dict.fromkeys(range(3), alone(vendor="nvidia")), MACHINE)
    assert together is not None
    assert [each.count for each in together.need.requirements] == [3]


def test_what_one_rank_cannot_run_none_runs_and_the_gravest_reason_counts() -> None:
    good, bad = alone(vendor="nvidia"), alone(vendor="nvidia", count=3)
    masked = replace(bad, outcome="masked", reason="is hidden")
    together = decide_together({0: good, 1: masked, 2: bad}, MACHINE)
    assert together is not None
    assert together.outcome == "missing"
    assert together.reason == f"local rank 2 {bad.reason}"
    same = decide_together(dict.fromkeys(range(2), bad), MACHINE)
    assert same is bad


def test_marks_that_differ_between_ranks_are_an_error() -> None:
    together = decide_together({0: alone(vendor="amd"), 1: None}, MACHINE)
    assert together is not None
    assert together.outcome == "error"
    assert "and nothing on rank 1" in str(together.reason)


def test_devices_go_by_the_local_rank_in_the_order_of_the_candidates() -> None:
    one = Group(requirement=Requirement(), candidates=(NVIDIA0, NVIDIA1, AMD0, INTEL0))
    assert served(4, one) == {0: ((NVIDIA0,),), 1: ((NVIDIA1,),), 2: ((AMD0,),), 3: ((INTEL0,),)}
    two = replace(one, requirement=Requirement(count=2))
    assert served(2, two) == {0: ((NVIDIA0, NVIDIA1),), 1: ((AMD0, INTEL0),)}
    assert served(3, two) is None


@pytest.mark.parametrize(
    ("ranks", "parts"), [(2, [0, 1]), (3, [0, 1, 0]), (4, [0, 1, 0, 1]), (6, [0, 1, 0, 1, 0, 1]), (13, None)]
)
def test_shares_of_fewer_devices_are_dealt_in_turn_as_far_as_the_memory_reaches(
    ranks: int, parts: list[int] | None
) -> None:
    """24 and 12 GiB: of 3 GiB for each rank, the smaller card holds four."""
    cards = (NVIDIA0, NVIDIA1)
    group = Group(requirement=Requirement(memory_bytes=3 * GIB), candidates=cards)
    found = served(ranks, group)
    assert found == (None if parts is None else {rank: ((cards[part],),) for rank, part in enumerate(parts)})


def test_the_request_is_for_the_shares_of_all_ranks_of_a_device() -> None:
    group = Group(requirement=Requirement(memory_bytes=3 * GIB), candidates=(NVIDIA0, NVIDIA1))
    dealt = deal(dict.fromkeys(range(3), (group,)), MACHINE)
    assert dealt is not None
    assert [each.requirement.memory_bytes for each in dealt.groups] == [6 * GIB, 3 * GIB]


def test_who_wants_a_device_alone_shares_none() -> None:
    group = Group(requirement=Requirement(memory_bytes=GIB, exclusive=True), candidates=(NVIDIA0, NVIDIA1))
    assert served(3, group) is None


def test_one_node_is_for_each_rank_and_not_for_all() -> None:
    group = Group(
        requirement=Requirement(count=2, same_node=True, mark="gpu"), candidates=(NVIDIA0, NVIDIA1, AMD0, INTEL0)
    )
    assert served(2, group) == {0: ((NVIDIA0, NVIDIA1),), 1: ((AMD0, INTEL0),)}


def test_many_nodes_and_ranks_are_not_all_tried() -> None:
    nodes = tuple(NumaNode(id=n, cpulist=str(n)) for n in range(8))
    group = Group(requirement=Requirement(same_node=True), candidates=(NVIDIA0, NVIDIA1, AMD0, INTEL0))
    assert deal(dict.fromkeys(range(4), (group,)), replace(MACHINE, numa_nodes=nodes)) is not None
    assert deal(dict.fromkeys(range(16), (group,)), replace(MACHINE, numa_nodes=nodes)) is None


def test_ranks_that_ask_differently_get_what_they_ask() -> None:
    """A wider fixture has settled on a device for each rank."""
    asked = {0: (Group(requirement=Requirement(), candidates=(NVIDIA1,)),)}
    asked[1] = (Group(requirement=Requirement(), candidates=(NVIDIA0,)),)
    dealt = deal(asked, MACHINE)
    assert dealt is not None
    assert of_each(((NVIDIA1,), (NVIDIA0,)), dealt) == {0: ((NVIDIA1,),), 1: ((NVIDIA0,),)}
