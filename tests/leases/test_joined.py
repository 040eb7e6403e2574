"""One request for several tests, one after the other: whatever it is served with serves each of them."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, strategies as st

from pytest_gpucoexist.model.groups import Group
from pytest_gpucoexist.model.machine import Gpu, Machine, NumaNode
from pytest_gpucoexist.model.matching import choose
from pytest_gpucoexist.model.requirement import Requirement
from pytest_gpucoexist.session.joined import Scope, Slot, joined, slots_of

N0, N1, A0, A1 = "0000:01:00.0", "0000:02:00.0", "0000:03:00.0", "0000:04:00.0"
KEYS = (N0, N1, A0, A1)
MACHINE = Machine(
    name="four",
    gpus=tuple(
        Gpu(id=f"gpu{index}", pci_address=key, vendor="nvidia", numa_node=index % 2) for index, key in enumerate(KEYS)
    ),
    numa_nodes=(NumaNode(id=0, cpulist="0"), NumaNode(id=1, cpulist="1")),
)
MODULE: Scope = ("module_gpu", "test_a.py")
CLASS: Scope = ("class_gpu", "test_a.py::TestA")

GIB = 1024**3


def group(
    *keys: str, count: int = 1, memory: int | None = None, exclusive: bool = False, same_node: bool = False
) -> Group:
    requirement = Requirement(count=count, memory_bytes=memory, exclusive=exclusive, same_node=same_node)
    return Group(requirement=requirement, candidates=keys)


def slots(*groups: Group, **scopes: Scope) -> tuple[Slot, ...]:
    return slots_of(groups, {int(index.removeprefix("at")): [scope] for index, scope in scopes.items()})


def candidates(groups: tuple[Group, ...]) -> list[tuple[str, ...]]:
    return [each.candidates for each in groups]


def test_alone_it_is_what_the_test_asks_for() -> None:
    assert candidates(joined(slots(group(N0, N1)), [], MACHINE)) == [(N0, N1)]


def test_the_first_device_of_each_group_comes_first() -> None:
    assert candidates(joined(slots(group(N0, N1, count=2), group(A0)), [], MACHINE)) == [(N0, N1), (A0,), (N0, N1)]


def test_what_any_device_serves_is_narrowed_to_what_a_later_test_needs() -> None:
    assert candidates(joined(slots(group(*KEYS)), [slots(group(A0, A1))], MACHINE)) == [(A0, A1)]


def test_what_fits_nowhere_is_held_besides() -> None:
    found = joined(slots(group(N0, N1)), [slots(group(N0, N1, count=2)), slots(group(A0, A1))], MACHINE)
    assert candidates(found) == [(N0, N1), (N0, N1), (A0, A1)]


def test_a_wider_fixture_stays_on_its_device() -> None:
    first = slots(group(N0, N1), at0=MODULE)
    later = slots(group(N1), group(N0, N1), at0=MODULE)
    assert candidates(joined(first, [later], MACHINE)) == [(N1,), (N0, N1)]


def test_two_wider_fixtures_that_may_share_one_device_and_need_not() -> None:
    first = slots(group(N1), at0=MODULE)
    other = slots(group(N0), at0=CLASS)
    both = slots_of([group(N0, N1)], {0: [MODULE, CLASS]})
    assert candidates(joined(first, [other, both], MACHINE)) == [(N1,), (N0,)]


def test_a_contradiction_is_left_to_its_test() -> None:
    first = slots(group(N0, N1), at0=MODULE)
    assert candidates(joined(first, [slots(group(A0), at0=MODULE)], MACHINE)) == [(N0, N1)]


def test_more_than_there_is_is_left_to_its_test() -> None:
    first = slots(group(N0), group(N1))
    assert candidates(joined(first, [slots(group(N0, N1, count=3))], MACHINE)) == [(N0,), (N1,)]


def test_a_share_is_the_larger_one_and_whole_where_one_is() -> None:
    small, large = group(N0, memory=GIB), group(N0, memory=3 * GIB)
    assert joined(slots(small), [slots(large)], MACHINE)[0].requirement.memory_bytes == 3 * GIB
    assert joined(slots(large), [slots(small)], MACHINE)[0].requirement.memory_bytes == 3 * GIB
    for whole in (group(N0), group(N0, memory=3 * GIB, exclusive=True)):
        requirement = joined(slots(small), [slots(whole)], MACHINE)[0].requirement
        assert requirement.exclusive, "not what stands in for a requirement without memory"
        assert requirement.memory_bytes is None


def test_one_numa_node_is_chosen_for_a_later_test() -> None:
    found = joined(slots(group(N1)), [slots(group(*KEYS, count=2, same_node=True))], MACHINE)
    chosen = choose(found, KEYS, MACHINE)
    assert chosen is not None
    held = {key for keys in chosen for key in keys}
    assert choose([group(*KEYS, count=2, same_node=True)], held, MACHINE) is not None


any_group = st.builds(
    lambda keys, count, same_node: group(*keys, count=min(count, len(keys)), same_node=same_node),
    st.lists(st.sampled_from(KEYS), min_size=1, max_size=4, unique=True),
    st.integers(1, 2),
    st.booleans(),
)


@given(st.lists(st.lists(any_group, min_size=1, max_size=2), min_size=1, max_size=4), st.permutations(KEYS))
def test_whatever_the_request_is_served_with_serves_each_test(tests: list[list[Group]], order: list[str]) -> None:
    possible = [each for each in tests if choose(each, KEYS, MACHINE) is not None]
    if not possible:
        return
    groups = joined(slots_of(possible[0], {}), [slots_of(each, {}) for each in possible[1:]], MACHINE)
    chosen = choose(groups, KEYS, MACHINE, preferred=order)
    assert chosen is not None
    held = {key for keys in chosen for key in keys}
    assert choose(possible[0], held, MACHINE) is not None
    together = choose([one for each in possible for one in each], KEYS, MACHINE)
    for each in possible if together is not None else ():
        assert choose(each, held, MACHINE) is not None, (each, held)


def test_slots_keep_what_else_a_requirement_says() -> None:
    wanted = Group(requirement=replace(Requirement(), count=2, features=("ecc",)), candidates=KEYS)
    assert all(slot.group.requirement.features == ("ecc",) for slot in slots_of([wanted], {}))
