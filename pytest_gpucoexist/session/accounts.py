"""Accounts of a session: expected skips, the promise, files. Registered when asked for, in the controller alone."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist.errors import GpuCoexistError, ReportError
from pytest_gpucoexist.session.deselected import Deselected
from pytest_gpucoexist.session.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Generator

    from pytest_gpucoexist.reports.model import SessionReport
    from pytest_gpucoexist.session.state import GpuSession

__all__ = ["Accounts"]


# A run that was stopped knows only a part of its skips: an older file is worth more.
_COMPLETE = {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED}


class Accounts:
    """Reads every report, and at the end compares, fails the run where it must, and writes files."""

    def __init__(self, session: GpuSession) -> None:
        """Read the file of expected skips, and look whether files can be written. Raises GpuCoexistError."""
        self._session = session
        for option, path in (("report", session.options.report), ("write-skips", session.options.write_skips)):
            if path is not None:
                from pytest_gpucoexist.reports.atomic import prepare

                try:
                    prepare(self._path(path))
                except ReportError as error:
                    raise ReportError(f"--gpu-{option}: {error}") from None
        self.ledger = Ledger(dist=getattr(session.config.option, "dist", "no"))
        session.ledger = self.ledger
        self._expected: int | dict[str, str | None] | None = None
        expected = session.options.expect_skips
        if isinstance(expected, str):
            from pytest_gpucoexist.session.skips import read_skips

            self._expected = read_skips(self._path(expected))
            self._deselected = Deselected(session.config)
            session.config.pluginmanager.register(self._deselected, "gpucoexist-deselected")
        else:
            self._expected = expected

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note what happened to a test."""
        self.ledger.add(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a module that skipped itself for want of a GPU framework."""
        self.ledger.add_collector(report)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """After the last test: what was promised and expected. An interrupted run is not judged."""
        result = yield
        from pytest_gpucoexist.session.collecting import fail_collection

        for title, message in self._complaints():
            fail_collection(session, title, message)
        return result

    def _complaints(self) -> list[tuple[str, str]]:
        options = self._session.options
        if options.observe:
            return []
        found = []
        if self._expected is not None:
            from pytest_gpucoexist.session.skips import compare_count, compare_skips

            skips = self.ledger.hardware_skips()
            lines = (
                compare_count(self._expected, skips)
                if isinstance(self._expected, int)
                else compare_skips(self._deselected.without(self._expected, self.ledger.ids()), skips)
            )
            if lines:
                found.append((f"--gpu-expect-skips={options.expect_skips}", "\n".join(lines)))
        if options.promises:
            from pytest_gpucoexist.reports.terminal import none_ran_line

            broken = [*self._unfit_promises(), none_ran_line(self.ledger.needing())]
            found += [(f"--gpu-require={options.require}", text) for text in broken if text]
        return found

    def _unfit_promises(self) -> tuple[str, ...]:
        """Say which promises the judged machine does not keep: they were looked at before anything was judged."""
        from pytest_gpucoexist.model.plan import unmet_promises

        machine = self._session.discovered
        if machine is None or all(gpu.fit for gpu in machine.gpus):
            return ()
        return unmet_promises(self._session.options.promises, machine)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write what was asked for. What cannot be written fails the run with a note in the summary."""
        options = self._session.options
        exitstatus = session.exitstatus  # not what the hook was called with: gates may have ended the run
        try:
            if options.write_skips is not None and exitstatus in _COMPLETE:
                from pytest_gpucoexist.session.skips import write_skips

                skips = self.ledger.hardware_skips()
                write_skips(skips, self._path(options.write_skips))
                count = len(skips)
                self._session.notes.append(
                    f"{count} hardware skip{'' if count == 1 else 's'} written to {options.write_skips}"
                )
            if options.report is not None:
                from pytest_gpucoexist.reports import write_report

                write_report(self._report(int(exitstatus)), self._path(options.report))
                self._session.notes.append(f"report written to {options.report}")
        except GpuCoexistError as error:
            self._session.notes.append(f"ERROR: {error}")
            if exitstatus == pytest.ExitCode.OK:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _report(self, exit_status: int) -> SessionReport:
        from datetime import datetime, timezone

        from pytest_gpucoexist._version import __version__
        from pytest_gpucoexist.reports.model import SessionReport
        from pytest_gpucoexist.session.leasers import lease_notes

        machine = self._session.discovered
        records = self.ledger.records()
        leased = lease_notes(self._session) if any(record.devices for record in records) else ()
        report = SessionReport(
            version=__version__,
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            exit_status=exit_status,
            simulated=machine is not None and machine.simulated,
            machine=machine,
            promised=self._session.options.require,
            judgement=self._session.judgement,
            tests=records,
            timeline=self._session.timeline,
            notes=(*self._session.unmet, *leased, *(machine.notes if machine is not None else ())),
        )
        from pytest_gpucoexist.session.plugins import amend

        return amend(self._session.config, "pytest_gpucoexist_report", "report", report)

    def _path(self, path: str) -> str:
        return os.path.join(self._session.config.invocation_params.dir, path)
