"""What the gates said, for people: the table of `gpucoexist doctor` and the lines of a session."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pytest_gpucoexist.reports.layout import bold
from pytest_gpucoexist.reports.screen import PLAIN, Screen
from pytest_gpucoexist.reports.words import population

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpucoexist.model.machine import Machine
    from pytest_gpucoexist.model.verdicts import Judgement, Verdict, VerdictStatus

__all__ = [
    "SHOWN_EVIDENCE",
    "counts_text",
    "gates_line",
    "is_action_shown",
    "judgement_text",
    "problem_lines",
    "shortened",
    "verdict_lines",
    "wrapped",
]

STATUS_STYLES: dict[VerdictStatus, str] = {
    "PASS": "green",
    "WARN": "yellow",
    "FAIL": "bold red",
    "ERROR": "bold magenta",
    "UNKNOWN": "cyan",
    "SKIP": "dim",
}

_WORDS: tuple[tuple[VerdictStatus, str, str], ...] = (
    ("PASS", "passed", "passed"),
    ("FAIL", "failed", "failed"),
    ("WARN", "warning", "warnings"),
    ("ERROR", "broken gate", "broken gates"),
    ("UNKNOWN", "unknown", "unknown"),
)

_LOUD: tuple[VerdictStatus, ...] = ("FAIL", "ERROR", "WARN")

SHOWN_EVIDENCE = 6
"""Pieces of evidence shown below a verdict; `--json` has all."""

SHOWN_CHARACTERS = 500
"""Characters shown of each."""


def counts_text(judgement: Judgement) -> str:
    """Count gates by their worst status: `142 passed, 1 failed, 3 unknown`. Gates that do not apply are left out."""
    counts = Counter(judgement.by_gate().values())
    parts = [
        f"{counts[status]:,} {one if counts[status] == 1 else many}" for status, one, many in _WORDS if counts[status]
    ]
    ignored = len({verdict.id for verdict in judgement.verdicts if verdict.ignored is not None})
    if ignored:
        parts.append(f"{ignored} ignored")
    return ", ".join(parts) or "nothing here to judge"


def gates_line(judgement: Judgement) -> str:
    """Write the one line of a session in which all is well: `gates: 142 passed, 3 unknown, 0.08 s`."""
    return f"gates: {counts_text(judgement)}, {judgement.duration_s:.2f} s"


def judgement_text(
    judgement: Judgement,
    machine: Machine,
    screen: Screen = PLAIN,
    *,
    verbose: bool = False,
    place: str | None = None,
    notes: Sequence[str] = (),
) -> str:
    """Write a whole judgement, by group and device: first what needs a person, then what could not be read.

    With `verbose` also what passed and what does not apply, each with its evidence. `place` says where the process
    runs (a container, a virtual machine), `notes` come before the end.
    """
    names = {gpu.key: gpu.id for gpu in machine.gpus if gpu.is_compute}
    blocks = [_title(judgement, machine, screen)]
    if place is not None:
        blocks[0] += "\n" + screen.say(f"judged from inside {place}")
    if machine.simulated:
        blocks[0] += "\n" + bold("SIMULATED: a replayed machine is judged, not this one.", screen, "bold yellow")
    shown = [verdict for verdict in judgement.verdicts if verbose or _needs_a_person(verdict)]
    for group in dict.fromkeys(verdict.group for verdict in shown):
        lines = [bold(group, screen)]
        for verdict in sorted(
            (each for each in shown if each.group == group), key=lambda each: (_rank(each), each.id, each.devices)
        ):
            lines += [f"  {line}" for line in verdict_lines(verdict, names, screen, verbose=verbose)]
        blocks.append("\n".join(lines))
    if not verbose:
        blocks += _quiet_blocks(judgement, screen)
    if judgement.trials is not None:
        from pytest_gpucoexist.reports.transfers import matrix_lines

        lines = matrix_lines(judgement, names, screen)
        blocks += ["\n".join(lines)] if lines else []
    blocks += ["\n".join(screen.say(note) for note in notes)] if notes else []
    blocks.append(_end(judgement, names, screen))
    return "\n\n".join(blocks)


def _title(judgement: Judgement, machine: Machine, screen: Screen) -> str:
    compute = [gpu for gpu in machine.gpus if gpu.is_compute]
    return bold(f"{machine.name} · {population(compute)} · gates of level {judgement.level}", screen)


def _rank(verdict: Verdict) -> int:
    order = ("FAIL", "ERROR", "WARN", "UNKNOWN", "PASS", "SKIP")
    return order.index(verdict.status) + (0 if verdict.ignored is None else len(order))


def _needs_a_person(verdict: Verdict) -> bool:
    return verdict.status in _LOUD


def _quiet_blocks(judgement: Judgement, screen: Screen) -> list[str]:
    """Name what could not be read, one line for each reason: a machine that denies much must not fill a screen."""
    reasons: dict[str, list[str]] = {}
    for verdict in judgement.verdicts:
        if verdict.status == "UNKNOWN" and verdict.ignored is None:
            reasons.setdefault(verdict.reason, []).append(verdict.id)
    if not reasons:
        return []
    lines = [bold("not known", screen)]
    for reason, ids in reasons.items():
        named = ", ".join(dict.fromkeys(ids))
        lines += wrapped(f"{'UNKNOWN':<7} {reason}", screen, "  ", "          ")
        lines += wrapped(named, screen, "          ", "          ", style="dim")
    return ["\n".join(lines)]


def verdict_lines(
    verdict: Verdict, names: Mapping[str, str], screen: Screen = PLAIN, *, verbose: bool = False
) -> list[str]:
    """Write a verdict: status, id and devices; the reason; evidence; what to do. `names` are ids of devices by key."""
    devices = ", ".join(f"{names[key]} ({key})" if key in names else key for key in verdict.devices)
    head = f"{verdict.status:<7} {verdict.id}"
    if devices:
        head += f"  {devices}"
    if verdict.blocks:
        head += "  blocks"
    lines = wrapped(head, screen, "", "        ")
    body = "        "
    lines += wrapped(verdict.reason, screen, body, body)
    if verdict.ignored is not None:
        lines += wrapped(f"ignored: {verdict.ignored}", screen, body, body)
    quiet = verdict.status in {"PASS", "SKIP"}
    if not quiet or verbose:
        for evidence in verdict.evidence[:SHOWN_EVIDENCE]:
            text = f"{evidence.source}: {evidence.found}"
            if evidence.expected is not None:
                text += f" (expected {evidence.expected})"
            lines += wrapped(shortened(text), screen, body + "- ", body + "  ", style="dim")
        if len(verdict.evidence) > SHOWN_EVIDENCE:
            more = f"… and {len(verdict.evidence) - SHOWN_EVIDENCE} more; --json shows all"
            lines += wrapped(more, screen, body + "- ", body + "  ", style="dim")
    if is_action_shown(verdict):
        lines += wrapped(f"→ {verdict.action}", screen, body, body + "  ")
    if verdict.ignored is None:
        for fix in verdict.fix:
            said = "run:" if fix.path is None else f"add to {fix.path}:"
            lines += wrapped(said, screen, body + "  ", body + "    ")
            # A line to copy is never folded.
            lines += [f"{body}      {screen.say(line)}" for line in fix.lines]
    if verdict.detail and (verbose or verdict.status == "ERROR"):
        lines += [f"{body}{screen.say(line)}" for line in verdict.detail.rstrip().splitlines()]
    return lines


def is_action_shown(verdict: Verdict) -> bool:
    """Whether it says what to do, and not just the words of a line to run that stands below."""
    said = any(fix.lines == (verdict.action,) for fix in verdict.fix)
    return bool(verdict.action) and verdict.ignored is None and not said


def shortened(text: str) -> str:
    """Cut a piece of evidence that would fill a screen: the JSON has it whole."""
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]} …"


def problem_lines(judgement: Judgement, machine: Machine, screen: Screen = PLAIN, *, verbosity: int = 0) -> list[str]:
    """Write what a session must show: failures and broken gates in full, warnings from `-v`, where to read the rest."""
    names = {gpu.key: gpu.id for gpu in machine.gpus}
    lines: list[str] = []
    loud: tuple[VerdictStatus, ...] = _LOUD if verbosity > 0 else ("FAIL", "ERROR")
    for verdict in judgement.verdicts:
        if verdict.status in loud and verdict.ignored is None:
            lines += verdict_lines(verdict, names, screen)
        elif verdict.ignored is not None and verdict.status in _LOUD:
            text = f"{verdict.id}: ignored ({verdict.ignored}): {verdict.reason}"
            lines += wrapped(f"{verdict.status:<7} {text}", screen, "", "        ")
    return lines


def _end(judgement: Judgement, names: Mapping[str, str], screen: Screen) -> str:
    line = f"{counts_text(judgement)}, {judgement.duration_s:.2f} s"
    if judgement.fit:
        verdict, style = ("fit", "bold green") if names else ("nothing speaks against it, and there is no GPU", "bold")
    elif judgement.fit is None:
        verdict, style = "could not judge: no gate that blocks could read its evidence", "bold yellow"
    else:
        unfit = ", ".join(names.get(key, key) for key in judgement.unfit)
        verdict, style = f"UNFIT: {unfit or 'the machine'}", "bold red"
    return f"{screen.say(line)}\n{bold(verdict, screen, style)}"


def wrapped(text: str, screen: Screen, first: str, rest: str, *, style: str = "") -> list[str]:
    """Lay out one paragraph; continuation lines are indented by `rest`."""
    from io import StringIO

    from rich.console import Console
    from rich.text import Text

    from pytest_gpucoexist.reports.screen import render

    said = Text(screen.say(text), style=style)
    for status, colour in STATUS_STYLES.items():
        if said.plain.startswith(f"{status:<7} "):
            said.stylize(colour, 0, len(status))
    console = Console(file=StringIO(), _environ={})
    lines = said.wrap(console, max(20, screen.width - max(len(first), len(rest))))
    return [
        f"{first if number == 0 else rest}{render(line, screen)}" if line.plain else ""
        for number, line in enumerate(lines)
    ]
