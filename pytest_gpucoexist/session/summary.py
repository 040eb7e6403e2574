"""The end of the terminal output: hardware skips by what was missing, and whether any GPU test ran at all."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_gpucoexist.reports.screen import Screen
    from pytest_gpucoexist.session.ledger import Ledger
    from pytest_gpucoexist.session.state import GpuSession

__all__ = ["screen_of", "session_screen", "summarize"]


def summarize(session: GpuSession, reporter: Any) -> None:
    """Write the summary; nothing when the session had nothing to do with GPUs."""
    from pytest_gpucoexist.reports.terminal import (
        device_line,
        none_ran_line,
        observe_table,
        skip_summary,
        wait_line,
    )
    from pytest_gpucoexist.session.gating import is_unfit

    _tell_github(session, reporter)
    screen = screen_of(reporter)
    ledger = session.ledger or _from_statistics(reporter)
    records = ledger.records()
    observing = session.options.observe
    verbosity = session.config.option.verbose
    lines = [] if observing or reporter.no_summary else skip_summary(records, screen, verbosity=verbosity)
    if verbosity >= 0 and not reporter.no_summary:
        lines += [line for line in (device_line(records, screen), wait_line(records, screen)) if line]
    table = None
    if observing:
        from pytest_gpucoexist.session.observe import observe_rows

        table = observe_table(observe_rows(ledger), screen, verbosity=verbosity)
    none_ran = None if observing else none_ran_line(ledger.needing(), screen)
    left_out = sum(record.gpu_outcome == "not_run" and record.outcome == "skipped" for record in records)
    machine = _unsaid_machine(session)
    if not (lines or table or none_ran or session.notes or is_unfit(session)):
        return
    reporter.section("GPU coexistence")
    for line in machine:
        reporter.line(line)
    for line in lines:
        reporter.line(line)
    if table is not None:
        for line in table.splitlines():
            reporter.line(line)
    if left_out and not observing:
        tests = f"{left_out} GPU test{'' if left_out == 1 else 's'}"
        reporter.line(f"{tests} skipped by the suite itself, for reasons of its own")
    for note in session.notes:
        reporter.line(note, red=note.startswith("ERROR"))
    if none_ran is not None:
        reporter.line(none_ran, red=bool(session.options.promises), yellow=not session.options.promises, bold=True)


def _tell_github(session: GpuSession, reporter: Any) -> None:
    if session.judgement is None or session.discovered is None or os.environ.get("GITHUB_ACTIONS") != "true":
        return
    from pytest_gpucoexist.session.github import tell_github

    problem = tell_github(session.judgement, session.discovered, os.environ, reporter)
    if problem is not None:
        session.notes.append(problem)


def _unsaid_machine(session: GpuSession) -> list[str]:
    """Describe the machine at the end of a distributed run: at its beginning nobody had collected.

    Also where only a running test asked for a device: then the gates have not been heard yet.
    """
    manager = session.config.pluginmanager
    late = session.judgement is not None and not manager.has_plugin("gpucoexist-collected")
    if session.discovered is None or not (late or manager.has_plugin("dsession")):
        return []
    from pytest_gpucoexist.session.header import machine_lines

    return machine_lines(session)


def screen_of(reporter: Any) -> Screen:
    """Describe what pytest's terminal reporter writes to."""
    from pytest_gpucoexist.reports.screen import screen_for

    writer = reporter._tw  # noqa: SLF001  pytest has no public way to its terminal writer
    return screen_for(writer._file, os.environ, width=writer.fullwidth, colour=writer.hasmarkup)  # noqa: SLF001


def session_screen(config: Any) -> Screen:
    """Describe what this session writes to, terminal reporter or not."""
    from pytest_gpucoexist.reports.screen import PLAIN

    reporter = config.pluginmanager.get_plugin("terminalreporter")
    return PLAIN if reporter is None else screen_of(reporter)


def _from_statistics(reporter: Any) -> Ledger:
    """Read the reports that the terminal kept: a session that asked for nothing pays nothing while tests run."""
    from pytest_gpucoexist.session.ledger import Ledger

    ledger = Ledger(dist=getattr(reporter.config.option, "dist", "no"))
    for category, reports in reporter.stats.items():
        for report in reports:
            if not category or category in {"deselected", "rerun", "warnings"}:
                continue
            if getattr(report, "when", None) in {"setup", "call", "teardown"}:
                if hasattr(report, "gpucoexist") or report.skipped:
                    ledger.add(report)
            elif hasattr(report, "result"):
                ledger.add_collector(report)
    return ledger
