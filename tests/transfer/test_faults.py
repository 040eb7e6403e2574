"""Every kind of fault, at random places of payloads of many sizes, is named with its range; good data is good."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

import tests.transfer.needs_numpy  # noqa: F401 - first: the others import NumPy
from pytest_gpucoexist.transfer.diagnosis import check
from tests.transfer.faults import FAULTS, Scene, Told, scene

if TYPE_CHECKING:
    from pytest_gpucoexist.transfer.finding import Finding

# Size, red zones, slot size, slots: of no multiple of anything, whole slots, without and with a ring.
SHAPES = {
    "1 byte": (1, 4096, 0, 0),
    "3 bytes": (3, 64, 0, 0),
    "7 bytes": (7, 4099, 4096, 3),
    "8 bytes": (8, 17, 0, 0),
    "100 bytes": (100, 61, 0, 0),
    "a page less 1": (4095, 4096, 0, 0),
    "a page and 1": (4097, 4099, 0, 0),
    "a block and 1": (65537, 4096, 4096, 4),
    "five blocks, unaligned": (5 * 65536 + 77, 4099, 0, 0),
    "1 MiB and 13": ((1 << 20) + 13, 4096, 65536, 5),
    "1 MiB and 13, odd slots": ((1 << 20) + 13, 4097, 40001, 4),
}
TRIES = 8


def told_by(to: Scene) -> tuple[Finding, ...]:
    return check(to.plan.after("destination"), to.memory)


def fits(told: Told, finding: Finding, to: Scene) -> bool:
    """Whether a finding is what was done: of its range all but bytes at the ends that are right by chance."""
    wrong = to.wrong(told.part)
    return (
        (finding.kind, finding.part, finding.region) == (told.kind, told.part, "destination")
        and told.first - 1 <= finding.offset_bytes <= wrong[0]
        and wrong[-1] + 1 <= finding.end_bytes <= told.end + 1
        and (told.shift is None or finding.displaced_bytes == told.shift)
        and (told.bits is None or finding.bits == told.bits)
    )


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named(name: str, shape: tuple[int, int, int, int]) -> None:
    for number in range(TRIES):
        rng = random.Random(f"{name} {shape} {number}")
        to = scene(rng, *shape)
        told = FAULTS[name](rng, to)
        if told is None:
            continue
        found = told_by(to)
        assert [fits(told, finding, to) for finding in found] == [True], (number, told, [str(each) for each in found])


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_good_data_is_good(shape: tuple[int, int, int, int]) -> None:
    for number in range(TRIES):
        to = scene(random.Random(number), *shape)
        assert told_by(to) == ()
        assert check(to.plan.before("destination"), to.memory) != ()  # it is no prefill
