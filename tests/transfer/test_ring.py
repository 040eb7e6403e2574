"""Staged copies between two real processes: every size arrives whole, and every failure ends both sides."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucoexist.errors import EngineError, PeerError, TransferError
from pytest_gpucoexist.transfer import ring
from pytest_gpucoexist.transfer.control import COUNT_MASK
from pytest_gpucoexist.transfer.host_engine import HostEngine
from pytest_gpucoexist.transfer.ring import Pace, chunk_for
from pytest_gpucoexist.transfer.segment import Layout, Segment
from tests.transfer.bench import Bench, data_of, left_behind
from tests.transfer.pair import CALM, Pair
from tests.transfer.remote import PATIENCE_S, Remote

if TYPE_CHECKING:
    from collections.abc import Iterator

SIZES = [0, 1, 3, 4095, 4097, (1 << 20) + 13]
SERIAL, OVERLAPPING = Layout(slots=1, slot_bytes=1 << 16), Layout(slots=8, slot_bytes=1 << 16)


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """The test process is afterwards what it was."""
    before = left_behind()
    yield
    assert left_behind() == before


@pytest.fixture(params=[SERIAL, OVERLAPPING], ids=["one slot", "eight slots"])
def segment(request: pytest.FixtureRequest, nothing_left: None) -> Iterator[Segment]:
    """A segment for a serial copy, and for one that overlaps."""
    made = Segment.create(request.param)
    yield made
    made.close()


@pytest.fixture
def many(nothing_left: None) -> Iterator[Segment]:
    """A segment of eight slots."""
    made = Segment.create(OVERLAPPING)
    yield made
    made.close()


def _until(segment: Segment, handed_over: int) -> None:
    """Wait until the sender has filled so many slots, so that the copy is in its middle."""
    end = time.monotonic() + PATIENCE_S
    while segment.control.counter("sender").value & COUNT_MASK < handed_over:
        assert segment.control.failure("sender", "receiver", "owner") is None
        assert time.monotonic() < end
        time.sleep(0.002)


def test_every_size_arrives_whole(segment: Segment) -> None:
    with Pair(segment) as pair:
        for seed, size in enumerate([*SIZES, *SIZES]):
            pair.begin(size, seed)
            sent, received = pair.arrived()
            assert sent.chunks == received.chunks == -(-size // segment.layout.slot_bytes)
            assert sent.size_bytes == received.size_bytes == size
        pair.clean(pair.sender)
        pair.clean(pair.receiver)


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_every_depth_arrives_whole(segment: Segment, depth: int) -> None:
    with Pair(segment) as pair:
        pair.begin((1 << 20) + 13, pace=Pace(depth=depth, copy_s=PATIENCE_S))
        pair.arrived()


@pytest.mark.parametrize("chunk", [1000, 4096, 1 << 30])
def test_chunks_smaller_than_a_slot(segment: Segment, chunk: int) -> None:
    with Pair(segment) as pair:
        pair.begin(100_001, pace=Pace(copy_s=PATIENCE_S, chunk_bytes=chunk))
        sent, received = pair.arrived()
        assert sent.chunks == received.chunks == -(-100_001 // min(chunk, segment.layout.slot_bytes))


def test_a_chunk_for_a_rate() -> None:
    mib = 1 << 20
    assert chunk_for(1, 1e9, 8 * mib) == 253_952  # a quarter of a millisecond, in whole pages
    assert chunk_for(256 * mib, 1e9, mib) == mib
    assert chunk_for(64 * mib, 1e9, 8 * mib) == 2 * mib
    assert chunk_for(64 * mib, 25e9, 8 * mib) == 6_250_496
    assert chunk_for(0, 0.0, 8 * mib) == 4096
    assert chunk_for(1, 1e12, 1000) == 1000


def test_sizes_about_a_slot_and_about_the_whole_ring(segment: Segment) -> None:
    slot, slots = segment.layout.slot_bytes, segment.layout.slots
    with Pair(segment) as pair:
        for seed, size in enumerate(slot * n + more for n in (1, slots, slots + 1) for more in (-1, 0, 1)):
            pair.begin(size, seed)
            pair.arrived()


def test_the_counters_go_round(many: Segment) -> None:
    """31 bits are 128 TiB in slots of 64 KiB; a ring that has counted so far goes on with 0."""
    for role in ("sender", "receiver"):
        many.control.counter(role).post(COUNT_MASK - 5)
    with Pair(many) as pair:
        pair.begin(1 << 20)
        pair.arrived()
    assert many.control.counter("sender").value == 16 - 6


def test_eventfds_hand_over_too(segment: Segment) -> None:
    events = os.eventfd(0), os.eventfd(0)
    try:
        with Pair(segment, events=events) as pair:
            for seed, size in enumerate([1, (1 << 20) + 13]):
                pair.begin(size, seed)
                pair.arrived()
            segment.control.use_events({"sender": events[0], "receiver": events[1]})
            pair.receiver.tell("receive", 0, pair.receiver.ask("prepare", 0, 100, None), 100, CALM)
            _announced(segment, "receiver")
            segment.control.fail("owner", "no more of it")
            with pytest.raises(PeerError, match=r"the owner stopped the copy, after 0 of 1 .*: no more of it"):
                pair.receiver.answer()
            pair.clean(pair.receiver)
    finally:
        for descriptor in events:
            os.close(descriptor)


def test_a_sleeping_side_counts_its_wake_ups(many: Segment) -> None:
    with Pair(many) as pair:
        pair.receiver.tell("receive", 0, pair.receiver.ask("prepare", 0, 100, None), 100, CALM)
        _announced(many, "receiver")
        pair.sender.tell("send", 0, pair.sender.ask("prepare", 0, 100, 1), 100, CALM)
        pair.sender.answer()
        passed = pair.receiver.answer()
    assert len(passed.wake_ups_s) == 1
    assert 0 <= passed.wake_ups_s[0] <= passed.elapsed_s


def _announced(segment: Segment, role: Any) -> None:
    end = time.monotonic() + PATIENCE_S
    while not segment.control.announced(role)[0]:
        assert time.monotonic() < end
        time.sleep(0.002)


SLOW = 1 << 21  # 4 MiB take 2 s


@pytest.mark.parametrize("victim", ["sender", "receiver"])
def test_a_killed_side_ends_the_other(many: Segment, victim: str) -> None:
    with Pair(many, SLOW) as pair:
        dead, alive = (pair.sender, pair.receiver) if victim == "sender" else (pair.receiver, pair.sender)
        pair.begin(4 << 20)
        _until(many, 3)
        dead.signal(signal.SIGKILL)
        with pytest.raises(
            PeerError, match=rf"the {victim} \(process {dead.pid}\) has ended without a word, after \d+ of 64"
        ):
            alive.answer()
        pair.clean(alive)


@pytest.mark.parametrize("victim", ["sender", "receiver"])
def test_a_stopped_side_ends_the_other_at_its_deadline(many: Segment, victim: str) -> None:
    """And is told so when it goes on, instead of going on with a ring that nobody else uses."""
    with Pair(many, SLOW) as pair:
        still, alive = (pair.sender, pair.receiver) if victim == "sender" else (pair.receiver, pair.sender)
        pair.begin(4 << 20, pace=Pace(copy_s=PATIENCE_S, hand_over_s=3.0))
        _until(many, 3)
        still.signal(signal.SIGSTOP)
        with pytest.raises(
            PeerError, match=rf"the {victim} \(process {still.pid}\) did not hand over a slot within 3 s"
        ):
            alive.answer()
        pair.clean(alive)
        still.signal(signal.SIGCONT)
        with pytest.raises(PeerError, match=r"stopped the copy, after \d+ of 64.*PeerError: the .* did not hand over"):
            still.answer()
        pair.clean(still)


@pytest.mark.parametrize("victim", ["sender", "receiver"])
def test_a_side_whose_copy_hangs_tells_the_other_why(many: Segment, victim: str) -> None:
    with Pair(many, SLOW) as pair:
        late, other = (pair.sender, pair.receiver) if victim == "sender" else (pair.receiver, pair.sender)
        hasty = Pace(copy_s=0.001, hand_over_s=PATIENCE_S)
        pair.begin(1 << 20, pace=hasty if victim == "sender" else CALM, receiving=CALM if victim == "sender" else hasty)
        with pytest.raises(EngineError, match=r"did not end within 0\.001 s"):
            late.answer()
        with pytest.raises(PeerError, match=rf"the {victim} stopped the copy.*EngineError: host: .*within 0\.001 s"):
            other.answer()
        pair.clean(late)
        pair.clean(other)


def test_a_side_that_never_comes(many: Segment) -> None:
    with Remote() as alone:
        alone.ask("open", "host", None)
        alone.ask("attach", many.place, 0)
        pointer = alone.ask("prepare", 0, 1 << 20, 1)
        for name in ("send", "receive"):
            with pytest.raises(PeerError, match=r"did not hand over a slot within 0\.1 s, .*or never came"):
                alone.ask(name, 0, pointer, 1 << 20, Pace(copy_s=PATIENCE_S, hand_over_s=0.1))
            many.control.reset()


@pytest.mark.parametrize("known", [True, False], ids=["told by the kernel", "not told"])
def test_a_process_that_ended_before(many: Segment, known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the kernel does not say that a process has ended (before Linux 5.3), the deadline does."""
    with Remote() as other:
        pid = other.pid
    many.control.announce("receiver", pid, 1, 1)
    if not known:

        def without(pid: int) -> int:
            raise OSError(38, "Function not implemented")

        monkeypatch.setattr(os, "pidfd_open", without)
    engine = HostEngine()
    pace = CALM if known else Pace(copy_s=PATIENCE_S, hand_over_s=0.1)
    with pytest.raises(PeerError, match=rf"\(process {pid}\) {'has ended' if known else 'did not hand over'}"):
        ring.send(engine, many, engine.allocate(1), 1, pace)
    engine.close()


