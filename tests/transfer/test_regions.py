"""Source, ring and destination of one transfer, with owners and writers in words, and what would fool others."""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING

import pytest

import tests.transfer.needs_numpy  # noqa: F401 - first: the others import NumPy
from pytest_gpucoexist.transfer.diagnosis import check, write
from pytest_gpucoexist.transfer.epochs import UNDER_DESTINATION, UNDER_RING, epoch_of
from pytest_gpucoexist.transfer.finding import KINDS, Finding
from pytest_gpucoexist.transfer.frame import REGIONS, Plan
from pytest_gpucoexist.transfer.plans import Plans
from pytest_gpucoexist.transfer.words import Words
from tests.transfer.faults import FAULTS, scene

if TYPE_CHECKING:
    from pytest_gpucoexist.transfer.frame import Region

MIB = 1 << 20


class Staged:
    """A transfer through a ring, of which single copies can be left out or done wrong."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.memory = {region: bytearray(plan.region_bytes(region)) for region in REGIONS}
        for region in REGIONS:
            write(plan.before(region), self.memory[region])

    def run(self, *, first_hop: int = -1, second_hop: int = -1) -> None:
        """Copy chunk by chunk, without the first or the second copy of the chunks of these numbers."""
        plan = self.plan
        source, ring, destination = (memoryview(self.memory[region]) for region in REGIONS)
        for number, first in enumerate(range(0, plan.size_bytes, plan.slot_bytes)):
            size = min(plan.slot_bytes, plan.size_bytes - first)
            slot = plan.slot_offset(number % plan.slots)
            at = plan.zone_bytes + first
            if number != first_hop:
                ring[slot : slot + size] = source[at : at + size]
            if number != second_hop:
                destination[at : at + size] = ring[slot : slot + size]

    def found(self, region: Region) -> list[Finding]:
        return list(check(self.plan.after(region), self.memory[region]))


def staged(size: int = MIB + 13, slot: int = 65536, slots: int = 4, zone: int = 4096) -> Staged:
    owners = ("cuda 0000:41:00.0", "this computer", "hip 0000:c1:00.0")
    writers = ("cuda 0000:41:00.0", "process 100", "process 200")
    plans = Plans(0xC0FFEE, first=5)
    return Staged(plans.next(size, zone_bytes=zone, slots=slots, slot_bytes=slot, owners=owners, writers=writers))


@pytest.mark.parametrize(
    ("size", "slot", "slots", "zone"),
    [
        (MIB + 13, 65536, 4, 4096),
        (1, 4096, 8, 64),
        (12345, 1000, 3, 0),
        (4096 * 4, 4096, 4, 17),
        (4096 * 3 + 1, 4096, 1, 9),
    ],
)
def test_a_good_transfer_is_good_in_every_region(size: int, slot: int, slots: int, zone: int) -> None:
    good = staged(size, slot, slots, zone)
    good.run()
    assert [good.found(region) for region in REGIONS] == [[], [], []]


@pytest.mark.parametrize("piece", [1, 17, 4096, 40_001])
def test_a_region_is_written_in_pieces_as_it_is_in_one(piece: int) -> None:
    plan = staged(12_345, 1000, 3, 61).plan
    for region in REGIONS:
        whole, pieces = bytearray(plan.region_bytes(region)), bytearray(plan.region_bytes(region))
        write(plan.after(region), whole)
        for at in range(0, len(pieces), piece):
            write(plan.after(region), memoryview(pieces)[at : at + piece], at)
        assert pieces == whole
        with pytest.raises(ValueError, match=f"{len(whole)} bytes; this memory would end at {len(whole) + 2}"):
            write(plan.after(region), bytearray(3), len(whole) - 1)


def test_nothing_done_is_told_in_every_region_that_should_have_changed() -> None:
    nothing = staged()
    assert nothing.found("source") == []
    ring = nothing.found("ring")
    assert [(each.kind, each.slot) for each in ring] == [("untouched", slot) for slot in (0, 0, 1, 2, 3)]
    assert (
        sum(each.size_bytes for each in ring) == 4 * 65536
    )  # of slot 0 the last 13 bytes that passed, and those before
    (found,) = nothing.found("destination")
    assert (found.kind, found.offset_bytes, found.size_bytes) == ("untouched", 0, MIB + 13)


@pytest.mark.parametrize("chunk", [0, 3, 4, 9, 15, 16])
def test_a_lost_copy_is_told_by_hop(chunk: int) -> None:
    first, end = 65536 * chunk, min(MIB + 13, 65536 * (chunk + 1))
    one = staged()
    one.run(first_hop=chunk)
    (found,) = one.found("destination")
    assert found.kind == ("unwritten_slot" if chunk < 4 else "stale_slot")
    assert (found.offset_bytes, found.end_bytes) == (first, end)
    two = staged()
    two.run(second_hop=chunk)
    (found,) = two.found("destination")
    assert found.kind == ("truncated" if chunk == 16 else "untouched")
    assert (found.offset_bytes, found.end_bytes) == (first, end)
    assert two.found("ring") == []


def test_a_slot_that_is_written_again_before_it_is_copied_on_is_told() -> None:
    to = scene(random.Random(2), 12 * 65536, 4096, 65536, 4)
    to.payload[3 * 65536 : 4 * 65536] = to.data(7 * 65536, 8 * 65536)
    (found,) = check(to.plan.after("destination"), to.memory)
    assert (found.kind, found.offset_bytes, found.size_bytes) == ("misplaced", 3 * 65536, 65536)
    assert "chunk 7: its slot was written again before it was copied on" in found.text


def test_flipped_bits_are_not_taken_for_what_they_happen_to_be() -> None:
    """Many bits of one byte that make it zero, and one bit that makes a last byte that of a prefill."""
    to = scene(random.Random(3), 10_000)
    to.payload[5001] = 0
    (found,) = check(to.plan.after("destination"), to.memory)
    assert (found.kind, found.offset_bytes, found.size_bytes) == ("flipped", 5001, 1)
    assert found.bits >= 3
    tried = 0
    for number in range(2000):
        to = scene(random.Random(number), 7, 64, 64, 2)
        other = to.stream(UNDER_RING, 0, 7)
        if int(to.payload[6] ^ other[6]).bit_count() == 1:
            to.payload[6] = other[6]
            (found,) = check(to.plan.after("destination"), to.memory)
            assert (found.kind, found.offset_bytes, found.bits) == ("flipped", 6, 1)
            tried += 1
    assert tried > 20


@pytest.mark.parametrize("beside", [0, -1])
def test_a_page_is_torn_at_its_boundary_though_the_bytes_there_are_right_by_chance(beside: int) -> None:
    tried = 0
    for number in range(80):
        to = scene(random.Random(number), 80 * 4096)
        old = to.stream(UNDER_DESTINATION, 0, to.size)
        for at in range(4096, 79 * 4096, 4096):
            if old[at + beside] == to.payload[at + beside]:
                first, end = (at, at + 8192) if beside == 0 else (at - 8192, at)
                before = to.payload[first:end].copy()
                to.payload[first:end] = old[first:end]
                if end < to.size and first > 0:
                    (found,) = check(to.plan.after("destination"), to.memory)
                    assert (found.kind, found.offset_bytes, found.end_bytes) == ("torn", first, end)
                    tried += 1
                to.payload[first:end] = before
    assert tried > 3


def test_a_byte_that_is_right_inside_what_is_wrong_does_not_end_it() -> None:
    for count in range(1, 7):
        to = scene(random.Random(count), 100_000)
        to.payload[50_000:60_008] = 0
        to.payload[60_000 + count] = to.good[4096 + 60_000 + count]
        (found,) = check(to.plan.after("destination"), to.memory)
        assert (found.kind, found.offset_bytes, found.end_bytes) == ("zeros", 50_000, 60_008)


def test_the_ring_tells_the_hop_of_a_flipped_bit_while_it_has_the_chunk() -> None:
    first = staged()
    first.run()
    slot, at = 2, 65536 * 14 + 100  # chunk 14 is the last that passed slot 2
    for memory, byte in (
        (first.memory["ring"], first.plan.slot_offset(slot) + 100),
        (first.memory["destination"], 4096 + at),
    ):
        memory[byte] ^= 4
    (there,), (here,) = first.found("ring"), first.found("destination")
    assert (there.kind, there.slot, there.offset_bytes, there.bits) == ("flipped", 2, 100, 1)
    assert (here.kind, here.offset_bytes, here.expected, here.found) == ("flipped", at, there.expected, there.found)


def test_a_slot_written_beyond_its_end_or_before_its_beginning_is_told() -> None:
    beyond = staged()
    beyond.run()
    end = beyond.plan.slot_offset(1) + 65536
    beyond.memory["ring"][end : end + 40] = bytes(40)
    start = beyond.plan.slot_offset(3)
    beyond.memory["ring"][start - 24 : start] = bytes(24)
    over, under = beyond.found("ring")
    assert (over.kind, over.slot, over.offset_bytes, over.size_bytes) == ("overrun", 1, 0, 40)
    assert "red zone of the ring after slot 1" in over.text
    assert (under.kind, under.slot, under.end_bytes, under.size_bytes) == ("underrun", 2, 4096, 24)


def test_a_region_that_was_not_read_back_is_told() -> None:
    """Though the buffer for reading back held the data, as one does that was used to write it."""
    plan = staged().plan
    buffer = bytearray(plan.region_bytes("destination"))
    write(plan.under_reading("destination"), buffer)
    found = check(plan.after("destination"), buffer)
    assert [(each.kind, each.part) for each in found] == [("unread", part) for part in ("before", "payload", "after")]
    assert "was not read back" in found[1].text


def test_a_red_zone_that_was_not_prepared_is_stale() -> None:
    plans = Plans(3)
    earlier, plan = plans.next(5000), plans.next(5000)
    memory = bytearray(plan.region_bytes("destination"))
    write(earlier.after("destination"), memory)
    found = check(plan.after("destination"), memory)
    assert [(each.kind, each.part) for each in found] == [("stale", part) for part in ("before", "payload", "after")]


def test_the_previous_transfer_to_the_same_place_is_not_this_one() -> None:
    plans = Plans(9)
    earlier, plan = plans.next(MIB), plans.next(MIB)
    memory = bytearray(plan.region_bytes("destination"))
    write(plan.after("destination"), memory)
    memory[4096 : 4096 + MIB] = Words(9).read(epoch_of(earlier.transfer, 0), 0, MIB).tobytes()
    (found,) = check(plan.after("destination"), memory)
    assert (found.kind, found.size_bytes, found.found_epoch) == ("stale", MIB, epoch_of(earlier.transfer, 0))
    assert f"the data of transfer {earlier.transfer}" in found.text


def test_a_period_of_two_mebibytes_is_seen() -> None:
    """Memory aliased at 2 MiB, to which a pattern of that period is blind."""
    to = scene(random.Random(1), 6 * MIB + 5)
    for first in range(2 * MIB, 6 * MIB + 5, 2 * MIB):
        end = min(first + 2 * MIB, to.size)
        to.payload[first:end] = to.payload[: end - first].copy()
    found = check(to.plan.after("destination"), to.memory)
    assert [(each.kind, each.offset_bytes, each.size_bytes, each.displaced_bytes) for each in found] == [
        ("misplaced", 2 * MIB, 2 * MIB, -2 * MIB),
        ("misplaced", 4 * MIB, 2 * MIB, -4 * MIB),
        ("misplaced", 6 * MIB, 5, -6 * MIB),
    ]


@pytest.mark.parametrize(("byte", "kind"), [(0, "zeros"), (0xFF, "constant")])
def test_memory_of_one_byte_is_told_in_every_part(byte: int, kind: str) -> None:
    plan = staged().plan
    found = check(plan.after("destination"), bytes([byte]) * plan.region_bytes("destination"))
    assert [each.kind for each in found] == ["underrun", kind, "overrun"]
    assert (found[1].offset_bytes, found[1].size_bytes, found[1].byte) == (0, plan.size_bytes, byte)
    assert ("fallen off its bus" in found[1].text) == (byte == 0xFF)


@pytest.mark.parametrize("role", [UNDER_RING, UNDER_DESTINATION])
def test_the_prefill_of_another_region_is_told_from_that_of_this_one(role: int) -> None:
    """The source's own memory holds what belongs in the ring, or in the destination."""
    plan = staged().plan
    memory = bytearray(plan.region_bytes("source"))
    write(plan.before("source"), memory)
    memory[4096 : 4096 + 65536] = Words(plan.seed).read(epoch_of(plan.transfer, role), 0, 65536).tobytes()
    (found,) = check(plan.after("source"), memory)
    assert (found.kind, found.offset_bytes, found.size_bytes) == ("misplaced", 0, 65536)


