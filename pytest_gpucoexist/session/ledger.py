"""What happened to every test, read from pytest's reports: a fold without side effects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.reports.model import Outcome, TestRecord
from pytest_gpucoexist.session.frameworks import framework_of_report

if TYPE_CHECKING:
    import pytest


__all__ = ["Ledger"]

HARDWARE = frozenset({"missing", "masked", "not_granted", "simulated"})
"""GPU outcomes that make a skip a hardware skip."""


@dataclass(slots=True)
class _Entry:
    outcome: Outcome = "passed"
    duration_s: float = 0.0
    told: Mapping[str, Any] = field(default_factory=dict)
    skip_reason: str | None = None
    framework: str | None = None
    worker: str | None = None


_RED = frozenset({"failed", "error"})
_GREEN = frozenset({"passed", "xpassed"})


class Ledger:
    """Reports in, records out. Reports may come from several workers and in any order of tests."""

    def __init__(self, *, dist: str = "no") -> None:
        """Nothing happened yet. `dist` is pytest-xdist's: with `each`, the worst end of a test counts."""
        self._dist = dist
        self._entries: dict[str, dict[str, _Entry]] = {}

    def add(self, report: pytest.TestReport) -> None:
        """Take in the report of a set-up, a call or a teardown."""
        nodeid = _without_group(report.nodeid) if self._dist == "loadgroup" else report.nodeid
        ends = self._entries.setdefault(nodeid, {})
        worker = getattr(report, "worker_id", "") if self._dist == "each" else ""
        entry = ends.get(worker)
        if entry is None or report.when == "setup":
            # A rerun begins again; what counts is how it ended.
            entry = ends[worker] = _Entry()
        outcome = _outcome(report)
        if hasattr(report, "context"):
            # A subtest: it can fail its test, and nothing else. A skipped part is no skipped test.
            if outcome in _RED:
                entry.outcome = outcome
            return
        entry.duration_s += getattr(report, "duration", 0.0)
        entry.told = getattr(report, "gpucoexist", entry.told)
        entry.worker = entry.told.get("worker") or getattr(report, "worker_id", None)
        if outcome in _RED or (entry.outcome not in _RED and (report.when == "call" or outcome not in _GREEN)):
            entry.outcome = outcome
        if outcome == "skipped":
            self._skipped(entry, report)

    def add_collector(self, report: pytest.CollectReport) -> None:
        """Take in a module that skipped itself; anything else that was collected is no event."""
        if report.skipped:
            entry = _Entry(outcome="skipped")
            self._skipped(entry, report)
            if entry.framework is not None:
                self._entries[report.nodeid] = {"": entry}

    @staticmethod
    def _skipped(entry: _Entry, report: pytest.TestReport | pytest.CollectReport) -> None:
        if isinstance(report.longrepr, tuple):
            entry.skip_reason = str(report.longrepr[2]).removeprefix("Skipped: ")
            entry.framework = framework_of_report(report)

    def records(self) -> tuple[TestRecord, ...]:
        """Return every test in the order in which it was first heard of."""
        return tuple(_record(nodeid, self._entry(nodeid)) for nodeid in self._entries)

    def _entry(self, nodeid: str) -> _Entry:
        ends = self._entries[nodeid].values()
        return max(ends, key=lambda entry: entry.outcome in _RED)  # the first of equals

    def ids(self) -> set[str]:
        """Return the id of every test that was reported."""
        return set(self._entries)

    def needing(self) -> tuple[TestRecord, ...]:
        """Return the tests that need a GPU by their marks or fixtures.

        A test that only lacked a framework is none of them: its like may have run, and nobody could see it.
        """
        return tuple(record for record in self.records() if self._entry(record.nodeid).told)

    def hardware_skips(self) -> dict[str, str]:
        """Return id and reason of everything that was skipped for want of hardware or of a GPU framework."""
        return {
            record.nodeid: record.reason or ""
            for record in self.records()
            if record.outcome == "skipped" and record.gpu_outcome in HARDWARE
        }

    def told(self, nodeid: str) -> Mapping[str, Any]:
        """Return what the plugin put on the report of a test; empty when it needs no GPU."""
        return self._entry(nodeid).told

    def skip_reason(self, nodeid: str) -> str | None:
        """Return the reason of a skip as pytest reported it."""
        return self._entry(nodeid).skip_reason


def _without_group(nodeid: str) -> str:
    """Take off the group that pytest-xdist appends to an id (`a.py::b[c@d]@group`): ids are those of a serial run."""
    at = nodeid.rfind("@")
    return nodeid[:at] if at > nodeid.rfind("]") else nodeid


def _outcome(report: pytest.TestReport) -> Outcome:
    expected = hasattr(report, "wasxfail")
    if report.skipped:
        return "xfailed" if expected else "skipped"
    if report.failed:
        return "error" if report.when in {"setup", "teardown"} else "failed"
    return "xpassed" if expected and report.when == "call" else "passed"


def _record(nodeid: str, entry: _Entry) -> TestRecord:
    from pytest_gpucoexist.model.codec import decode
    from pytest_gpucoexist.reports.model import DeviceUse

    told = entry.told
    requirement, gpu_outcome, reason = told.get("requirement"), told.get("gpu_outcome"), told.get("reason")
    if entry.framework is not None and gpu_outcome in {None, "not_run", "ran"}:
        requirement, gpu_outcome, reason = requirement or entry.framework, "missing", entry.skip_reason
    return TestRecord(
        nodeid=nodeid,
        outcome=entry.outcome,
        requirement=requirement,
        devices=tuple(decode(DeviceUse, device) for device in told.get("devices", ())),
        numa_node=told.get("numa_node"),
        gpu_outcome=gpu_outcome,
        reason=reason,
        worker=entry.worker,
        duration_s=entry.duration_s,
        waited_s=told.get("waited_s", 0.0),
    )