def test_the_owner_stops_both_sides(many: Segment) -> None:
    with Pair(many, SLOW) as pair:
        pair.begin(4 << 20)
        _until(many, 3)
        many.control.fail("owner", "the test is over")
        for side in (pair.sender, pair.receiver):
            with pytest.raises(PeerError, match=r"the owner stopped the copy, after \d+ of 64 .*: the test is over"):
                side.answer()
        assert many.control.failure("sender", "receiver") is None
        for side in (pair.sender, pair.receiver):
            pair.clean(side)


def test_sides_that_were_told_different_sizes(many: Segment) -> None:
    with Pair(many) as pair:
        pair.sender.tell("send", 0, pair.sender.ask("prepare", 0, 100, 1), 100, CALM)
        pair.receiver.tell("receive", 0, pair.receiver.ask("prepare", 0, 101, None), 101, CALM)
        with pytest.raises(PeerError, match=r"the sender moves 100 bytes by \d+, the receiver 101 by"):
            pair.receiver.answer()
        with pytest.raises(PeerError, match="the receiver stopped the copy"):
            pair.sender.answer()


def test_a_ring_that_failed_is_reset_by_its_owner_and_then_works(many: Segment) -> None:
    with Pair(many) as pair:
        many.control.fail("owner", "for once")
        pair.begin(5)
        for side in (pair.sender, pair.receiver):
            with pytest.raises(
                PeerError, match=r"the owner stopped the copy, before the .* began: for once; .* must reset"
            ):
                side.answer()
        many.control.reset()
        many.control.fail("sender", "for once")
        with pytest.raises(TransferError, match="the sender stopped the copy, before the sender began: for once"):
            pair.sender.ask("send", 0, pair.sender.ask("prepare", 0, 5, 1), 5, CALM)
        many.control.reset()
        pair.begin((1 << 20) + 13)
        pair.arrived()


