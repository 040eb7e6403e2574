"""What several runners did, for the terminal: tests that ran nowhere first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.reports.layout import add_row, bold, grid, lines_below
from pytest_gpucoexist.reports.screen import PLAIN, Screen, render
from pytest_gpucoexist.reports.summary import OUTCOME_WORDS
from pytest_gpucoexist.reports.words import counted, plural

if TYPE_CHECKING:
    from pytest_gpucoexist.reports.merge import MergedReport, MergedTest, Runner

__all__ = ["merged_text"]

_STYLES = {"failed": "bold red", "error": "bold red", "xpassed": "yellow"}


def merged_text(merged: MergedReport, screen: Screen = PLAIN) -> str:
    """Write runners, then the tests that ran nowhere with the reasons, then where the others ran."""
    gaps = merged.gaps
    ran = [test for test in merged.tests if test.runs]
    runners = [(runner.label, _runner(runner)) for runner in merged.runners]
    blocks = [lines_below(f"Reports of {plural(len(runners), 'runner')}", runners, screen)]
    if gaps:
        style = "bold red"
        title = bold(f"{plural(len(gaps), 'test')} ran nowhere", screen, style)
        blocks.append("\n".join([title, *(_gap(test, screen) for test in gaps)]))
    if ran:
        blocks.append(_table(ran, screen))
    nowhere = f"{len(gaps):,} ran nowhere" if gaps else "none ran nowhere"
    failed = sum(test.failed for test in ran)
    blocks.append(screen.say(f"{plural(len(merged.tests), 'test')}: {len(ran):,} ran, {failed:,} failed, {nowhere}."))
    return "\n\n".join(blocks)


def _runner(runner: Runner) -> str:
    parts = ["SIMULATED, counts for nothing on GPUs" if runner.simulated else "", ", ".join(runner.gpus) or "no GPU"]
    if runner.exit_status is not None:
        parts.append(f"exit status {runner.exit_status}")
    return "; ".join(part for part in parts if part)


def _gap(test: MergedTest, screen: Screen) -> str:
    """Write one test with its reasons; runners with the same reason share a line."""
    reasons: dict[str, list[str]] = {}
    for item in test.absences:
        word = OUTCOME_WORDS.get(item.outcome, item.outcome)
        reasons.setdefault(f"{word}: {item.reason}" if item.reason else word, []).append(item.runner)
    lines = [("  " + ", ".join(runners), reason) for reason, runners in reasons.items()]
    return lines_below(f"  {test.nodeid}", lines, screen)


def _table(tests: list[MergedTest], screen: Screen) -> str:
    longest = min(max(len(test.nodeid) for test in tests), screen.width * 3 // 5)
    table = grid(screen, "Test", "Outcome", "Where", widths=(longest,))
    for test in tests:
        outcomes = [run.outcome for run in test.runs]
        word = outcomes[0] if len(set(outcomes)) == 1 else counted(outcomes)
        where = "; ".join(
            run.runner + (f": {', '.join(device.id for device in run.devices)}" if run.devices else "")
            for run in test.runs
        )
        style = next((_STYLES[outcome] for outcome in outcomes if outcome in _STYLES), "")
        add_row(table, screen, (test.nodeid, ""), (word, style), (where, ""))
    return render(table, screen)
