"""The matrix of copies: rows from, columns to; GB/s, and a mark that says what the gates think of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.model.trials import HOST
from pytest_gpucoexist.model.verdicts import worst
from pytest_gpucoexist.reports.layout import bold
from pytest_gpucoexist.reports.screen import PLAIN, Screen

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucoexist.model.trials import Integrity, Sample, Trials, Untried
    from pytest_gpucoexist.model.verdicts import Judgement, VerdictStatus

__all__ = ["cells", "ends", "matrix_lines", "matrix_rows"]

_RATES = ("h2d", "d2h", "staged")
_MARKS: dict[str, tuple[str, str]] = {
    "PASS": ("✓", "+"),
    "WARN": ("!", "!"),
    "FAIL": ("✗", "X"),
    "ERROR": ("?", "?"),
    "UNKNOWN": ("?", "?"),
    "SKIP": (" ", " "),
}
_WIDTH = 10


def ends(trials: Trials, names: Mapping[str, str]) -> list[str]:
    """Return the ends of all copies, the host first, then devices in the order of `names` (ids by key)."""
    trial: Integrity | Sample | Untried
    seen: set[str] = set()
    for trial in [*trials.integrity, *trials.samples, *trials.untried]:  # type: ignore[assignment]
        seen |= {end for end in (trial.source, trial.target) if end is not None}
    return [HOST, *(key for key in names if key in seen), *sorted(seen - names.keys() - {HOST})]


def cells(judgement: Judgement) -> dict[tuple[str, str], tuple[str, VerdictStatus]]:
    """Return for each way from, to: the rate in GB/s ("" where there is none), and the worst that was said of it.

    What was verified and is wrong is a FAIL, whatever gates were asked; a gate speaks of a way where its evidence does.
    """
    trials = judgement.trials
    if trials is None:
        return {}
    rates = {
        (each.source, each.target): f"{each.bytes_per_s / 1e9:.3g}"
        for each in trials.samples
        if each.kind in _RATES and each.bytes_per_s
    }
    found: dict[tuple[str, str], list[VerdictStatus]] = {way: ["PASS"] for way in rates}
    for one in trials.integrity:
        found.setdefault((one.source, one.target), []).append("FAIL" if one.wrong else "PASS")
    for gap in trials.untried:
        way = _way_of(gap.kind, gap.source, gap.target)
        if way is not None and gap.status != "SKIP":
            found.setdefault(way, []).append(gap.status)
    for verdict in judgement.verdicts:
        if verdict.group.startswith("transfer-") and verdict.status in {"WARN", "FAIL"} and verdict.ignored is None:
            for way, statuses in found.items():
                start = f"{way[0]} -> {way[1]}"
                if any(each.source == start or each.source.startswith(f"{start},") for each in verdict.evidence):
                    statuses.append(verdict.status)
    return {way: (rates.get(way, ""), worst(tuple(statuses))) for way, statuses in found.items()}


def _way_of(kind: str, source: str | None, target: str | None) -> tuple[str, str] | None:
    if source is not None and target is not None:
        return source, target
    if source is None:
        return None
    return {"h2d": (HOST, source), "roundtrip": (HOST, source), "d2h": (source, HOST)}.get(kind)


def matrix_rows(judgement: Judgement, names: Mapping[str, str], *, unicode: bool = True) -> list[list[str]]:
    """Return the matrix as rows of texts, the first one with what each column is copied to."""
    if judgement.trials is None:
        return []
    keys, found = ends(judgement.trials, names), cells(judgement)
    rows = [["from \\ to", *(names.get(key, key) for key in keys)]]
    for source in keys:
        row = [names.get(source, source)]
        for target in keys:
            rate, status = found.get((source, target), ("", "SKIP"))
            mark = _MARKS[status][0 if unicode else 1]
            row.append(f"{rate or ('ok' if status == 'PASS' else '-')} {mark}".rstrip())
        rows.append(row)
    return rows


def matrix_lines(judgement: Judgement, names: Mapping[str, str], screen: Screen = PLAIN) -> list[str]:
    """Write the matrix, in several pieces where the screen is too narrow for all columns."""
    rows = matrix_rows(judgement, names, unicode=screen.unicode)
    if len(rows) < 3:
        return []
    head = max(len(row[0]) for row in rows)
    each = max(_WIDTH, *(len(cell) + 2 for row in rows for cell in row[1:]))
    count = max(1, (screen.width - head) // each)
    lines = [bold("copies, GB/s", screen)]
    for first in range(1, len(rows[0]), count):
        for row in rows:
            lines.append(
                screen.say(row[0]).ljust(head)
                + "".join(screen.say(cell).rjust(each) for cell in row[first : first + count])
            )
    marks = [f"{_MARKS[name][0 if screen.unicode else 1]} {words}" for name, words in _WORDS]
    lines.append(screen.say("   ".join(marks)))
    return [line.rstrip() for line in lines]


_WORDS = (("PASS", "right"), ("WARN", "a warning"), ("FAIL", "a failure"), ("UNKNOWN", "not known"))
