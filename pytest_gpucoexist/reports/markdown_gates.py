"""What the gates said, as Markdown: part of a session's report, and of a job's summary on GitHub."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.reports.markdown_text import code, table, text
from pytest_gpucoexist.reports.transfers import matrix_rows
from pytest_gpucoexist.reports.verdicts import counts_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.model.machine import Machine
    from pytest_gpucoexist.model.verdicts import Judgement

__all__ = ["judgement_markdown"]


def judgement_markdown(judgement: Judgement, machine: Machine) -> list[str]:
    """Write the counts, and a table of what is wrong: gate, devices, reason, action."""
    lines = [f"### Gates ({judgement.level})", "", text(counts_text(judgement)), ""]
    if judgement.fit is False:
        names = {gpu.key: gpu.id for gpu in machine.gpus}
        unfit = ", ".join(names.get(key, key) for key in judgement.unfit) or "the machine"
        lines += ["> [!CAUTION]", f"> **Unfit: {text(unfit)}**", ""]
    rows = list(_rows(judgement, machine))
    if rows:
        lines += table(("", "Gate", "Devices", "What is wrong", "What to do"), rows)
    matrix = matrix_rows(judgement, {gpu.key: gpu.id for gpu in machine.gpus})
    if matrix:
        lines += ["", "Copies, GB/s, rows from, columns to:", ""]
        lines += table(tuple(text(each) for each in matrix[0]), [tuple(map(text, row)) for row in matrix[1:]])
    return lines


def _rows(judgement: Judgement, machine: Machine) -> Iterator[tuple[str, ...]]:
    names = {gpu.key: gpu.id for gpu in machine.gpus}
    for status in ("FAIL", "ERROR", "WARN"):
        for verdict in judgement.verdicts:
            if verdict.status == status:
                devices = ", ".join(names.get(key, key) for key in verdict.devices)
                action = f"ignored: {verdict.ignored}" if verdict.ignored is not None else verdict.action
                yield status, code(verdict.id), text(devices), text(verdict.reason), text(action)
