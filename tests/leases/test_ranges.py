"""Locks on ranges, the places of devices among them, and the pulse of waiters: the rules that everything rests on."""

from __future__ import annotations

import fcntl
import os
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, strategies as st

from pytest_gpucoexist.leases import function, queue, table
from pytest_gpucoexist.leases.claims import Claim
from pytest_gpucoexist.leases.function import FunctionLock
from pytest_gpucoexist.leases.hold import Hold
from pytest_gpucoexist.leases.layout import (
    KEEPERS,
    PRESENCE,
    PULSE_BYTES,
    SLOT_BYTES,
    TICKETS,
    heirs,
    lent,
    mark,
    number_in_slot,
    pulse,
    queue as queue_of,
    slot,
)
from pytest_gpucoexist.leases.ofd import conflict, conflicts, free_ranges, lock, unlock
from pytest_gpucoexist.leases.table import TableLocks, TableMissingError
from tests.leases.processes import folder_place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="locks on ranges are Linux's")


@pytest.fixture
def openings(tmp_path: Path) -> Iterator[Callable[..., int]]:
    """Open one file many times."""
    path = tmp_path / "file"
    path.touch()
    found: list[int] = []

    def opening(flags: int = os.O_RDWR) -> int:
        found.append(os.open(path, flags))
        return found[-1]

    yield opening
    for fd in found:
        os.close(fd)


@given(
    taken=st.lists(st.tuples(st.integers(0, 39), st.integers(1, 12), st.booleans()), max_size=12),
    start=st.integers(0, 20),
    length=st.integers(1, 30),
)
def test_conflicts_and_gaps_are_all_of_a_range_in_order(
    tmp_path_factory: pytest.TempPathFactory, taken: list[tuple[int, int, bool]], start: int, length: int
) -> None:
    path = tmp_path_factory.mktemp("ranges") / "file"
    path.touch()
    mine = os.open(path, os.O_RDWR)
    others = [os.open(path, os.O_RDWR) for _ in range(3)]
    try:
        locked: set[int] = set()
        for number, (at, size, shared) in enumerate(taken):
            if lock(others[number % 3], at, size, shared=shared):
                locked.update(range(at, at + size))
        end = start + length
        found = [byte for at, size in conflicts(mine, start, length) for byte in range(at, at + size)]
        assert found == sorted(found)
        assert set(found) == {byte for byte in locked if start <= byte < end}
        gaps = [byte for at, size in free_ranges(mine, start, length) for byte in range(at, at + size)]
        assert gaps == [byte for byte in range(start, end) if byte not in locked]
    finally:
        for fd in (mine, *others):
            os.close(fd)


def test_who_only_reads_sees_and_announces(openings: Callable[..., int]) -> None:
    one, two = openings(os.O_RDONLY), openings(os.O_RDONLY)
    with pytest.raises(OSError, match="Bad file descriptor"):
        lock(one, 0, 1)
    assert lock(one, 5, 1, shared=True)
    assert lock(two, 5, 1, shared=True)
    assert conflict(one, 0, 10) == (5, 1)
    unlock(two, 0, 0)
    assert conflict(one, 0, 10) is None
    assert conflict(two, 0, 10) == (5, 1)
    assert conflict(two, 0, 10, shared=True) is None


def test_a_lock_to_the_end_of_the_file_is_clipped(openings: Callable[..., int]) -> None:
    one, two = openings(), openings()
    assert lock(one, 10, 0)
    assert list(conflicts(two, 0, 20)) == [(10, 10)]
    assert list(free_ranges(two, 0, 20)) == [(0, 10)]


@given(st.text(max_size=60))
def test_regions_do_not_meet(key: str) -> None:
    assert 0 <= slot(key) <= (1 << 61) - SLOT_BYTES
    assert 1 << 61 <= queue_of(key) <= (1 << 62) - TICKETS
    assert pulse(0) >= 1 << 62
    assert pulse(TICKETS - 1) + PULSE_BYTES <= PRESENCE < KEEPERS < 1 << 63
    middle = (1 << 62) + (1 << 60) + (1 << 59)
    assert pulse(TICKETS - 1) + PULSE_BYTES <= heirs(key) <= middle - SLOT_BYTES
    assert middle <= lent(key) <= PRESENCE - SLOT_BYTES
    assert 0 <= number_in_slot(key) < SLOT_BYTES
    assert len(mark(key)) == 8
    assert any(mark(key))


def test_a_table_is_made_under_the_folders_lock_alone(folder: Path) -> None:
    other = os.open(folder, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_SH)
    with pytest.raises(TableMissingError):
        TableLocks(str(folder))
    assert not (folder / "table").exists()
    fcntl.flock(other, fcntl.LOCK_UN)
    found = TableLocks(str(folder))
    with pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    found.rest()
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with pytest.raises(TableMissingError):
        found.wake()
    os.close(other)
    found.wake()
    assert found.intact()
    (folder / "table").rename(folder / "moved")
    assert not found.intact()
    (folder / "table").touch()
    assert not found.intact()
    found.close()


