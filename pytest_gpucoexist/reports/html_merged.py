"""What several runners did as one self-contained HTML file; tests that ran nowhere come first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.reports.html_page import TONES, badge, folded, page, section, table, text
from pytest_gpucoexist.reports.junit import describe_device
from pytest_gpucoexist.reports.summary import OUTCOME_WORDS
from pytest_gpucoexist.reports.words import UNKNOWN, describe_time, plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpucoexist.reports.merge import MergedReport, MergedTest, Runner

__all__ = ["merged_html"]


def merged_html(merged: MergedReport) -> str:
    """Write what several runners did as an HTML page."""
    title = f"GPU tests on {plural(len(merged.runners), 'runner')}"
    gaps = merged.gaps
    with_gpu = [test for test in merged.tests if test.runs and test.requirement is not None]
    without = [test for test in merged.tests if test.runs and test.requirement is None]
    alarm = f"{plural(len(gaps), 'test')} ran nowhere." if gaps else ""
    return page(
        title,
        f"<header>\n<h1>{text(title)}</h1>\n</header>",
        f'<p class="banner bad" role="alert">{text(alarm)}</p>' if alarm else "",
        section(
            "Runners",
            table(["Runner", "GPUs", "Exit status", "Session"], map(_runner, merged.runners), label="Runners"),
        ),
        section("Ran nowhere", _gaps(gaps)),
        section("Tests that need a GPU", _ran(with_gpu, "Tests that need a GPU and ran")),
        section("Tests that need no GPU", _without(without)),
        footer="Written by gpucoexist merge.",
    )


def _runner(runner: Runner) -> list[str]:
    return [
        f"<b>{text(runner.label)}</b>" + (f" {badge('SIMULATED', 'warn')}" if runner.simulated else ""),
        text(", ".join(runner.gpus) or "no GPU"),
        text(UNKNOWN if runner.exit_status is None else runner.exit_status),
        (
            f'<span class="keep">{text(describe_time(runner.created))}</span>'
            f'<span class="sub id">{text(runner.source)}</span>'
        ),
    ]


def _gaps(tests: Sequence[MergedTest]) -> str:
    if not tests:
        return ""
    rows = [[_id(test), _absences(test)] for test in tests]
    return table(["Test", "Why"], rows, label="Tests that ran nowhere", css="merged")


def _ran(tests: Sequence[MergedTest], label: str) -> str:
    if not tests:
        return ""
    rows = [[_id(test), _runs(test), _absences(test)] for test in tests]
    return table(["Test", "Ran on", "Elsewhere"], rows, label=label, css="merged")


def _without(tests: Sequence[MergedTest]) -> str:
    """List failures openly, the others folded away."""
    failed = [test for test in tests if test.failed]
    rest = [test for test in tests if not test.failed]
    parts = []
    if failed:
        parts.append(_ran(failed, "Tests that need no GPU and failed"))
    if rest:
        content = _ran(rest, "Tests that need no GPU and did not fail")
        parts.append(folded(f"{badge('passed', 'good')} {plural(len(rest), 'test')} that did not fail", content))
    return "\n".join(parts)


def _id(test: MergedTest) -> str:
    needs = f'<span class="sub">needs {text(test.requirement)}</span>' if test.requirement else ""
    return f'<span class="id">{text(test.nodeid)}</span>{needs}'


def _runs(test: MergedTest) -> str:
    return "".join(
        f"<div>{badge(run.outcome, TONES[run.outcome])} {text(run.runner)}</div>"
        + "".join(f'<span class="sub">{text(describe_device(device))}</span>' for device in run.devices)
        for run in test.runs
    )


def _absences(test: MergedTest) -> str:
    return "".join(
        f"<div>{badge(OUTCOME_WORDS.get(item.outcome, item.outcome))} {text(item.runner)}</div>"
        + (f'<span class="sub">{text(item.reason)}</span>' if item.reason else "")
        for item in test.absences
    )
