"""Text of a pytest session: header, plan, what was skipped and why, what was observed.

Each function takes values and a `Screen` and returns text. The machine itself is drawn by `reports.show` and
`reports.tree`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.reports.gathered import gathered
from pytest_gpucoexist.reports.layout import add_row, bold, grid
from pytest_gpucoexist.reports.screen import PLAIN, Screen, render
from pytest_gpucoexist.reports.summary import OUTCOME_WORDS, none_ran, unmet_groups, used_devices
from pytest_gpucoexist.reports.words import VENDOR_NAMES, counted, describe_use, joined, plural, ranges, why_not

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_gpucoexist.model.machine import Gpu, Machine
    from pytest_gpucoexist.reports.model import ObserveRow, PlanRow, TestRecord

__all__ = [
    "device_line",
    "machine_header",
    "none_ran_line",
    "observe_table",
    "plan_table",
    "skip_summary",
    "wait_line",
]

WIDE = 100
"""Columns from which a plan has a third column."""

WORTH_SAYING_S = 0.5
"""Shorter waits are the grain of any parallel run."""

SHOWN_TESTS = 5
"""Tests named below each reason of the skip summary; the others are counted."""


def machine_header(
    machine: Machine,
    *,
    promised: str | None = None,
    simulate: bool | None = False,
    observe: bool = False,
    interferences: Sequence[str] = (),
    screen: Screen = PLAIN,
) -> list[str]:
    """Write the lines of the session's header: the machine, what cannot be used, masks, every interference.

    `simulate` says what becomes of GPU tests on a replayed machine: run on stand-ins, skipped, or None: neither.
    `interferences` are further lines for what was asked for (`mask style: index`), each in words of its option.
    """
    compute = [gpu for gpu in machine.gpus if gpu.is_compute]
    ready = [gpu for gpu in compute if describe_use(gpu) in {"CUDA", "ROCm", "CUDA ROCm"}]
    lines = [f"GPUs of {machine.name}{' (SIMULATED)' if machine.simulated else ''}: {_ready(ready)}"]
    if machine.simulated and simulate is not None:
        how = "run on stand-ins in host memory" if simulate else "are skipped without --gpu-simulate"
        lines.append(f"  a replayed machine: tests that need a GPU {how}")
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
    vendors: dict[str, list[str]] = {}
    for gpu in gpus:
        vendors.setdefault(VENDOR_NAMES[gpu.vendor], []).append(gpu.id)
    return ", ".join(f"{len(ids)} {vendor} ({ranges(list(enumerate(ids)))})" for vendor, ids in vendors.items())


def none_ran_line(records: Iterable[TestRecord], screen: Screen = PLAIN) -> str | None:
    """Write the line that cannot be missed: GPU tests were selected and none ran on a GPU. None when one did."""
    text = none_ran(records)
    return None if text is None else screen.say(text)


def device_line(records: Iterable[TestRecord], screen: Screen = PLAIN) -> str | None:
    """Say how many tests ran with each device. None when none did."""
    text = used_devices(records)
    return None if text is None else screen.say(text)


def wait_line(records: Iterable[TestRecord], screen: Screen = PLAIN) -> str | None:
    """Say for how long tests waited for a lease. None when no wait was long enough to matter."""
    waits = [(record.waited_s, record.nodeid) for record in records if record.waited_s >= WORTH_SAYING_S]
    if not waits:
        return None
    longest_s, nodeid = max(waits)
    if len(waits) == 1:
        return screen.say(f"1 test waited {longest_s:.1f} s for devices that others held: {nodeid}")
    total_s = sum(seconds for seconds, _ in waits)
    sums = f"{total_s:.1f} s in all, longest {longest_s:.1f} s: {nodeid}"
    return screen.say(f"{len(waits)} tests waited for devices that others held, {sums}")


def skip_summary(records: Iterable[TestRecord], screen: Screen = PLAIN, *, verbosity: int = 0) -> list[str]:
    """List hardware skips and failures for want of hardware, grouped by what was missing, the most frequent first.

    Tests are not named when `verbosity` is below 0, and one by one from 2.
    """
    lines = []
    for group in unmet_groups(records):
        count = len(group.nodeids)
        lines.append(f"{plural(count, 'test')} ({OUTCOME_WORDS[group.outcome]}): {group.reason}")
        if verbosity >= 2:
            lines += [f"    {nodeid}" for nodeid in group.nodeids]
        elif verbosity >= 0:
            named = gathered(group.nodeids, str)
            lines += [f"    {name}" for name, _tests in named[:SHOWN_TESTS]]
            rest = sum(len(tests) for _name, tests in named[SHOWN_TESTS:])
            lines += [f"    … and {rest:,} more"] if rest else []
    return [screen.say(line) for line in lines]


def plan_table(
    rows: Sequence[PlanRow], machine: Machine, *, unmarked: int = 0, screen: Screen = PLAIN, verbosity: int = 0
) -> str:
    """Say where every selected test would run, or why not, file by file. `unmarked` counts tests that need no GPU.

    Parameters of one function that fare alike share a line, unless `verbosity` is above 0.
    """
    if machine.simulated:
        title = f"Plan for {machine.name} (SIMULATED: a replayed machine)"
    else:
        title = f"Plan for {machine.name}"
    blocks = [bold(title, screen), ""]
    if rows:
        blocks += [*_plan_lines(rows, screen, each=verbosity > 0), ""]
    met = sum(bool(row.devices) for row in rows)
    sums = [f"{plural(met, 'test')} would run on a GPU"]
    unmet = counted(OUTCOME_WORDS[row.outcome] for row in rows if not row.devices)
    if unmet:
        sums.append(f"{plural(len(rows) - met, 'test')} would not ({unmet})")
    if unmarked:
        sums.append(f"{plural(unmarked, 'test')} {'needs' if unmarked == 1 else 'need'} no GPU")
    return "\n".join([*blocks, screen.say("; ".join(sums))])


def _plan_lines(rows: Sequence[PlanRow], screen: Screen, *, each: bool) -> list[str]:
    """Write a line of each test below its file. What it needs is said again only where there is room."""
    wide = screen.width >= WIDE
    modules: dict[str, list[PlanRow]] = {}
    for row in rows:
        modules.setdefault(row.nodeid.partition("::")[0], []).append(row)
    cells = {}
    for module, group in modules.items():
        named = [(row.nodeid, [row]) for row in group] if each else gathered(group, lambda row: row.nodeid, _fate)
        cells[module] = [[_name(name), *_plan_cells(alike[0], wide=wide)] for name, alike in named]
    titles = ("Test", "Where", "Needs") if wide else ("Test", "Where")
    widths = _widths([row for group in cells.values() for row in group], screen)
    blocks = [render(grid(screen, *titles, widths=widths), screen)]
    for module, lines in cells.items():
        table = grid(screen, *titles, widths=widths, headings=False)
        for line in lines:
            add_row(table, screen, *line)
        blocks += [bold(module, screen), render(table, screen)]
    return blocks


def _widths(rows: Sequence[Sequence[tuple[str, str]]], screen: Screen) -> list[int]:
    """Give columns what their texts need: the first three fifths of the screen at most, the last what is left."""
    needed = [max(len(text) for text, _style in column) for column in zip(*rows, strict=True)]
    needed[0] = min(needed[0], screen.width * 3 // 5)
    left = screen.width - 2 * (len(needed) - 1) - sum(needed[:-1])
    if len(needed) > 2 and left < screen.width // 4:
        needed[1] -= screen.width // 4 - left
        left = screen.width // 4
    needed[-1] = min(needed[-1], left)
    return needed


def _name(nodeid: str) -> tuple[str, str]:
    module, _, name = nodeid.partition("::")
    return f"  {name or module}", ""


def _fate(row: PlanRow) -> tuple[object, ...]:
    return row.requirement, row.devices, row.alternatives, row.share, row.outcome, row.reason


def _plan_cells(row: PlanRow, *, wide: bool) -> list[tuple[str, str]]:
    reason = row.reason or f"needs {row.requirement}"
    if row.devices:
        return [(_where(row), "green"), (row.requirement, "dim")][: 2 if wide else 1]
    if wide:
        return [(OUTCOME_WORDS[row.outcome], "yellow"), (reason, "yellow")]
    return [(f"{OUTCOME_WORDS[row.outcome]}: {reason}", "yellow")]


def _where(row: PlanRow) -> str:
    where = " + ".join(row.devices)
    if row.share is not None:
        where += f" ({row.share}{' of each' if len(row.devices) > 1 and '+' not in row.share else ''})"
    return f"{where}, or {joined(row.alternatives, 'or')}" if row.alternatives else where


def observe_table(rows: Sequence[ObserveRow], screen: Screen = PLAIN, *, verbosity: int = 0) -> str:
    """List the tests where the plugin and the suite's own logic differ, and how many agree.

    Parameters of one function that fare alike share a line, unless `verbosity` is above 0. Where there is no room for
    columns, a test has three lines.
    """
    differing = [row for row in rows if row.differs]
    agreed = len(rows) - len(differing)
    if not differing:
        return screen.say(f"The plugin would have decided like the suite for all {plural(agreed, 'GPU test')}.")
    named = (
        [(row.nodeid, row) for row in differing]
        if verbosity > 0
        else [(name, group[0]) for name, group in gathered(differing, lambda row: row.nodeid, _difference)]
    )
    longest = max(len(name) for name, _row in named)
    heading = f"{plural(len(differing), 'test')} would go differently, {agreed:,} the same:"
    if screen.width < WIDE or longest > screen.width // 2:
        lines = []
        for name, row in named:
            lines += ["", name, f"    the suite:  {_did(row)}", f"    the plugin: {row.decision}"]
        return "\n".join(screen.say(line) for line in [heading, *lines])
    table = grid(screen, "Test", "The suite", "The plugin would", widths=(longest,))
    for name, row in named:
        add_row(table, screen, (name, "bold"), (_did(row), ""), (row.decision, "yellow"))
    return "\n".join([screen.say(heading), "", render(table, screen)])


def _difference(row: ObserveRow) -> tuple[object, ...]:
    return row.outcome, row.suite_reason, row.decision


def _did(row: ObserveRow) -> str:
    return row.outcome if row.suite_reason is None else f"{row.outcome}: {row.suite_reason}"
