"""Each kind of holder in words, and how long something lasts."""

from __future__ import annotations

import pytest

from pytest_gpucoexist.cli.leasetext import board_lines, board_text, span
from pytest_gpucoexist.leases.board import Board, BoardDevice, BoardPlace, BoardWait
from pytest_gpucoexist.leases.lease import Holder
from pytest_gpucoexist.reports.screen import Screen
from tests.reports.schemas import problems

KEY = "0000:41:00.0"
PLACE = BoardPlace(
    kind="process",
    folder=None,
    functions=None,
    locks="process",
    where="this process",
    protects="the other threads of this process",
    limits=("Other processes are not held back.",),
    notes=("/tmp cannot be written.",),
)


def board(*holders: Holder, problem: str | None = None, waiting: tuple[BoardWait, ...] = ()) -> Board:
    device = BoardDevice(key=KEY, id="nvidia0", name=None, holders=holders, waiting=len(waiting), problem=problem)
    return Board(
        schema=1, machine="ws", simulated=False, read_at_s=1000.0, place=PLACE, devices=(device,), waiting=waiting
    )


LEASE = Holder(
    key=KEY,
    kind="lease",
    pid=7,
    uid=1000,
    user="alice",
    program="pytest",
    session="0123456789abcdef",
    worker="gw0",
    test="test_a.py::test_x",
    since_s=813.0,
    memory_bytes=8 << 30,
)


@pytest.mark.parametrize(
    ("holder", "words"),
    [
        (LEASE, "8 GiB  3:07  alice, pytest, PID 7 (gw0 of session 01234567): test_a.py::test_x"),
        (
            Holder(key=KEY, kind="lease", pid=7, uid=1000, program="pytest", session="s1", test="t"),
            "whole       uid 1000, pytest, PID 7 (session s1): t",
        ),
        (
            Holder(key=KEY, kind="elsewhere", pid=9, uid=0, user="root", program="vllm", memory_bytes=1 << 20),
            "1 MiB       without a lease: root, vllm, PID 9",
        ),
        (
            Holder(key=KEY, kind="elsewhere", memory_bytes=5 << 30),
            "5 GiB       without a lease: somebody who cannot be seen from here",
        ),
        (
            Holder(key=KEY, kind="leftover", pid=600, test="t", memory_bytes=3 << 30),
            "3 GiB       left behind: memory of PID 600, which died: t",
        ),
        (
            Holder(key=KEY, kind="leftover", memory_bytes=3 << 30),
            "3 GiB       left behind: memory of a process, which died",
        ),
        (
            Holder(key=KEY, kind="leftover", pid=610, uid=0, user="root", program="server", test="t"),
            "?           left behind: root, server, PID 610: t",
        ),
        (Holder(key=KEY, kind="unknown"), "?           somebody without a record"),
        (Holder(key=KEY, kind="unknown", pid=7), "?           somebody without a record, PID 7"),
    ],
)
def test_who_has_a_device(holder: Holder, words: str) -> None:
    made = board(holder)
    line = board_text(made, Screen(width=120)).splitlines()[4]
    assert line == f"nvidia0 {KEY}  {words}"
    assert problems("leases", made.to_json()) == []
    assert words.rsplit("  ", maxsplit=1)[-1].strip() in board_lines(made)[KEY]


def test_a_free_device_of_which_nothing_is_known() -> None:
    text = board_text(board(problem="NVML: no answer within 5 s"), Screen(width=120))
    assert f"nvidia0 {KEY}  free" in text
    assert "who uses it without a lease is not known: NVML: no answer within 5 s" in text


def test_what_a_place_is_good_for() -> None:
    lines = board_text(board(), Screen(width=80)).splitlines()
    assert lines[-4:] == [
        "kept in    this process",
        "hold back  the other threads of this process",
        "but        Other processes are not held back.",
        "note       /tmp cannot be written.",
    ]


@pytest.mark.parametrize(
    ("devices", "words"),
    [
        ((KEY,), "nvidia0"),
        ((KEY, "amd-key"), "nvidia0, amd-key"),
        ((KEY, "b", "c", "d"), "nvidia0, b and 2 others"),
    ],
)
def test_what_could_be_used(devices: tuple[str, ...], words: str) -> None:
    wait = BoardWait(
        devices=devices, pid=8, uid=1, user=None, session="s2", worker=None, test="test_b.py::test_y", since_s=940.0
    )
    made = board(LEASE, waiting=(wait,))
    text = board_text(made, Screen(width=120))
    assert "1 of 1 device held, 1 request waits" in text
    assert f"\n{words}  " in text
    assert "1:00  uid 1, PID 8 (session s2): test_b.py::test_y" in text
    assert board_lines(made)["8 test_b.py::test_y"].startswith(f"waits, could use {words}: uid 1, PID 8")


@pytest.mark.parametrize(
    ("seconds", "text"), [(-3, "0 s"), (59.9, "59 s"), (60, "1:00"), (3599, "59:59"), (7500, "2:05:00")]
)
def test_how_long(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_names_from_records_cannot_write_to_the_terminal() -> None:
    holder = Holder(key=KEY, kind="lease", pid=7, user="\x1b[31mmallory", program="py\ntest", test="t\u202e")
    text = board_text(board(holder), Screen(width=120))
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "[31mmallory, py test" in text
