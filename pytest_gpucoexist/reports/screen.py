"""What a text is written for: how wide, which characters, whether in colour.

Everything that makes text takes a `Screen` and is a pure function of it, so that it is tested without a terminal.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["PLAIN", "Screen", "render", "screen_for"]

DEFAULT_WIDTH = 120
"""Columns where nobody says: output that goes to a file or a pipe."""

# Names of devices and reasons come from recordings, drivers and other people's tests: an escape sequence in one of
# them must not reach the terminal. Tabs and line ends become spaces, the other C0 and C1 controls go, as do the
# characters that reverse the direction of text.
_WHITE = re.compile(r"[\t\n\v\f\r\x85\u2028\u2029]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

_ASCII = str.maketrans(
    {"\u2013": "-", "\u2014": "-", "·": "|", "…": "...", "→": "->", "≥": ">=", "≤": "<=", "\u00d7": "x", "─": "-"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """Where a text goes. `unicode` is false when the encoding has no box characters."""

    width: int = DEFAULT_WIDTH
    unicode: bool = True
    colour: bool = False

    def say(self, text: object) -> str:
        """Make a text safe to print: one line, no control characters, only characters that the screen has."""
        line = _CONTROL.sub("", _WHITE.sub(" ", str(text)))
        if self.unicode:
            return line.encode("utf-8", "replace").decode("utf-8")
        return line.translate(_ASCII).encode("ascii", "replace").decode("ascii")


PLAIN = Screen()
"""A wide screen without colour."""


def screen_for(
    stream: IO[str] | Any, environ: Mapping[str, str], *, width: int | None = None, colour: bool | None = None
) -> Screen:
    """Describe a stream. `COLUMNS` and `NO_COLOR` (https://no-color.org) win over what the stream says.

    A caller that knows better (pytest's terminal writer) gives `width` and `colour`.
    """
    terminal = _is_terminal(stream)
    if colour is None:
        colour = terminal and environ.get("TERM") != "dumb"
    if environ.get("NO_COLOR"):
        colour = False
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return Screen(
        width=max(40, width or _width(stream, environ, terminal)), unicode=_has_boxes(encoding), colour=colour
    )


def _is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):  # a stand-in, or closed
        return False


def _width(stream: Any, environ: Mapping[str, str], terminal: bool) -> int:
    columns = environ.get("COLUMNS", "")
    if columns.isdigit() and int(columns) > 0:
        return int(columns)
    if terminal:
        try:
            return os.get_terminal_size(stream.fileno()).columns or 80
        except (OSError, ValueError, AttributeError):
            return 80
    return DEFAULT_WIDTH


def _has_boxes(encoding: str) -> bool:
    try:
        "├─└│·\u2013…→≥".encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def render(renderable: Any, screen: Screen) -> str:
    """Lay out something of rich's as text; no white space at the ends of lines, none but its own colours."""
    from io import StringIO

    from rich.console import Console

    target = StringIO()
    console = Console(
        file=target,
        width=screen.width,
        force_terminal=screen.colour,
        color_system="standard" if screen.colour else None,
        no_color=not screen.colour,
        legacy_windows=False,
        highlight=False,
        markup=False,
        emoji=False,
        _environ={},
    )
    console.print(renderable, crop=False, overflow="fold")
    return "\n".join(line.rstrip() for line in target.getvalue().rstrip("\n").split("\n"))
