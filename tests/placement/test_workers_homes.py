"""Who gets which devices as a home, and the masks that follow: rules, without xdist."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from pytest_gpucoexist.model.machine import Gpu, Machine, Usable
from pytest_gpucoexist.model.matching import Group, choose
from pytest_gpucoexist.model.requirement import Requirement
from pytest_gpucoexist.model.visibility import apply_masks
from pytest_gpucoexist.placement.homes import Homes, at_home, home_masks, usable_devices
from tests.machines import amd, apu, dual, intel, machine, masked, nvidia

NVIDIA = [nvidia(number).key for number in range(8)]
AMD = [amd(number).key for number in range(4)]


def homes(value: Machine, workers: int) -> list[tuple[str, ...]]:
    given_out = Homes(value)
    return [given_out.take(workers - index) for index in range(workers)]


def instance(number: int, **changes: object) -> Gpu:
    uuid = f"MIG-0000000{number}-aaaa-bbbb-cccc-dddddddddddd"
    return nvidia(0, id=f"nvidia0:{number}", partition=f"mig:{number}/0", uuid=uuid, **changes)


def test_a_worker_of_two_vendors_has_a_home_of_each() -> None:
    assert homes(dual(), 2) == [(NVIDIA[0], AMD[0]), (NVIDIA[1], AMD[0])]


def test_devices_are_dealt_out_in_runs_when_workers_are_few() -> None:
    four = machine(*(nvidia(number) for number in range(4)))
    assert homes(four, 2) == [tuple(NVIDIA[:2]), tuple(NVIDIA[2:4])]
    assert homes(four, 3) == [tuple(NVIDIA[:2]), (NVIDIA[2],), (NVIDIA[3],)]


def test_devices_of_one_node_stay_together() -> None:
    four = machine(*(nvidia(number, numa_node=number % 2) for number in range(4)))
    assert homes(four, 2) == [(NVIDIA[0], NVIDIA[2]), (NVIDIA[1], NVIDIA[3])]


@given(st.integers(1, 8), st.integers(0, 4), st.integers(1, 20))
def test_fair_for_every_vendor(cards: int, others: int, workers: int) -> None:
    value = machine(*(nvidia(number) for number in range(cards)), *(amd(number) for number in range(others)))
    given_out = homes(value, workers)
    for keys in (NVIDIA[:cards], AMD[:others]):
        if not keys:
            continue
        counts = {key: sum(key in home for home in given_out) for key in keys}
        assert min(counts.values()) >= 1
        assert max(counts.values()) - min(counts.values()) <= 1
        sizes = [sum(key in home for key in keys) for home in given_out]
        assert min(sizes) >= 1
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    "card",
    [
        nvidia(1, fit=False),
        nvidia(1, granted=False),
        nvidia(1, visible=False),
        nvidia(1, driver="nouveau", usable=Usable()),
        nvidia(1, driver="vfio-pci", usable=Usable()),
    ],
    ids=["unfit", "not granted", "masked", "nouveau", "passed through"],
)
def test_what_tests_cannot_use_is_nobodys_home(card: Gpu) -> None:
    assert homes(machine(nvidia(0), card, nvidia(2)), 2) == [(NVIDIA[0],), (NVIDIA[2],)]


def test_an_integrated_gpu_beside_a_card_is_nobodys_home_but_is_seen_last() -> None:
    value = machine(amd(0), apu(9))
    ((home),) = homes(value, 1)
    assert home == (AMD[0],)
    seen = apply_masks(home_masks(home, value, "rotate", "auto", {}), value)
    assert [mask.devices for mask in seen.masks if mask.runtime == "hip"] == [(AMD[0], apu(9).key)]


def test_an_integrated_gpu_alone_is_a_home() -> None:
    assert homes(machine(apu(9)), 1) == [(apu(9).key,)]


def test_nothing_to_have() -> None:
    value = machine()
    assert homes(value, 2) == [(), ()]
    assert home_masks((), value, "narrow", "auto", {}) == {}


def test_narrow_shows_the_home_alone() -> None:
    value = dual()
    assert home_masks((NVIDIA[1], AMD[0]), value, "narrow", "auto", {}) == {
        "CUDA_VISIBLE_DEVICES": "1",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "ROCR_VISIBLE_DEVICES": "0",
        "HIP_VISIBLE_DEVICES": "0",
    }


def test_rotate_shows_all_and_the_home_first() -> None:
    value = machine(*(nvidia(number) for number in range(4)))
    shown = [home_masks(home, value, "rotate", "auto", {})["CUDA_VISIBLE_DEVICES"] for home in homes(value, 4)]
    assert shown == ["0,1,2,3", "1,2,3,0", "2,3,0,1", "3,0,1,2"]


def test_uuids_where_asked_for_or_where_the_caller_wrote_them() -> None:
    value = dual()
    uuid = f"{nvidia(1).uuid}"
    assert home_masks((NVIDIA[1],), value, "narrow", "uuid", {})["CUDA_VISIBLE_DEVICES"] == uuid
    caller = {"CUDA_VISIBLE_DEVICES": f"{nvidia(0).uuid},{uuid}"}
    assert home_masks((NVIDIA[1],), value, "narrow", "auto", caller)["CUDA_VISIBLE_DEVICES"] == uuid


@given(
    st.integers(1, 6),
    st.integers(0, 3),
    st.sampled_from(["narrow", "rotate"]),
    st.sampled_from(["index", "uuid", "auto"]),
    st.integers(1, 5),
    st.data(),
)
def test_masks_mean_what_they_should_within_the_callers(
    cards: int, others: int, mode: str, style: str, workers: int, data: st.DataObject
) -> None:
    """Read back as the runtimes would: the home first, nothing that the caller hid, and nothing new."""
    whole = machine(*(nvidia(n) for n in range(cards)), *(amd(n) for n in range(others)))
    left = data.draw(st.lists(st.integers(0, cards - 1), min_size=1, unique=True))
    caller = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, left)), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    if others:
        caller["HIP_VISIBLE_DEVICES"] = ",".join(map(str, range(others)))
    value = apply_masks(caller, whole)
    for home in homes(value, workers):
        environ = {**caller, **home_masks(home, value, mode, style, caller)}  # type: ignore[arg-type]
        seen = apply_masks(environ, whole)
        shown = {mask.runtime: mask.devices or () for mask in seen.masks}
        own = tuple(key for key in home if key in NVIDIA)
        assert own
        assert shown["cuda"][: len(own)] == own
        assert set(shown["cuda"]) == (set(own) if mode == "narrow" else {NVIDIA[index] for index in left})
        if others:
            own = tuple(key for key in home if key in AMD)
            assert shown["hip"][: len(own)] == own
            assert set(shown["hip"]) == (set(own) if mode == "narrow" else set(AMD[:others]))


def test_a_vendor_that_the_caller_hid_keeps_its_mask() -> None:
    hidden, mask = masked(amd(0), "HIP_VISIBLE_DEVICES", "-1", "hip")
    value = machine(nvidia(0), hidden, masks=(mask,))
    written = home_masks(homes(value, 1)[0], value, "narrow", "auto", {"HIP_VISIBLE_DEVICES": "-1"})
    assert written == {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def test_a_vendor_whose_devices_are_all_unfit_is_hidden() -> None:
    value = machine(nvidia(0, fit=False), amd(0))
    assert home_masks((AMD[0],), value, "rotate", "auto", {})["CUDA_VISIBLE_DEVICES"] == "-1"


def test_one_mig_instance_is_all_that_a_process_sees() -> None:
    value = machine(instance(0), instance(1), nvidia(1))
    given_out = homes(value, 2)
    assert given_out == [(instance(0).key,), (instance(1).key,)]
    for home in given_out:
        for mode in ("narrow", "rotate"):
            mask = home_masks(home, value, mode, "auto", {})["CUDA_VISIBLE_DEVICES"]
            assert mask == f"{instance(int(home[0][-3])).uuid}"


def test_a_card_beside_instances_sees_no_instance() -> None:
    value = machine(instance(0), nvidia(1))
    assert "MIG" not in home_masks((NVIDIA[1],), value, "rotate", "auto", {})["CUDA_VISIBLE_DEVICES"]


def test_intel_has_homes_too() -> None:
    first = intel(0, kind="discrete", driver="xe", pci_address="0000:c4:00.0")
    second = intel(1, kind="discrete", driver="xe", pci_address="0000:c5:00.0")
    value = machine(first, second)
    assert homes(value, 2) == [(first.key,), (second.key,)]
    assert home_masks((second.key,), value, "narrow", "auto", {}) == {"ZE_AFFINITY_MASK": "1"}
    assert home_masks((second.key,), value, "rotate", "auto", {}) == {"ZE_AFFINITY_MASK": "1,0"}
    selector = {"ONEAPI_DEVICE_SELECTOR": "level_zero:1"}
    assert home_masks((second.key,), value, "narrow", "auto", selector)["ONEAPI_DEVICE_SELECTOR"] == "level_zero:gpu"


def test_slurms_list_for_opencl_is_blanked() -> None:
    value = dual()
    assert home_masks((AMD[0],), value, "narrow", "auto", {"GPU_DEVICE_ORDINAL": "2"})["GPU_DEVICE_ORDINAL"] == ""


def test_devices_that_a_spec_gives_are_the_home() -> None:
    given_out = Homes(dual())
    assert given_out.take(2, {"nvidia": [NVIDIA[1]]}) == (NVIDIA[1], AMD[0])
    assert given_out.take(1) == (NVIDIA[0], AMD[0])
    assert given_out.workers == {NVIDIA[0]: 1, NVIDIA[1]: 1, AMD[0]: 2}


def test_a_vendor_that_only_the_spec_shows_is_a_home() -> None:
    hidden, _ = masked(nvidia(0), "CUDA_VISIBLE_DEVICES", "-1", "cuda")
    assert Homes(machine(hidden, amd(0))).take(1, {"nvidia": [NVIDIA[0]]}) == (AMD[0], NVIDIA[0])


def test_usable_devices_are_those_that_tests_get() -> None:
    assert {vendor: [gpu.id for gpu in gpus] for vendor, gpus in usable_devices(dual()).items()} == {
        "nvidia": ["nvidia0", "nvidia1"],
        "amd": ["amd0"],
    }


def group(count: int, *candidates: str, **arguments: bool) -> Group:
    return Group(requirement=Requirement(count=count, **arguments), candidates=candidates)  # type: ignore[arg-type]


def test_a_tests_first_device_is_the_home() -> None:
    value = dual()
    everything = (*NVIDIA[:2], AMD[0])
    home = (NVIDIA[1], AMD[0])
    for count, expected in ((1, [NVIDIA[1]]), (2, [NVIDIA[1], NVIDIA[0]])):
        groups = at_home([group(count, *everything)], home, value)
        chosen = choose(groups, everything, value)
        assert chosen is not None
        assert [key for keys in chosen for key in keys] == expected


def test_a_home_that_cannot_serve_changes_nothing() -> None:
    value = dual()
    only = [group(1, NVIDIA[0])]
    assert at_home(only, (NVIDIA[1], AMD[0]), value) == tuple(only)


def test_two_groups_that_want_one_home_share_what_there_is() -> None:
    """Where both cannot have it, the groups stay as they were."""
    value = dual()
    both = [group(1, *NVIDIA[:2]), group(1, *NVIDIA[:2])]
    assert at_home(both, (NVIDIA[1],), value) == tuple(both)


def test_a_home_on_a_node_with_too_few_devices_gives_way() -> None:
    value = machine(nvidia(0, numa_node=0), nvidia(1, numa_node=1), nvidia(2, numa_node=1))
    pair = [group(2, *NVIDIA[:3], same_node=True)]
    assert at_home(pair, (NVIDIA[0],), value) == tuple(pair)
    assert len(at_home(pair, (NVIDIA[1],), value)) == 2
