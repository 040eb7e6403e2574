"""Where ranks meet: who is answered what, in whatever order they come."""

from __future__ import annotations

import itertools
import os
import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucoexist.errors import GpuCoexistError
from pytest_gpucoexist.placement.ranks.board import Answer, Board, Step
from pytest_gpucoexist.placement.ranks.job import Hello, difference
from pytest_gpucoexist.placement.ranks.wire import Connection, address_of, connect, is_possible, listen, peer_uid

if TYPE_CHECKING:
    from collections.abc import Mapping

needs_linux = pytest.mark.skipif(not is_possible(), reason="needs Linux: its abstract namespace of sockets")


class Table:
    """A board with its answers by rank; rank 0 is a thread, where it has to decide."""

    def __init__(self, size: int) -> None:
        self.board = Board(size)
        self.answers: dict[int, list[Answer]] = {rank: [] for rank in range(size)}

    def come(self, rank: int, verb: Any, what: str = "t", value: Any = None) -> None:
        self.board.arrive(rank, Step(verb=verb, what=what, value=value), self.answers[rank].append)

    def lead(self, verb: Any, what: str = "t", value: Any = None) -> Answer:
        def add(values: Mapping[int, Any]) -> dict[int, Any]:
            return {rank: (rank, sum(values.values())) for rank in values}

        return self.board.meet(Step(verb=verb, what=what, value=value), add, str)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_all_are_answered_when_the_last_has_come(order: tuple[int, ...]) -> None:
    table = Table(3)
    for at, rank in enumerate(order):
        assert not any(table.answers.values())
        table.come(rank, "end")
        assert at == 2 or not any(table.answers.values())
    assert list(table.answers.values()) == [[("ok", None)]] * 3


def test_rank_0_decides_for_all_from_what_each_says() -> None:
    table = Table(3)
    table.come(1, "begin", value=10)
    table.come(2, "begin", value=100)
    assert table.lead("begin", value=1) == ("ok", (0, 111))
    assert table.answers == {0: [], 1: [("ok", (1, 111))], 2: [("ok", (2, 111))]}


def test_rank_0_waits_for_the_others() -> None:
    table = Table(2)
    said: list[Answer] = []
    thread = threading.Thread(target=lambda: said.append(table.lead("acquire", value=1)))
    thread.start()
    table.come(1, "acquire", value=2)
    thread.join(30)
    assert said == [("ok", (0, 3))]


def test_what_goes_wrong_while_rank_0_decides_is_an_error_for_all() -> None:
    table = Table(2)

    def fails(_values: Mapping[int, Any]) -> dict[int, Any]:
        raise GpuCoexistError("no such thing")

    table.come(1, "acquire")
    with pytest.raises(GpuCoexistError, match="no such thing"):
        table.board.meet(Step(verb="acquire", what="t"), fails, str)
    assert table.answers[1] == [("error", "no such thing")]


@pytest.mark.parametrize("other", ["begin", "ready", "end"])
def test_who_asks_for_devices_alone_is_refused_and_the_others_go_on(other: str) -> None:
    table = Table(2)
    table.come(1, "acquire")
    assert table.answers[1] == []
    table.come(0, other)
    assert table.answers[1] == [("error", "rank 0 did not ask for devices here: ranks ask together or not")]
    assert table.answers[0] == []


def test_who_asks_for_something_else_is_refused() -> None:
    table = Table(2)
    table.come(0, "acquire", "one")
    table.come(1, "acquire", "two")
    words = "the ranks do not ask for the same: rank 0 at one, rank 1 at two"
    assert table.answers == {0: [("error", words)], 1: [("error", words)]}
    assert table.board.broken is None


def test_a_refusal_of_one_is_heard_by_all_that_are_ready() -> None:
    table = Table(3)
    table.come(0, "ready")
    table.come(1, "ready", value="no device")
    table.come(2, "end")  # skipped by a mark of the suite's own
    assert table.answers == {0: [("ok", {1: "no device"})], 1: [("ok", {1: "no device"})], 2: []}
    table.come(0, "end")
    table.come(1, "end")
    assert table.answers[2] == [("ok", None)]


