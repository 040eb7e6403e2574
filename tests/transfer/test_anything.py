"""Whatever is done to whatever region: no wrong byte is left out of the findings, and nothing right is one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import example, given, settings, strategies as st

import tests.transfer.needs_numpy  # noqa: F401 - first: the others import NumPy
from pytest_gpucoexist.transfer.diagnosis import Check, check, write
from pytest_gpucoexist.transfer.finding import KINDS
from pytest_gpucoexist.transfer.frame import REGIONS, Plan
from pytest_gpucoexist.transfer.joining import MOST

if TYPE_CHECKING:
    from pytest_gpucoexist.transfer.frame import Region

PLANS = st.builds(
    Plan,
    seed=st.integers(0, (1 << 64) - 1),
    transfer=st.integers(0, 8191),
    size_bytes=st.integers(1, 400) | st.integers(65_000, 140_000),
    zone_bytes=st.sampled_from([0, 5, 64, 4096]),
    slots=st.integers(1, 5),
    slot_bytes=st.sampled_from([7, 64, 1000, 4096, 20_001]),
    first_slot_bytes=st.none() | st.integers(0, 90),
)

# Where from and to as parts of the region, how long, and what: one byte over and over, a piece of another place of any
# region, bits turned, bytes of no origin.
EDITS = st.lists(
    st.tuples(
        st.floats(0, 1),
        st.sampled_from([1, 2, 7, 8, 9, 24, 31, 100, 4096, 70_000]),
        st.sampled_from(["zeros", "ones", "source", "ring", "destination", "flip", "random"]),
        st.floats(0, 1),
    ),
    max_size=6,
)


def edited(plan: Plan, region: Region, edits: list[tuple[float, int, str, float]]) -> tuple[bytearray, bytearray]:
    """Return a region as it should be, and as it is after some edits."""
    regions: dict[str, bytearray] = {}
    for each in REGIONS:
        regions[each] = bytearray(plan.region_bytes(each))
        write(plan.after(each), regions[each])
    good, memory = regions[region], bytearray(regions[region])
    for where, length, what, whence in edits:
        first = int(where * (len(memory) - 1))
        end = min(len(memory), first + length)
        if what in regions:
            other = regions[what]
            start = int(whence * (len(other) - 1))
            piece = bytes(other[start : start + end - first])
        elif what == "flip":
            piece = bytes([memory[first] ^ (1 << int(whence * 7))])
        elif what == "random":
            piece = Plan.__name__.encode() * (length // 4 + 1)  # a period of 4: of no known origin, and not one byte
            piece = bytes(byte ^ (number * 197 & 0xFF) for number, byte in enumerate(piece[: end - first]))
        else:
            piece = bytes([0 if what == "zeros" else 0xFF]) * (end - first)
        memory[first : first + len(piece)] = piece
    return good, memory


@settings(max_examples=300)
@given(PLANS, st.sampled_from(REGIONS), EDITS, st.integers(1, 80_000))
@example(  # a byte turned in a word at the beginning of what is one byte over and over
    Plan(seed=0, transfer=0, size_bytes=16, zone_bytes=0), "source", [(0.0, 24, "ones", 0.0), (0.5, 1, "zeros", 0.0)], 1
)
def test_every_wrong_byte_is_in_a_finding_and_every_finding_has_one(
    plan: Plan, region: Region, edits: list[tuple[float, int, str, float]], piece: int
) -> None:
    good, memory = edited(plan, region, edits)
    wrong = {at for at, (one, other) in enumerate(zip(good, memory, strict=True)) if one != other}
    found = check(plan.after(region), memory)
    for finding in found:
        assert finding.kind in KINDS
        assert finding.region == region
        assert finding.places >= 1
        first = finding.region_offset_bytes
        assert wrong & set(range(first, first + finding.size_bytes)), finding.text
    ranges = [range(each.region_offset_bytes, each.region_offset_bytes + each.size_bytes) for each in found]
    assert not {at for at in wrong if not any(at in each for each in ranges)}
    assert len(found) <= MOST * len(plan.after(region).areas)

    checking = Check(plan.after(region))
    for at in range(0, len(memory), max(piece, len(memory) // 50)):
        checking.feed(memoryview(memory)[at : at + max(piece, len(memory) // 50)])
    assert bool(checking.findings()) == bool(wrong)
