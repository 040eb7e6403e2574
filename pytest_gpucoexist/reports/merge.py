"""Reports of several runners as one: for every test id where it really ran, or why nowhere."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.errors import ReportError
from pytest_gpucoexist.model.codec import encode
from pytest_gpucoexist.reports.model import DeviceUse, Outcome
from pytest_gpucoexist.reports.words import describe_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpucoexist.reports.model import SessionReport, TestRecord

__all__ = ["Absence", "MergedReport", "MergedTest", "Run", "Runner", "merge_reports"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Runner:
    """One report that was merged. `label` names it in this document; `gpus` are ids with names."""

    label: str
    source: str
    created: str
    version: str
    machine: str | None = None
    simulated: bool = False
    exit_status: int | None = None
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A runner where a test really ran."""

    runner: str
    outcome: Outcome
    devices: tuple[DeviceUse, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Absence:
    """A runner where a test did not run. `outcome` is what became of its need, or `skipped` by the suite itself."""

    runner: str
    outcome: str
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedTest:
    """One test id on all runners."""

    nodeid: str
    requirement: str | None = None
    runs: tuple[Run, ...] = ()
    absences: tuple[Absence, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether it failed on any runner where it ran."""
        return any(run.outcome in {"failed", "error"} for run in self.runs)


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedReport:
    """What became of each test on several runners: those that ran nowhere first, then those that failed."""

    merged: int = 1
    runners: tuple[Runner, ...] = ()
    tests: tuple[MergedTest, ...] = field(default=())

    @property
    def gaps(self) -> tuple[MergedTest, ...]:
        """The tests that ran nowhere."""
        return tuple(test for test in self.tests if not test.runs)

    def to_json(self) -> dict[str, Any]:
        """Return the object of a merged `.json` report (`schemas/merged.json`)."""
        return encode(self)  # type: ignore[no-any-return]


def merge_reports(reports: Sequence[tuple[str, SessionReport]]) -> MergedReport:
    """Merge reports, each given with the file that it came from. Raises ReportError when there is none.

    A test that needs a GPU really ran where it held real devices and was not skipped; one that needs none, wherever
    it was not skipped. What a simulated session says about GPUs never counts. A test id that one report holds
    several times (it was rerun) counts with its last record.
    """
    if not reports:
        raise ReportError("there is no report to merge; give at least one FILE.json")
    labels = _labels(reports)
    runners = [_runner(label, source, report) for label, (source, report) in zip(labels, reports, strict=True)]
    requirements: dict[str, str | None] = {}
    runs: dict[str, list[Run]] = {}
    absences: dict[str, list[Absence]] = {}
    for label, (_source, report) in zip(labels, reports, strict=True):
        for record in {record.nodeid: record for record in report.tests}.values():
            known = requirements.get(record.nodeid)
            requirements[record.nodeid] = known if known is not None else record.requirement
            if _really_ran(record, report):
                run = Run(runner=label, outcome=record.outcome, devices=record.devices)
                runs.setdefault(record.nodeid, []).append(run)
            else:
                absences.setdefault(record.nodeid, []).append(_absence(label, record, report))
    tests = [
        MergedTest(
            nodeid=nodeid,
            requirement=requirement,
            runs=tuple(runs.get(nodeid, ())),
            absences=tuple(absences.get(nodeid, ())),
        )
        for nodeid, requirement in requirements.items()
    ]
    tests.sort(key=lambda test: 0 if not test.runs else 1 if test.failed else 2)  # stable: collection order within
    return MergedReport(runners=tuple(runners), tests=tuple(tests))


def _really_ran(record: TestRecord, report: SessionReport) -> bool:
    if record.requirement is None:
        return record.outcome != "skipped"
    return record.ran_on_gpu and not report.simulated


def _absence(label: str, record: TestRecord, report: SessionReport) -> Absence:
    if record.requirement is None:
        return Absence(runner=label, outcome="skipped", reason=record.reason)
    if record.gpu_outcome == "ran" and record.outcome != "skipped":
        where = "on simulated devices" if report.simulated or record.devices else "without a device"
        return Absence(runner=label, outcome="simulated", reason=f"{record.outcome} {where}")
    outcome = record.gpu_outcome
    if outcome is None or outcome == "ran":
        return Absence(runner=label, outcome="skipped", reason=record.reason)
    reason = record.reason
    if record.gpu_outcome == "simulated" and record.outcome != "skipped":
        reason = f"{record.outcome} on simulated devices"
    return Absence(runner=label, outcome=outcome, reason=reason)


def _labels(reports: Sequence[tuple[str, SessionReport]]) -> list[str]:
    """Name each runner by its machine, with the file where two machines have the same name, then with a number."""
    names = [report.machine.name if report.machine is not None else _stem(source) for source, report in reports]
    counts = Counter(names)
    labels = [
        name if counts[name] == 1 else f"{name} ({_stem(source)})"
        for name, (source, _report) in zip(names, reports, strict=True)
    ]
    counts = Counter(labels)
    return [
        label if counts[label] == 1 else f"{label} #{labels[: index + 1].count(label)}"
        for index, label in enumerate(labels)
    ]


def _stem(path: str) -> str:
    return os.path.splitext(os.path.basename(path))[0] or path


def _runner(label: str, source: str, report: SessionReport) -> Runner:
    machine = report.machine
    gpus = () if machine is None else tuple(f"{gpu.id} {describe_name(gpu)}" for gpu in machine.gpus if gpu.is_compute)
    return Runner(
        label=label,
        source=os.path.basename(source),
        created=report.created,
        version=report.version,
        machine=None if machine is None else machine.name,
        simulated=report.simulated,
        exit_status=report.exit_status,
        gpus=gpus,
    )