def test_a_bad_pointer_of_one_side_ends_both(many: Segment) -> None:
    bench = Bench()
    with Remote() as other:
        other.ask("open", "host", None)
        other.ask("attach", many.place, 0)
        other.tell("receive", 0, other.ask("prepare", 0, 1 << 20, None), 1 << 20, CALM)
        bench.open("host", None)
        with pytest.raises(EngineError, match="do not lie in one allocation") as caught:
            ring.send(bench.engines[0], many, 0x10, 1 << 20, CALM)
        assert caught.value.kind == "argument"
        with pytest.raises(PeerError, match=r"the sender stopped the copy, .*HOST_ERROR_INVALID_VALUE"):
            other.answer()
    bench.close()


def test_an_interrupt_ends_the_other_side_too(many: Segment) -> None:
    class Interrupted(HostEngine):
        def wait(self, event: int, deadline_s: float) -> None:
            raise KeyboardInterrupt

    engine = Interrupted()
    with Remote() as other:
        other.ask("open", "host", None)
        other.ask("attach", many.place, 0)
        other.tell("receive", 0, other.ask("prepare", 0, 1 << 20, None), 1 << 20, CALM)
        with pytest.raises(KeyboardInterrupt):
            ring.send(engine, many, engine.allocate(1 << 20), 1 << 20, CALM)
        with pytest.raises(PeerError, match=r"the sender stopped the copy.*KeyboardInterrupt"):
            other.answer()
    engine.close()


def test_a_long_reason_is_cut_and_stays_readable(many: Segment) -> None:
    many.control.fail("sender", "ä" * 5000)
    failure = many.control.failure("receiver", "sender")
    assert failure is not None
    assert failure[0] == "sender"
    assert failure[1].startswith("ä" * 500)
    assert len(failure[1]) < 520


def test_slots_are_where_the_layout_says(many: Segment) -> None:
    """After a copy the last slots still hold what went through them, and the guards what they held before."""
    guard = many.layout.offset(0) - many.layout.guard_bytes
    with Pair(many) as pair:
        pair.begin(3 * many.layout.slot_bytes, 5)
        pair.arrived()
    data = data_of(5, 3 * many.layout.slot_bytes)
    bench = Bench()
    for slot in range(3):
        at = slot * many.layout.slot_bytes
        assert bench.get(many.slot_address(slot), many.layout.slot_bytes) == data[at : at + many.layout.slot_bytes]
        after = many.slot_address(slot) + many.layout.slot_bytes
        assert bench.get(after, many.layout.guard_bytes) == bytes(many.layout.guard_bytes)
    assert bench.get(many.address + guard, many.layout.guard_bytes) == bytes(many.layout.guard_bytes)
