"""What a text is written for."""

from __future__ import annotations

import io
import os
import pty

import pytest

from pytest_gpucoexist.reports.layout import bold, grid, lines_below
from pytest_gpucoexist.reports.screen import PLAIN, Screen, render, screen_for


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        raise OSError(25, "Inappropriate ioctl for device")


def stream(encoding: str) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding=encoding)


def test_a_file_is_wide_and_without_colour() -> None:
    assert screen_for(stream("utf-8"), {}) == Screen(width=120, unicode=True, colour=False)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "no-such-codec"])
def test_no_box_characters_where_the_encoding_has_none(encoding: str) -> None:
    class Odd(io.StringIO):
        pass

    target = Odd()
    Odd.encoding = encoding
    assert screen_for(target, {}).unicode is False


def test_a_terminal_that_tells_no_size_has_80_columns() -> None:
    assert screen_for(Terminal(), {}) == Screen(width=80, unicode=True, colour=True)


def test_a_terminal_tells_its_size() -> None:
    leader, follower = pty.openpty()
    try:
        with os.fdopen(follower, "w") as terminal:
            import fcntl
            import struct
            import termios

            fcntl.ioctl(terminal.fileno(), termios.TIOCSWINSZ, struct.pack("HHHH", 40, 133, 0, 0))
            assert screen_for(terminal, {}).width == 133
    finally:
        os.close(leader)


@pytest.mark.parametrize(("columns", "width"), [("100", 100), ("0", 80), ("wide", 80), ("12", 40)])
def test_columns_wins_where_it_is_a_width(columns: str, width: int) -> None:
    assert screen_for(Terminal(), {"COLUMNS": columns}).width == width


def test_no_color_is_honoured_even_when_colour_is_asked_for() -> None:
    assert screen_for(Terminal(), {"NO_COLOR": "1"}, colour=True).colour is False
    assert screen_for(Terminal(), {"NO_COLOR": ""}).colour is True
    assert screen_for(Terminal(), {"TERM": "dumb"}).colour is False


def test_a_caller_that_knows_better_says_so() -> None:
    assert screen_for(stream("utf-8"), {"COLUMNS": "70"}, width=91, colour=True) == Screen(width=91, colour=True)


def test_a_stand_in_or_a_closed_stream_is_no_terminal() -> None:
    closed = io.StringIO()
    closed.close()
    assert screen_for(object(), {}).colour is False
    assert screen_for(closed, {}).colour is False


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("RTX\x1b[2J 4070", "RTX[2J 4070"),
        ("one\r\ntwo\tthree", "one two three"),
        ("a\u202egnp.exe", "agnp.exe"),
        ("\x9b31mred\x00", "31mred"),
        ("half \ud800 pair", "half ? pair"),
        ("Müller → GPU", "Müller → GPU"),
    ],
)
def test_nothing_that_moves_the_cursor_is_said(text: str, said: str) -> None:
    assert PLAIN.say(text) == said


def test_plain_ascii_where_nothing_else_goes() -> None:
    assert Screen(unicode=False).say("a → b · c ≥ 2 … é") == "a -> b | c >= 2 ... ?"


def test_colour_is_written_only_when_asked_for() -> None:
    assert bold("x", Screen(colour=True)) == "\x1b[1mx\x1b[0m"
    assert bold("x", Screen()) == "x"


def test_markup_in_a_text_is_text() -> None:
    from rich.text import Text

    table = grid(PLAIN, "[bold]Title[/bold]")
    table.add_row(Text("[red]x"))
    assert "[bold]Title[/bold]" in render(table, PLAIN)
    assert "[red]x" in render(table, PLAIN)


def test_a_name_is_written_once_for_its_lines() -> None:
    text = lines_below("Title", [("a", "one"), ("a", "two"), ("b", "three")], PLAIN)
    assert text.split("\n") == ["Title", "  a  one", "     two", "  b  three"]
    assert lines_below("Title", [], PLAIN) == ""


def test_nothing_is_wider_than_the_screen() -> None:
    text = lines_below("T", [("name " * 20, "text " * 40)], Screen(width=50))
    assert max(map(len, text.split("\n"))) <= 50
