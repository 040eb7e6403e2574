"""Staged copies between the vendors' engines, on drivers without hardware: one process each, one segment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist.errors import EngineError, PeerError
from pytest_gpucoexist.transfer.ring import Pace
from pytest_gpucoexist.transfer.segment import Layout, Segment
from tests.fakes.gpus import AMD_GPUS, NVIDIA_GPUS
from tests.transfer.bench import left_behind
from tests.transfer.pair import CALM, End, Pair
from tests.transfer.remote import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fakes.machine import FakeMachine

SIZES = [1, 3, 4095, 4097, (1 << 20) + 13]


@pytest.fixture(params=[1, 8], ids=["one slot", "eight slots"])
def segment(request: pytest.FixtureRequest) -> Iterator[Segment]:
    before = left_behind()
    made = Segment.create(Layout(slots=request.param, slot_bytes=1 << 16))
    yield made
    made.close()
    assert left_behind() == before


@pytest.fixture
def ends(fake_cuda: dict[str, str], fake_hip: dict[str, str]) -> dict[str, End]:
    return {
        "cuda": End(runtime="cuda", pci_address=NVIDIA_GPUS[0].pci_address, environ=fake_cuda),
        "hip": End(runtime="hip", pci_address=AMD_GPUS[0].pci_address, environ=fake_hip),
    }


WAYS = [("cuda", "hip"), ("hip", "cuda")]


@pytest.mark.parametrize(("source", "target"), WAYS)
def test_every_size_arrives_whole(segment: Segment, ends: dict[str, End], source: str, target: str) -> None:
    with Pair(segment, sender=ends[source], receiver=ends[target]) as pair:
        for seed, size in enumerate(SIZES):
            pair.begin(size, seed)
            sent, received = pair.arrived()
            assert sent.chunks == received.chunks == -(-size // segment.layout.slot_bytes)
        for side in (pair.sender, pair.receiver):
            side.ask("close")
            assert side.ask("left")["ours"] == side.ask("left")["mapped"] == []


@pytest.mark.parametrize(("source", "target"), WAYS)
@pytest.mark.parametrize("hop", ["d2h", "h2d"])
def test_a_corrupting_hop_is_seen_in_what_arrives(
    segment: Segment, ends: dict[str, End], fake_gpus: FakeMachine, source: str, target: str, hop: str
) -> None:
    scope = {"cuda": "nvidia", "hip": "amd"}[source if hop == "d2h" else target]
    with Pair(segment, sender=ends[source], receiver=ends[target]) as pair:
        pair.begin(100, 1)
        pair.arrived()
        source_at, target_at = pair.sender.ask("prepare", 0, 100, 1), pair.receiver.ask("prepare", 0, 100, None)
        order = fake_gpus.order(f"{scope}.0.copy.{hop}", "flip 99", each=True)
        pair.sender.tell("send", 0, source_at, 100, CALM)
        pair.receiver.tell("receive", 0, target_at, 100, CALM)
        pair.sender.answer()
        pair.receiver.answer()
        assert order.struck == 1
        order.withdraw()
        assert pair.receiver.ask("arrived", 0, target_at, 100, 1) is False
        pair.receiver.ask("engine", 0, "fill", target_at, 0xAA, 100)
        pair.sender.tell("send", 0, source_at, 100, CALM)
        pair.receiver.tell("receive", 0, target_at, 100, CALM)
        pair.sender.answer()
        pair.receiver.answer()
        assert pair.receiver.ask("arrived", 0, target_at, 100, 1) is True


@pytest.mark.parametrize(("source", "target"), WAYS)
def test_a_copy_that_hangs_in_a_driver_ends_both_sides(
    segment: Segment, ends: dict[str, End], fake_gpus: FakeMachine, source: str, target: str
) -> None:
    scope = {"cuda": "nvidia", "hip": "amd"}[target]
    with Pair(segment, sender=ends[source], receiver=ends[target]) as pair:
        order = fake_gpus.order(f"{scope}.0.copy.h2d", "hang")
        pair.begin(1 << 18, receiving=Pace(copy_s=0.5, hand_over_s=PATIENCE_S))
        with pytest.raises(EngineError, match=r"did not end within 0\.5 s") as caught:
            pair.receiver.answer()
        assert caught.value.kind == "deadline"
        with pytest.raises(PeerError, match=r"the receiver stopped the copy, .*: EngineError: .* within 0\.5 s"):
            pair.sender.answer()
        assert order.struck == 1
        order.withdraw()


@pytest.mark.parametrize(("source", "target"), WAYS)
def test_a_driver_that_kills_its_process_ends_the_other_side(
    segment: Segment, ends: dict[str, End], fake_gpus: FakeMachine, source: str, target: str
) -> None:
    scope = {"cuda": "nvidia", "hip": "amd"}[source]
    with Pair(segment, sender=ends[source], receiver=ends[target]) as pair:
        fake_gpus.order(f"{scope}.0.copy.d2h", "kill", at=3)
        pair.begin(1 << 20)
        with pytest.raises(PeerError, match=r"the sender \(process \d+\) has ended without a word"):
            pair.receiver.answer()
        assert pair.sender.end() == -9