def test_a_sentence_names_place_owner_writer_and_words() -> None:
    flipped = staged()
    flipped.run()
    flipped.memory["destination"][4096 + 1001] ^= 0x80
    (found,) = flipped.found("destination")
    assert str(found) == (
        "destination (memory of hip 0000:c1:00.0, written by process 200), byte 1,001: 1 bit flipped "
        f"(word at byte 1,000: expected {found.expected:#018x}, found {found.found:#018x})"
    )
    assert found.expected ^ found.found == 0x80 << 8
    assert found.expected.to_bytes(8, "little")[0] == flipped.memory["destination"][4096 + 1000]


SENTENCES = {
    "flip": r"destination, bytes? [\d,]+( to [\d,]+)?: \d bits? flipped \(",
    "stuck_bit": r"[\d,]+ places in bytes .*: [\d,]+ bits flipped",
    "dropped": r"bytes 0 to 299,999: nothing arrived, the prefill is still there \(",
    "truncated": "the copy ended here, the rest is still the prefill",
    "torn_pages": r"torn at the boundary of pages \d+ and \d+( and|:).* new data around, here the prefill of the dest",
    "torn_anywhere": r"torn at byte [\d,]+, inside page \d+ and at byte",
    "stale": r"stale, the data of transfer [\d,]+ from byte 0 on \(epoch [\d,]+\)",
    "stale_slot": "a stale slot, with what passed it [12] turns? of the ring earlier",
    "unwritten_slot": "the slot of the ring was copied on before it was written, the prefill of the ring of transfer",
    "lost_chunk": r"nothing arrived, the prefill is still there; chunk \d \(",
    "wrong_chunk": r"of another place, the data of transfer .*\), chunk \d \(",
    "shifted_bytes": "shifted, here is data that belongs [1-7] bytes? (earlier|later)",
    "shifted_words": r"shifted, here is data that belongs \d words? (earlier|later)",
    "shifted_page": "shifted, here is data that belongs 1 page (earlier|later)",
    "source_zone": "of another place, the red zone before the source of transfer",
    "foreign": "of another transfer, the .* of transfer",
    "ones": "every byte is 0xff, which is what a device that has fallen off its bus reads as",
    "garbage": "bytes of no known origin",
    "too_long": r"red zone after the destination, .*: written as far as [\d,]+ bytes? beyond the end of the dest.*; "
    "what was written is the red zone after the source of transfer",
    "too_early": r"red zone before the destination, .*: written as far as [\d,]+ bytes before the destination; "
    "what was written is the data of transfer",
}


@pytest.mark.parametrize("name", SENTENCES)
def test_a_fault_is_told_in_a_sentence(name: str) -> None:
    rng = random.Random(f"told {name}")
    to = scene(rng, 300_000, 4096, *((65536, 2) if name.endswith(("slot", "chunk")) else ()))
    told = FAULTS[name](rng, to)
    assert told is not None
    (found,) = check(to.plan.after("destination"), to.memory)
    assert re.search(SENTENCES[name], found.text), found.text


def test_findings_travel_as_builtins() -> None:
    execnet = pytest.importorskip("execnet", reason="needs execnet")
    nothing = staged()
    found = [each for region in REGIONS for each in nothing.found(region)]
    assert [Finding.of(execnet.loads(execnet.dumps(each.values()))) for each in found] == found


def test_every_kind_is_named_by_a_test() -> None:
    shapes = [(300_000, 4096, 0, 0), (300_000, 4096, 65536, 2)]
    named = {"unread"}  # above
    for name, fault in FAULTS.items():
        for shape in shapes:
            told = fault(random.Random(name), scene(random.Random(name), *shape))
            named |= {told.kind} if told is not None else set()
    assert named == set(KINDS)