def test_a_share_of_which_others_were_faster_is_given_back(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one locks bytes between the search for free ones and the lock."""
    mine, other = TableLocks(str(folder)), TableLocks(str(folder))
    claim = Claim("k", "k", None, 3, 4)

    def late(fd: int, start: int, length: int) -> list[tuple[int, int]]:
        assert lock(other.locked_fd, start + 1, 2)
        return [(start, 1), (start + 1, 2), (start + 3, 1)]

    monkeypatch.setattr(table, "free_ranges", late)
    assert not mine.take(claim)
    assert list(conflicts(other.locked_fd, slot("k"), SLOT_BYTES)) == []
    mine.close()
    other.close()


def test_of_two_who_announce_the_same_bytes_at_most_one_keeps_them(tmp_path: Path) -> None:
    path = tmp_path / "vendor"
    path.write_text("0x10de\n")
    one, two = FunctionLock(str(path)), FunctionLock(str(path))
    claim = Claim("k", "k", None, 2, 4)
    assert one.take(claim, [(slot("k"), 2)])
    # Who wanted the same bytes finds others; when there are too few, none.
    assert two.take(claim, [(slot("k") + 1, 2)])
    three = FunctionLock(str(path))
    assert not three.take(claim, [(slot("k"), 2)])
    assert not three.take(Claim("k", "k"))
    one.give(claim)
    assert three.take(claim)
    two.give(claim)
    three.give(claim)
    assert three.take(Claim("k", "k"))
    for each in (one, two, three):
        each.close()


def test_who_sees_an_announcement_after_its_own_withdraws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worst order there is: the other one comes after the search for free bytes, and before the look."""
    path = tmp_path / "vendor"
    path.write_text("0x10de\n")
    one, other = FunctionLock(str(path)), os.open(path, os.O_RDONLY)
    claim = Claim("k", "k", None, 2, 2)

    def late(fd: int, start: int, length: int) -> Iterator[tuple[int, int]]:
        yield from free_ranges(fd, start, length)
        assert lock(other, start, 1, shared=True)

    monkeypatch.setattr(function, "free_ranges", lambda *where: list(late(*where)))
    assert not one.take(claim)
    assert conflict(other, 0, 0) is None
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(other)
    one.close()


def test_shares_and_instances_of_a_function_exclude_each_other(tmp_path: Path) -> None:
    path = tmp_path / "vendor"
    path.write_text("0x1002\n")
    one, two = FunctionLock(str(path)), FunctionLock(str(path))
    share, first, second = Claim("k", "k", None, 1, 4), Claim("k/1", "k/1", "k"), Claim("k/2", "k/2", "k")
    assert one.take(share)
    assert not two.take(first)
    one.give(share)
    assert two.take(first)
    assert not one.take(share)
    assert not one.take(first)
    assert one.take(second)
    two.give(first)
    assert not two.take(share)
    one.give(second)
    assert two.take(share)
    for each in (one, two):
        each.close()


def test_a_waiter_is_silent_after_looks_and_time_and_lives_when_it_moves(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("pytest_gpucoexist.leases.queue.time.monotonic", lambda: now[0])
    claim = Claim("k", "k")
    first, second = Hold(folder_place(folder)), Hold(folder_place(folder))
    watch = queue.Watch()
    waiter, other = queue.Turn(first, queue.Watch()), queue.Turn(second, watch)
    waiter.draw([claim])
    now[0] += 0.01
    other.draw([claim])
    assert waiter.may_take(claim)
    assert (other.may_take(claim), other.ahead([claim])) == (False, 1)
    now[0] += 10  # time alone says nothing: it may be this process that stood still
    assert not other.may_take(claim)
    for _ in range(8):
        other.may_take(claim)
    assert other.may_take(claim)
    waiter.beat()
    assert not other.may_take(claim)
    waiter.leave()
    assert other.may_take(claim)
    # Whoever comes later is behind, also with the same number of milliseconds.
    waiter.draw([claim])
    assert not waiter.may_take(claim)
    assert other.may_take(claim)
    first.close()
    second.close()


def test_who_has_not_drawn_is_behind_everybody_on_a_card_and_its_parts(folder: Path) -> None:
    first, second = Hold(folder_place(folder)), Hold(folder_place(folder))
    waiter, late = queue.Turn(first, queue.Watch()), queue.Turn(second, queue.Watch())
    waiter.draw([Claim("k", "k")])
    assert not late.may_take(Claim("k", "k"))
    assert not late.may_take(Claim("k/1", "k/1", "k"))
    assert late.may_take(Claim("j", "j"))
    first.close()
    assert late.may_take(Claim("k", "k"))
    second.close()
