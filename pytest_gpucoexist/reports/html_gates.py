"""What the gates said, as a section of a report's HTML page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.reports.html_page import badge, folded, table, text
from pytest_gpucoexist.reports.transfers import matrix_rows
from pytest_gpucoexist.reports.verdicts import SHOWN_EVIDENCE, counts_text, is_action_shown, shortened
from pytest_gpucoexist.reports.words import plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pytest_gpucoexist.model.machine import Machine
    from pytest_gpucoexist.model.verdicts import Evidence, Judgement, Verdict, VerdictStatus

__all__ = ["judgement_html"]

_TONES: dict[VerdictStatus, str] = {
    "FAIL": "bad",
    "ERROR": "bad",
    "WARN": "warn",
    "UNKNOWN": "",
    "PASS": "good",
    "SKIP": "",
}
_OPEN = {"FAIL", "ERROR", "WARN"}


def judgement_html(judgement: Judgement, machine: Machine) -> Iterator[str]:
    """Write the counts, then the verdicts by status: what needs a person is open, the rest folded away."""
    fit = {True: badge("fit", "good"), False: badge("UNFIT", "bad"), None: badge("could not judge", "warn")}
    counts = f"level {judgement.level}: {counts_text(judgement)}, {judgement.duration_s:.2f} s"
    yield f"<p>{fit[judgement.fit]} {text(counts)}</p>"
    names = {gpu.key: gpu.id for gpu in machine.gpus}
    matrix = matrix_rows(judgement, names)
    if matrix:
        rows = [[text(cell) for cell in row] for row in matrix[1:]]
        yield table(matrix[0], rows, label="Copies in GB/s: rows from, columns to", css="gates")
    for status, tone in _TONES.items():
        verdicts = [verdict for verdict in judgement.verdicts if verdict.status == status]
        if verdicts:
            summary = f"{badge(status, tone)} {plural(len(verdicts), 'verdict')}"
            rows = [_row(verdict, names) for verdict in verdicts]
            titles = ["Gate", "Devices", "Verdict", "Evidence"]
            yield folded(summary, table(titles, rows, label=f"Gates: {status}", css="gates"), is_open=status in _OPEN)


def _row(verdict: Verdict, names: Mapping[str, str]) -> list[str]:
    said = text(verdict.reason)
    if verdict.ignored is not None:
        said += f'<span class="sub">ignored: {text(verdict.ignored)}</span>'
    elif is_action_shown(verdict):
        said += f'<span class="sub">{text(verdict.action)}</span>'
    for fix in verdict.fix if verdict.ignored is None else ():
        said += (
            f'<span class="sub">{"run" if fix.path is None else f"add to {text(fix.path)}"}:</span>{_lines(fix.lines)}'
        )
    if verdict.detail is not None:
        said += _lines(verdict.detail.rstrip().splitlines())
    evidence = "".join(_evidence(each) for each in verdict.evidence[:SHOWN_EVIDENCE])
    if len(verdict.evidence) > SHOWN_EVIDENCE:
        evidence += f'<span class="sub">… and {len(verdict.evidence) - SHOWN_EVIDENCE} more</span>'
    devices = "".join(f'<span class="sub id">{text(names.get(key, key))}</span>' for key in verdict.devices)
    blocks = f"<br>{badge('blocks', 'bad')}" if verdict.blocks else ""
    return [f'<span class="id">{text(verdict.id)}</span>{blocks}', devices, said, evidence]


def _evidence(each: Evidence) -> str:
    found = f"{each.source}: {each.found}"
    if each.expected is not None:
        found += f" (expected {each.expected})"
    return f'<span class="sub id">{text(shortened(found))}</span>'


def _lines(lines: Iterable[str]) -> str:
    return f"<pre>{'&#10;'.join(text(line) for line in lines)}</pre>"
