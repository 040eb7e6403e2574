"""Tables and lists of the terminal, laid out by rich, which is imported when something is drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.reports.screen import Screen, render

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

__all__ = ["add_row", "bold", "grid", "lines_below"]


def grid(
    screen: Screen, *titles: str, right: Collection[str] = (), widths: Sequence[int] = (), headings: bool = True
) -> Any:
    """Return an empty table with a line below its titles; columns named in `right` are aligned to the right.

    The first columns get exactly `widths`. Without `headings` it is the rest of a table that began before.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    rule = box.Box("    \n    \n" + (" ── \n" if screen.unicode else " -- \n") + "    \n" * 5)
    table = Table(box=rule, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False, safe_box=False, show_header=headings)
    for number, title in enumerate(titles):
        heading = Text("\n").join(Text(screen.say(line), style="bold") for line in title.split("\n"))
        justify: Any = "right" if title in right else "left"
        table.add_column(
            heading, overflow="fold", justify=justify, width=widths[number] if number < len(widths) else None
        )
    return table


def add_row(table: Any, screen: Screen, *cells: tuple[str, str]) -> None:
    """Add a row of (text, style) to a table."""
    from rich.text import Text

    table.add_row(*(Text(screen.say(text), style=style) for text, style in cells))


def bold(text: str, screen: Screen, style: str = "bold") -> str:
    """Write one paragraph in bold."""
    from rich.text import Text

    return render(Text(screen.say(text), style=style), screen)


def lines_below(title: str, items: Sequence[tuple[str, object]], screen: Screen, *, style: str = "") -> str:
    """Write a title and below it (name, text) in two columns, texts wrapped under themselves. Nothing for no items."""
    from rich.table import Table
    from rich.text import Text

    if not items:
        return ""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(overflow="fold", max_width=max(12, screen.width // 2))
    table.add_column(overflow="fold")
    previous = None
    for name, text in items:
        shown = "" if name == previous else name
        previous = name
        table.add_row(Text("  " + screen.say(shown), style=style), Text(screen.say(text)))
    return bold(title, screen) + "\n" + render(table, screen)
