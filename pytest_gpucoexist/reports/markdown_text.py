"""Texts, code and tables in Markdown, safe for what devices and tests call themselves."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytest_gpucoexist.reports.screen import PLAIN

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["code", "table", "text"]

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~@!&])")


def text(value: object) -> str:
    """Escape what Markdown, a table or a mention would understand."""
    return _SPECIAL.sub(r"\\\1", PLAIN.say(value))


def code(value: object) -> str:
    """Write code; a fence longer than any run of backticks within. A bar would end the cell even there."""
    said = PLAIN.say(value).replace("|", "\\|")
    fence = "`" * (1 + max((len(run) for run in re.findall(r"`+", said)), default=0))
    return f"{fence} {said} {fence}" if "`" in said else f"`{said}`"


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Write a table and an empty line. Cells are finished Markdown."""
    lines = [f"| {' | '.join(titles)} |", f"|{'---|' * len(titles)}"]
    return [*lines, *(f"| {' | '.join(cells)} |" for cells in rows), ""]
