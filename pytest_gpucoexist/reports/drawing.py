"""Trees of the terminal: each item on one line where it fits, continued below itself where it does not."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.reports.screen import Screen, render

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Item", "draw"]

# Guides for: an item with others after it, the last one, below an item with others after it, below the last one.
_UNICODE = ("├─ ", "└─ ", "│  ", "   ")
_ASCII = ("+- ", "`- ", "|  ", "   ")


@dataclass(slots=True, kw_only=True)
class Item:
    """A line of a tree: what it is, then details that move to a line of their own where there is no room."""

    head: str
    head_style: str = ""
    label: str = ""
    tail: str = ""
    tail_style: str = "dim"
    children: list[Item] = field(default_factory=list)


def draw(item: Item, screen: Screen) -> str:
    """Draw an item and everything below it."""
    from rich.text import Text

    lines = Text("\n").join(_lines(item, "", "", screen))
    return render(lines, screen)


def _lines(item: Item, first: str, rest: str, screen: Screen) -> Iterator[Any]:
    from rich.text import Text

    below = (_UNICODE if screen.unicode else _ASCII)[2] if item.children else "   "
    for number, line in enumerate(_wrapped(item, screen.width - len(first), screen)):
        prefix = first if number == 0 else rest + below
        yield Text.assemble((prefix, "dim"), line)
    guides = _UNICODE if screen.unicode else _ASCII
    for number, child in enumerate(item.children):
        last = number == len(item.children) - 1
        yield from _lines(child, rest + guides[1 if last else 0], rest + guides[3 if last else 2], screen)


def _wrapped(item: Item, width: int, screen: Screen) -> Iterator[Any]:
    """Lay out one item. Lines after the first are three columns narrower, since they stand below its guide."""
    from io import StringIO

    from rich.console import Console
    from rich.text import Text

    head = Text(screen.say(item.head), style=item.head_style)
    if item.label:
        head = Text.assemble(head, "  ", screen.say(item.label))
    tail = Text(screen.say(item.tail), style=item.tail_style)
    whole = Text.assemble(head, "  ", tail) if item.tail else head
    if whole.cell_len <= width:
        yield whole
        return
    console = Console(file=StringIO(), _environ={})
    room = max(12, width - 3)
    yield from head.wrap(console, room)
    if item.tail:
        yield from tail.wrap(console, room)
