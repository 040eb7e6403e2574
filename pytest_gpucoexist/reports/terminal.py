"""Text of a pytest session: header, plan, what was skipped and why, what was observed.

Each function takes values and a `Screen` and returns text. The machine itself is drawn by `reports.show` and
`reports.tree`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.reports.layout import add_row, bold, grid
from pytest_gpucoexist.reports.screen import PLAIN, Screen, render
from pytest_gpucoexist.reports.summary import OUTCOME_WORDS, none_ran, unmet_groups
from pytest_gpucoexist.reports.words import counted, describe_use, joined, plural, population, ranges, why_not

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_gpucoexist.model.machine import Gpu, Machine
    from pytest_gpucoexist.reports.model import ObserveRow, PlanRow, TestRecord

__all__ = ["machine_header", "none_ran_line", "observe_table", "plan_table", "skip_summary"]

WIDE = 100
"""Columns from which a plan has a third column."""

SHOWN_TESTS = 5
"""Tests named below each reason of the skip summary; the others are counted."""


def machine_header(
    machine: Machine,
    *,
    promised: str | None = None,
    simulate: bool = False,
    observe: bool = False,
    interferences: Sequence[str] = (),
    screen: Screen = PLAIN,
) -> list[str]:
    """Write the lines of the session's header: the machine, what cannot be used, masks, every interference.

    `interferences` are further lines for what was asked for (`mask style: index`), each in words of its option.
    """
    compute = [gpu for gpu in machine.gpus if gpu.is_compute]
    ready = [gpu for gpu in compute if describe_use(gpu) in {"CUDA", "ROCm", "CUDA ROCm"}]
    lines = [f"GPUs of {machine.name}: {_ready(ready)}"]
    if machine.simulated:
        how = "tests run on stand-ins in host memory" if simulate else "tests that need a GPU are skipped"
        lines[0] = f"GPUs of {machine.name} (SIMULATED: a replayed machine, {how}): {_ready(ready)}"
    lines += [
        f"  not usable: {gpu.id} ({gpu.key}): {why_not(gpu, machine)}" for gpu in compute if why_not(gpu, machine)
    ]
    for mask in machine.masks:
        shown = f"  mask: {mask.variable}={mask.value}"
        if mask.translated_from:
            shown += f" (translated from {mask.translated_from})"
        lines.append(shown)
        if mask.warning:
            lines.append(f"  WARNING: {mask.warning}")
    if promised:
        lines.append(f"  promised by this runner: {promised}")
    if observe:
        lines.append("  observing: everything is decided and recorded, nothing is done")
    lines += [f"  {line}" for line in interferences]
    return [screen.say(line) for line in lines]


def _ready(gpus: Sequence[Gpu]) -> str:
    if not gpus:
        return "none that can be used"
    return f"{population(gpus)} ({ranges([(place, gpu.id) for place, gpu in enumerate(gpus)])})"


def none_ran_line(records: Iterable[TestRecord], screen: Screen = PLAIN) -> str | None:
    """Write the line that cannot be missed: GPU tests were selected and none ran on a GPU. None when one did."""
    text = none_ran(records)
    return None if text is None else screen.say(text)


def skip_summary(records: Iterable[TestRecord], screen: Screen = PLAIN) -> list[str]:
    """List hardware skips and failures for want of hardware, grouped by what was missing, the most frequent first."""
    lines = []
    for group in unmet_groups(records):
        count = len(group.nodeids)
        lines.append(f"{plural(count, 'test')} ({OUTCOME_WORDS[group.outcome]}): {group.reason}")
        lines += [f"    {nodeid}" for nodeid in group.nodeids[:SHOWN_TESTS]]
        if count > SHOWN_TESTS:
            lines.append(f"    … and {count - SHOWN_TESTS:,} more")
    return [screen.say(line) for line in lines]


def plan_table(rows: Sequence[PlanRow], machine: Machine, *, unmarked: int = 0, screen: Screen = PLAIN) -> str:
    """Say where every selected test would run, or why not, file by file. `unmarked` counts tests that need no GPU."""
    if machine.simulated:
        title = f"Plan for {machine.name} (SIMULATED: a replayed machine)"
    else:
        title = f"Plan for {machine.name}"
    blocks = [bold(title, screen), ""]
    if rows:
        blocks += [render(_plan_grid(rows, screen), screen), ""]
    met = sum(bool(row.devices) for row in rows)
    sums = [f"{plural(met, 'test')} would run on a GPU"]
    unmet = counted(OUTCOME_WORDS[row.outcome] for row in rows if not row.devices)
    if unmet:
        sums.append(f"{plural(len(rows) - met, 'test')} would not ({unmet})")
    if unmarked:
        sums.append(f"{plural(unmarked, 'test')} {'needs' if unmarked == 1 else 'need'} no GPU")
    return "\n".join([*blocks, screen.say("; ".join(sums))])


def _plan_grid(rows: Sequence[PlanRow], screen: Screen) -> Any:
    """Make a line of each test below its file. What it needs is said again only where there is room."""
    wide = screen.width >= WIDE
    longest = max(len(row.nodeid.partition("::")[2]) for row in rows) + 2
    table = grid(screen, *(("Test", "Where", "Needs") if wide else ("Test", "Where")), first=longest)
    blank = [("", "")] * (2 if wide else 1)
    previous = None
    for row in rows:
        module, _, name = row.nodeid.partition("::")
        if module != previous:
            add_row(table, screen, (module, "bold"), *blank)
            previous = module
        cells = [(f"  {name or module}", "")]
        reason = row.reason or f"needs {row.requirement}"
        if row.devices:
            cells += [(_where(row), "green"), (row.requirement, "dim")][: len(blank)]
        elif wide:
            cells += [(OUTCOME_WORDS[row.outcome], "yellow"), (reason, "yellow")]
        else:
            cells.append((f"{OUTCOME_WORDS[row.outcome]}: {reason}", "yellow"))
        add_row(table, screen, *cells)
    return table


def _where(row: PlanRow) -> str:
    where = " + ".join(row.devices)
    return f"{where}, or {joined(row.alternatives, 'or')}" if row.alternatives else where


def observe_table(rows: Sequence[ObserveRow], screen: Screen = PLAIN) -> str:
    """List the tests where the plugin and the suite's own logic differ, and how many agree."""
    differing = [row for row in rows if row.differs]
    agreed = len(rows) - len(differing)
    if not differing:
        return screen.say(f"The plugin would have decided like the suite for all {plural(agreed, 'GPU test')}.")
    table = grid(screen, "Test", "The suite", "The plugin would", first=max(len(row.nodeid) for row in differing))
    for row in differing:
        did = row.outcome if row.suite_reason is None else f"{row.outcome}: {row.suite_reason}"
        add_row(table, screen, (row.nodeid, "bold"), (did, ""), (row.decision, "yellow"))
    heading = f"{plural(len(differing), 'test')} would go differently, {agreed:,} the same:"
    return "\n".join([screen.say(heading), "", render(table, screen)])
