"""Plans and regions: every byte has one owner and one epoch, both ends agree, tiny payloads can be told apart."""

from __future__ import annotations

import mmap
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, strategies as st

from pytest_gpucoexist.transfer.epochs import DATA, TRANSFERS, UNDER_DESTINATION, UNDER_READING, UNDER_RING, epoch_of
from pytest_gpucoexist.transfer.frame import REGIONS, Plan
from pytest_gpucoexist.transfer.plans import Plans
from pytest_gpucoexist.transfer.segment import Layout
from pytest_gpucoexist.transfer.splitmix import word

if TYPE_CHECKING:
    from pytest_gpucoexist.transfer.frame import Contents

PLANS = st.builds(
    Plan,
    seed=st.integers(0, (1 << 64) - 1),
    transfer=st.integers(0, TRANSFERS - 1),
    size_bytes=st.integers(1, 5000),
    zone_bytes=st.integers(0, 70),
    slots=st.integers(1, 9),
    slot_bytes=st.integers(1, 700),
    first_slot_bytes=st.none() | st.integers(0, 90),
    stride_bytes=st.none() | st.integers(700, 760),
)


@given(PLANS)
def test_areas_tile_their_region_and_no_byte_of_an_epoch_is_in_two_places(plan: Plan) -> None:
    seen: set[tuple[int, int]] = set()
    for region in REGIONS:
        for contents in (plan.before(region), plan.after(region), plan.under_reading(region)):
            at = 0
            for area in contents.areas:
                assert (area.offset_bytes, area.region) == (at, region)
                assert area.size_bytes > 0
                at += area.size_bytes
            assert at == contents.size_bytes == plan.region_bytes(region)
        mine = {
            (area.epoch, area.start + byte) for area in plan.before(region).areas for byte in range(area.size_bytes)
        }
        assert len(mine) == plan.region_bytes(region)
        assert not mine & seen
        seen |= mine


def simulated(plan: Plan) -> list[tuple[int, int]]:
    """Say of each byte of the ring's slots what it holds, having moved chunk after chunk."""
    slots = [
        [(epoch_of(plan.transfer, UNDER_RING), slot * plan.slot_bytes + byte) for byte in range(plan.slot_bytes)]
        for slot in range(plan.slots)
    ]
    data = [(epoch_of(plan.transfer, DATA), byte) for byte in range(plan.size_bytes)]
    for number, first in enumerate(range(0, plan.size_bytes, plan.slot_bytes)):
        chunk = data[first : first + plan.slot_bytes]
        slots[number % plan.slots][: len(chunk)] = chunk
    return [held for slot in slots for held in slot]


@given(PLANS)
def test_each_slot_holds_the_last_chunk_that_passed_it(plan: Plan) -> None:
    held = [
        (area.epoch, area.start + byte)
        for area in plan.after("ring").areas
        if area.part == "payload"
        for byte in range(area.size_bytes)
    ]
    assert held == simulated(plan)


@given(PLANS)
def test_what_lay_under_an_area_is_what_was_there_before(plan: Plan) -> None:
    def at(contents: Contents) -> dict[int, tuple[int, int]]:
        return {
            area.offset_bytes + byte: (area.epoch, area.start + byte)
            for area in contents.areas
            for byte in range(area.size_bytes)
        }

    for region in REGIONS:
        before = at(plan.before(region))
        for area in plan.after(region).areas:
            first = (area.epoch, area.start)
            under = (area.under_epoch, area.under_start) if area.under_epoch is not None else first
            assert before[area.offset_bytes] == under


def test_a_plan_travels_as_builtins() -> None:
    execnet = pytest.importorskip("execnet", reason="needs execnet")
    plan = Plans((1 << 64) - 1).next(
        (1 << 20) + 13,
        zone_bytes=17,
        slots=4,
        slot_bytes=1 << 16,
        owners=("cuda 0", "host", "hip 0"),
        writers=("a", "b", "c"),
    )
    there = execnet.loads(execnet.dumps(plan.values()))
    assert Plan.of(there) == plan
    assert (plan.owner("destination"), plan.writer("ring")) == ("hip 0", "b")


@pytest.mark.parametrize("size", range(1, 8))
def test_whatever_may_lie_where_a_tiny_payload_belongs_is_told_apart(size: int) -> None:
    plans = Plans(0xFEED)
    mask = (1 << 8 * size) - 1
    for _ in range(200):
        plan = plans.next(size)
        data, *others = (
            word(plan.seed, epoch_of(plan.transfer, role), 0) & mask
            for role in (DATA, UNDER_DESTINATION, UNDER_RING, UNDER_READING)
        )
        others += [0, mask, *([word(plan.seed, epoch_of(plan.transfer - 1, DATA), 0) & mask] if plan.transfer else [])]
        assert min((data ^ other).bit_count() for other in others) >= 3
        assert len(set(others)) == len(others)


def test_a_ring_lies_in_a_segment() -> None:
    layout = Layout(slots=5, slot_bytes=40_001, guard_bytes=2 * mmap.PAGESIZE)
    plan = Plans(1).next(
        1 << 20, slots=5, slot_bytes=40_001, first_slot_bytes=layout.guard_bytes, stride_bytes=layout.stride_bytes
    )
    header = layout.offset(0) - layout.guard_bytes
    assert [header + plan.slot_offset(slot) for slot in range(5)] == [layout.offset(slot) for slot in range(5)]
    assert header + plan.region_bytes("ring") == layout.size_bytes


def test_a_seed_has_an_end() -> None:
    plans = Plans(1, first=TRANSFERS - 1)
    assert plans.next(8).transfer == TRANSFERS - 1
    with pytest.raises(ValueError, match="take another seed"):
        plans.next(8)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"seed": -1}, "64 bits"),
        ({"transfer": TRANSFERS}, "take another seed"),
        ({"size_bytes": 0}, "1 byte to 1 TiB"),
        ({"slots": 3}, "no ring"),
        ({"slot_bytes": 3}, "no ring"),
        ({"zone_bytes": -1}, "no ring"),
        ({"slots": 2, "slot_bytes": 64, "stride_bytes": 63}, "every 63, from 4096 on"),
        ({"slots": 2, "slot_bytes": 64, "first_slot_bytes": -1}, "from -1 on"),
    ],
)
def test_what_has_no_meaning_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        replace(Plan(seed=1, transfer=0, size_bytes=8), **fields)
