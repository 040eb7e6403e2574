"""The report of a session, or of several runners, as short Markdown: for a job summary or a comment on GitHub."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pytest_gpucoexist.reports.markdown_gates import judgement_markdown
from pytest_gpucoexist.reports.markdown_text import code, table, text
from pytest_gpucoexist.reports.summary import OUTCOME_WORDS, none_ran, short_counts, tests_by_device, unmet_groups
from pytest_gpucoexist.reports.timeline import timeline_markdown
from pytest_gpucoexist.reports.words import describe_driver, describe_name, describe_use, plural, why_not

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_gpucoexist.reports.merge import Absence, MergedReport, Run
    from pytest_gpucoexist.reports.model import SessionReport

__all__ = ["merged_markdown", "report_markdown"]

SHOWN_TESTS = 20
"""Tests named in a list; the others are counted. A job summary of GitHub ends at 1 MiB."""

DETAILED_TESTS = 1000
"""Tests of a merged report whose runners are told."""


def report_markdown(report: SessionReport) -> str:
    """Write the report of a session: counts, what was missing, devices, failures."""
    machine = report.machine
    lines = ["## GPU tests" if machine is None else f"## GPU tests on {text(machine.name)}", ""]
    if report.simulated:
        lines += ["> [!WARNING]", "> **SIMULATED**: a replayed machine. Nothing here ran on a real GPU.", ""]
    elif alarm := none_ran(report.tests):
        lines += ["> [!CAUTION]", f"> **{text(alarm)}**", ""]
    counts = [f"**{count:,}** {label}" for label, count in short_counts(report) if count or label == "ran on a GPU"]
    lines += [", ".join(counts), ""]
    if report.promised:
        lines += [f"Promised: {code(report.promised)}", ""]
    failed = [record.nodeid for record in report.tests if record.outcome in {"failed", "error"}]
    lines += _listed("Failed", failed)
    groups = unmet_groups(report.tests)
    if groups:
        lines += table(
            ("Tests", "Not run because"),
            ((str(len(group.nodeids)), f"{OUTCOME_WORDS[group.outcome]}: {text(group.reason)}") for group in groups),
        )
    if machine is not None and report.judgement is not None:
        lines += judgement_markdown(report.judgement, machine)
    if machine is not None and machine.gpus:
        used = tests_by_device(report.tests)
        lines += table(
            ("GPU", "Address", "Name", "Driver", "Use", "Tests"),
            (
                (
                    gpu.id,
                    code(gpu.key),
                    text(describe_name(gpu)),
                    text(describe_driver(gpu)),
                    text(why_not(gpu, machine) or describe_use(gpu)),
                    str(used[gpu.key]),
                )
                for gpu in machine.gpus
            ),
        )
        warnings = [mask.warning for mask in machine.masks if mask.warning]
        warnings += [f"{conflict.subject}: {conflict.message}" for conflict in machine.conflicts]
        lines += [f"- {text(warning)}" for warning in warnings]
        lines += [""] if warnings else []
    if report.timeline is not None:
        lines += timeline_markdown(report.timeline, machine)
    lines += [f"- {text(note)}" for note in report.notes]
    return "\n".join(lines).rstrip() + "\n"


def merged_markdown(merged: MergedReport) -> str:
    """Write what several runners did: tests that ran nowhere first, then failures, then a table of runners."""
    gaps = merged.gaps
    lines = [f"## GPU tests on {plural(len(merged.runners), 'runner')}", ""]
    if gaps:
        lines += ["> [!CAUTION]", f"> **{plural(len(gaps), 'test')} ran nowhere**", ""]
        rows = ((code(test.nodeid), "<br>".join(map(_absence, test.absences))) for test in gaps[:SHOWN_TESTS])
        lines += table(("Ran nowhere", "Why"), rows)
        lines += _more(gaps)
    failed = [test.nodeid for test in merged.tests if test.failed]
    lines += _listed("Failed", failed)
    ran = [test for test in merged.tests if test.runs]
    if ran:
        rows = ((code(test.nodeid), "<br>".join(map(_run, test.runs))) for test in ran[:DETAILED_TESTS])
        more = len(ran) - DETAILED_TESTS
        lines += [f"<details><summary>Where {plural(len(ran), 'test')} ran</summary>", ""]
        lines += table(("Test", "Ran on"), rows)
        lines += [f"… and {more:,} more: a .json or .html report has them all", ""] if more > 0 else []
        lines += ["</details>", ""]
    lines += table(("Runner", "GPUs", "Ran", "Failed", "Exit status"), _runners(merged))
    return "\n".join(lines).rstrip() + "\n"


def _runners(merged: MergedReport) -> Iterator[tuple[str, ...]]:
    runs = [run for test in merged.tests for run in test.runs]
    ran = Counter(run.runner for run in runs)
    failed = Counter(run.runner for run in runs if run.outcome in {"failed", "error"})
    for runner in merged.runners:
        label = text(runner.label) + (" **SIMULATED**" if runner.simulated else "")
        status = "" if runner.exit_status is None else str(runner.exit_status)
        counts = (f"{ran[runner.label]:,}", f"{failed[runner.label]:,}")
        yield label, text(", ".join(runner.gpus) or "none"), *counts, status


def _absence(item: Absence) -> str:
    word = OUTCOME_WORDS.get(item.outcome, item.outcome)
    reason = f": {text(item.reason)}" if item.reason else ""
    return f"{text(item.runner)}: {word}{reason}"


def _run(run: Run) -> str:
    devices = f": {', '.join(device.id for device in run.devices)}" if run.devices else ""
    return f"{run.outcome} on {text(run.runner)}{text(devices)}"


def _listed(title: str, nodeids: Sequence[str]) -> list[str]:
    if not nodeids:
        return []
    return [f"**{title}**", "", *(f"- {code(nodeid)}" for nodeid in nodeids[:SHOWN_TESTS]), "", *_more(nodeids)]


def _more(items: Sequence[object]) -> list[str]:
    return [f"… and {len(items) - SHOWN_TESTS:,} more", ""] if len(items) > SHOWN_TESTS else []
