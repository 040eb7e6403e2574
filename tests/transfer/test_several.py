"""Several faults at once are all named with their ranges, also where they touch; very many in few findings."""

from __future__ import annotations

import random
from itertools import product
from typing import TYPE_CHECKING

import pytest

import tests.transfer.needs_numpy  # noqa: F401 - first: the others import NumPy
from pytest_gpucoexist.transfer.diagnosis import Check, check
from pytest_gpucoexist.transfer.epochs import DATA, SOURCE_ZONE, UNDER_DESTINATION
from pytest_gpucoexist.transfer.joining import MOST
from tests.transfer.faults import Scene, scene

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpucoexist.transfer.finding import Finding

SIZE = 5 * 65536 + 77


def garbage(to: Scene, first: int, end: int) -> bytes:
    return random.Random(first).randbytes(end - first)


WRITTEN: dict[str, Callable[[Scene, int, int], bytes]] = {
    "zeros": lambda to, first, end: bytes(end - first),
    "constant": lambda to, first, end: b"\x07" * (end - first),
    "garbage": garbage,
    "torn": lambda to, first, end: to.stream(UNDER_DESTINATION, first, end).tobytes(),
    "stale": lambda to, first, end: to.data(first, end, to.plan.transfer - 2).tobytes(),
    "foreign": lambda to, first, end: to.data(first, end, to.plan.transfer + 1).tobytes(),
    "shifted_bytes": lambda to, first, end: to.data(first + 3, end + 3).tobytes(),
    "shifted": lambda to, first, end: to.data(first - 16, end - 16).tobytes(),
    "misplaced": lambda to, first, end: to.stream(SOURCE_ZONE, first % 4096, first % 4096 + end - first).tobytes(),
}


def put(to: Scene, kind: str, first: int, end: int) -> None:
    to.payload[first:end] = bytearray(WRITTEN[kind](to, first, end))


def found_in(to: Scene) -> list[Finding]:
    return list(check(to.plan.after("destination"), to.memory))


def near(finding: Finding, kind: str, first: int, end: int) -> bool:
    """Whether a finding is that, give or take two bytes at either end, which may be right by chance."""
    return finding.kind == kind and abs(finding.offset_bytes - first) <= 2 and abs(finding.end_bytes - end) <= 2


@pytest.mark.parametrize(("one", "other"), [pair for pair in product(WRITTEN, WRITTEN) if pair[0] != pair[1]])
def test_two_faults_beside_each_other(one: str, other: str) -> None:
    for gap in (0, 1, 7, 100, 4096, 70_000):
        rng = random.Random(f"{one} {other} {gap}")
        to = scene(rng, SIZE)
        first = rng.randrange(4097, 100_000)
        middle = first + rng.randint(40, 90_000)
        last = middle + gap
        end = last + rng.randint(40, 50_000)
        put(to, one, first, middle)
        put(to, other, last, end)
        found = found_in(to)
        assert len(found) == 2, (gap, [str(each) for each in found])
        assert near(found[0], one, first, middle), (gap, first, middle, str(found[0]))
        assert near(found[1], other, last, end), (gap, last, end, str(found[1]))


@pytest.mark.parametrize("kind", [kind for kind in WRITTEN if kind != "garbage"])
def test_a_bit_flipped_in_what_is_itself_wrong(kind: str) -> None:
    for number in range(20):
        rng = random.Random(f"{kind} {number}")
        to = scene(rng, SIZE)
        first, end = rng.randrange(4097, 60_000), rng.randrange(130_000, 200_000)
        put(to, kind, first, end)
        byte = rng.randrange(first + 32, end - 32)
        to.payload[byte] ^= 1 << rng.randrange(8)
        if not to.is_wrong(byte):
            continue  # the flip made it right, once in 256 bytes
        found = found_in(to)
        assert [finding.kind for finding in found] == [kind, "flipped"]
        assert near(found[0], kind, first, end)
        assert (found[1].offset_bytes, found[1].size_bytes, found[1].bits) == (byte, 1, 1)
        assert "which is itself wrong here" in found[1].text


def test_flips_far_apart_are_findings_of_their_own() -> None:
    to = scene(random.Random(1), SIZE)
    bytes_ = [5, 4000, 65_536, 200_001, SIZE - 1]
    for byte in bytes_:
        to.payload[byte] ^= 0x10
    assert [(each.kind, each.offset_bytes, each.bits) for each in found_in(to)] == [("flipped", at, 1) for at in bytes_]


def test_very_many_faults_of_every_kind_are_few_findings_and_no_kind_is_lost() -> None:
    rng = random.Random(3)
    to = scene(rng, SIZE)
    kinds = sorted(WRITTEN)
    for number, first in enumerate(range(5000, SIZE - 200, 200)):
        put(to, kinds[number % len(kinds)], first, first + 60)
    to.payload[7] ^= 1
    found = found_in(to)
    assert len(found) <= MOST
    assert {*kinds, "flipped"} - {each.kind for each in found} == set()
    assert sum(each.places for each in found) > 1000
    assert min(each.offset_bytes for each in found) == 7
    assert all(" places in bytes " in each.text for each in found if each.places > 1)


def test_a_region_of_garbage_is_one_finding() -> None:
    rng = random.Random(4)
    to = scene(rng, 1 << 20)
    to.payload[:] = bytearray(rng.randbytes(1 << 20))
    (found,) = found_in(to)
    assert (found.kind, found.offset_bytes, found.size_bytes) == ("garbage", 0, 1 << 20)


@pytest.mark.parametrize("piece", [1 << 16, 40_001, 4096, 333])
def test_a_region_that_is_read_in_pieces_is_told_as_a_whole(piece: int) -> None:
    for number in range(10):
        rng = random.Random(number)
        to = scene(rng, SIZE, zone=4099)
        kinds = rng.sample(sorted(WRITTEN), 3)
        edges = sorted(rng.sample(range(4097, SIZE - 100, 700), 6))
        for at, kind in enumerate(kinds):
            put(to, kind, edges[2 * at], edges[2 * at + 1])
        checking = Check(to.plan.after("destination"))
        for first in range(0, len(to.memory), piece):
            checking.feed(to.memory[first : first + piece])
        found = checking.findings()
        assert [each.kind for each in found] == kinds, [str(each) for each in found]
        for at, each in enumerate(found):
            assert near(each, kinds[at], edges[2 * at], edges[2 * at + 1])


def test_a_region_of_which_a_part_was_not_read_is_not_good() -> None:
    to = scene(random.Random(0), 1000)
    checking = Check(to.plan.after("destination"))
    checking.feed(to.memory[:-1])
    with pytest.raises(ValueError, match="9192 bytes, of which 9191 were compared"):
        checking.findings()
    checking.feed(to.memory[-1:])
    assert checking.findings() == ()
    with pytest.raises(ValueError, match="9192 bytes; this memory would end at 9193"):
        checking.feed(b"x")


def test_data_is_not_taken_for_good_because_it_is_data() -> None:
    """The stream of the data, displaced by the whole of a red zone: what a wrong pointer arithmetic would do."""
    to = scene(random.Random(0), 1 << 16)
    to.memory[: 1 << 16] = to.stream(DATA, 0, 1 << 16)
    kinds = [(each.kind, each.part) for each in found_in(to)]
    assert kinds == [("underrun", "before"), ("shifted", "payload")]