def test_ranks_at_different_tests_break_the_job_at_once() -> None:
    table = Table(3)
    table.come(1, "begin", "a")
    table.come(2, "begin", "b")
    assert table.answers[1][0][0] == table.answers[2][0][0] == "broken"
    assert "rank 1 at a, rank 2 at b" in str(table.board.broken)
    table.come(0, "begin", "a")
    assert table.answers[0] == [("broken", table.board.broken)]


def test_who_left_stops_the_others_at_their_next_test_and_not_before() -> None:
    table = Table(3)
    table.come(0, "end")
    table.come(2, "end")
    table.board.leave(1, "ended its run (-x)")
    assert table.answers[0] == table.answers[2] == [("ok", None)]
    table.come(0, "begin")
    table.come(2, "begin")
    assert table.answers[0][1:] == table.answers[2][1:] == [("stop", "rank 1 ended its run (-x)")]
    assert table.board.broken is None


def test_a_death_is_told_to_who_waits_and_to_who_comes_later_and_the_first_words_count() -> None:
    table = Table(3)
    table.come(0, "ready")
    assert table.board.lose("rank 1 died") is True
    assert table.board.lose("rank 2 died") is False
    table.come(2, "end")
    assert table.answers[0] == table.answers[2] == [("broken", "rank 1 died")]


@needs_linux
def test_messages_arrive_whole_and_in_order() -> None:
    one, two = (Connection(end) for end in socket.socketpair())
    sent: list[Any] = [{"n": 1}, "ü" * 300_000, [], {"last": True}]
    thread = threading.Thread(target=lambda: [one.send(each) for each in sent])
    thread.start()
    assert [two.receive() for _ in sent] == sent
    thread.join()
    one.close()
    assert two.receive() is None
    assert two.send("nobody") is False or two.send("nobody") is False
    two.close()


@needs_linux
@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff", b"\0\0\0\x02no", b"\0\0\0\x09{", b"\0"])
def test_what_is_no_message_ends_a_connection(data: bytes) -> None:
    raw, end = socket.socketpair()
    connection = Connection(end)
    raw.sendall(data)
    raw.close()
    assert connection.receive() is None
    connection.close()


@needs_linux
def test_there_is_one_first_rank_and_both_sides_know_whose_process_the_other_is() -> None:
    address = address_of(f"a job of {os.getpid()}")
    server = listen(address)
    try:
        with pytest.raises(GpuCoexistError, match="another process is rank 0 of this node there"):
            listen(address)
        client = connect(address, 5)
        end, _ = server.accept()
        assert peer_uid(end) == os.getuid()
        end.close()
        client.close()
    finally:
        server.close()
    with pytest.raises(GpuCoexistError, match="did not come to the other ranks within 0 s"):
        connect(address, 0)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (Hello(rank=1, tests=("a", "b", "c")), None),
        (Hello(rank=1, tests=("b", "a", "c")), "different orders (test 1 is a on rank 0 and b on rank 1)"),
        (Hello(rank=1, tests=("a", "c")), "3 tests and rank 1 2 (1 only on rank 0, such as b)"),
        (Hello(rank=1, tests=("a", "b", "d")), "1 only on rank 0, such as c; 1 only on rank 1, such as d"),
        (Hello(rank=1, tests=("a", "b", "c", "c")), "some of them twice"),
        (Hello(rank=1, tests=("a",), options={"missing": "fail"}), "--gpu-missing is not given on rank 0, fail"),
    ],
)  # fmt: skip
def test_how_ranks_differ(other: Hello, words: str | None) -> None:
    found = difference(Hello(rank=0, tests=("a", "b", "c")), other)
    assert found is None if words is None else words in str(found)
