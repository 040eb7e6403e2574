"""What GitHub Actions shows: annotations for what the gates found, and a table in the job's summary.

Workflow commands are lines of standard output; the summary is a file that the runner names
(https://docs.github.com/actions/reference/workflow-commands-for-github-actions).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucoexist.model.machine import Machine
    from pytest_gpucoexist.model.verdicts import Judgement, Verdict

__all__ = ["tell_github", "workflow_commands"]

_COMMANDS = {"FAIL": "error", "ERROR": "warning", "WARN": "warning"}

SHOWN = 10
"""GitHub shows ten annotations of a kind for a step, and drops the others."""


def workflow_commands(judgement: Judgement, machine: Machine) -> list[str]:
    """Write a workflow command for each thing that is wrong, failures first."""
    names = {gpu.key: gpu.id for gpu in machine.gpus}
    lines = []
    for status in ("FAIL", "ERROR", "WARN"):
        found = [each for each in judgement.verdicts if each.status == status and each.ignored is None]
        for verdict in found[:SHOWN]:
            title = f"GPU gate {verdict.id}"
            if verdict.devices:
                title += f" ({', '.join(names.get(key, key) for key in verdict.devices)})"
            lines.append(f"::{_COMMANDS[status]} title={_property(title)}::{_data(_message(verdict))}")
    return lines


def _message(verdict: Verdict) -> str:
    return f"{verdict.reason}\n{verdict.action}" if verdict.action else verdict.reason


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def tell_github(judgement: Judgement, machine: Machine, environ: Mapping[str, str], reporter: Any) -> str | None:
    """Print the annotations and append to the job's summary. Returns why the summary could not be written."""
    lines = workflow_commands(judgement, machine)
    if lines:
        reporter.ensure_newline()
        for line in lines:
            reporter.write_line(line)
    path = environ.get("GITHUB_STEP_SUMMARY")
    if not path:
        return None
    from pytest_gpucoexist.reports.markdown_gates import judgement_markdown

    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write("\n".join(judgement_markdown(judgement, machine)) + "\n")
    except OSError as error:
        return f"GITHUB_STEP_SUMMARY: cannot write {path}: {error.strerror or error}"
    return None
