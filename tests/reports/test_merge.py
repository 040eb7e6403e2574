"""Reports of several runners: where each test really ran, or why nowhere."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist.errors import ReportError
from pytest_gpucoexist.model.machine import Machine
from pytest_gpucoexist.reports.merge import MergedReport, MergedTest, merge_reports
from pytest_gpucoexist.reports.merged_text import merged_text
from pytest_gpucoexist.reports.screen import Screen
from tests.reports import sessions

if TYPE_CHECKING:
    from pytest_gpucoexist.reports.model import SessionReport, TestRecord


def on(name: str, *tests: TestRecord, **changes: object) -> SessionReport:
    return sessions.session(*tests, machine=replace(sessions.real_machine(), name=name), **changes)


def merged(*reports: SessionReport) -> MergedReport:
    return merge_reports([(f"runs/{number}.json", report) for number, report in enumerate(reports)])


def find(report: MergedReport, nodeid: str) -> MergedTest:
    return next(test for test in report.tests if test.nodeid == nodeid)


def test_a_test_that_ran_on_one_runner_did_run() -> None:
    report = merged(
        on("cuda-box", sessions.gpu_record("a", "nvidia0"), sessions.unmet("b")),
        on("amd-box", sessions.unmet("a", reason="no NVIDIA GPU"), sessions.gpu_record("b", "amd1")),
    )
    assert report.gaps == ()
    a = find(report, "a")
    assert [(run.runner, run.outcome, run.devices[0].id) for run in a.runs] == [("cuda-box", "passed", "nvidia0")]
    assert [(item.runner, item.outcome, item.reason) for item in a.absences] == [
        ("amd-box", "missing", "no NVIDIA GPU")
    ]


def test_what_ran_nowhere_comes_first_then_what_failed_then_collection_order() -> None:
    report = merged(
        on(
            "box",
            sessions.gpu_record("z", "nvidia0"),
            sessions.gpu_record("f", "nvidia0", outcome="failed"),
            sessions.unmet("gap"),
            sessions.gpu_record("a", "nvidia0"),
        )
    )
    assert [test.nodeid for test in report.tests] == ["gap", "f", "z", "a"]
    assert [test.failed for test in report.tests] == [False, True, False, False]


def test_a_simulated_pass_is_no_run() -> None:
    device = replace(sessions.gpu_record("x", "nvidia0").devices[0], simulated=True)
    report = merged(
        on(
            "replay",
            sessions.gpu_record("ran", "nvidia0"),
            sessions.gpu_record("said", "nvidia0", gpu_outcome="simulated"),
            sessions.unmet("skip", "simulated", "replayed"),
            simulated=True,
        ),
        on("real", sessions.gpu_record("device", devices=(device,))),
    )
    assert {test.nodeid for test in report.gaps} == {"ran", "said", "skip", "device"}
    reasons = {test.nodeid: (test.absences[0].outcome, test.absences[0].reason) for test in report.gaps}
    assert reasons == {
        "ran": ("simulated", "passed on simulated devices"),
        "said": ("simulated", "passed on simulated devices"),
        "skip": ("simulated", "replayed"),
        "device": ("simulated", "passed on simulated devices"),
    }


def test_a_test_without_a_need_ran_wherever_it_was_not_skipped() -> None:
    report = merged(
        on("one", sessions.record("a"), sessions.record("b", "skipped", reason="no network")),
        on("two", sessions.record("a", "failed"), sessions.record("b", "skipped", reason="no network")),
    )
    assert [run.outcome for run in find(report, "a").runs] == ["passed", "failed"]
    assert [(item.outcome, item.reason) for item in find(report, "b").absences] == [("skipped", "no network")] * 2


@pytest.mark.parametrize("gpu_outcome", [None, "ran"])
def test_a_skip_of_the_suite_is_no_run(gpu_outcome: str | None) -> None:
    record = sessions.gpu_record("a", outcome="skipped", gpu_outcome=gpu_outcome, reason="slow", devices=())
    (absence,) = find(merged(on("box", record)), "a").absences
    assert (absence.outcome, absence.reason) == ("skipped", "slow")


def test_the_last_record_of_a_rerun_test_counts() -> None:
    report = merged(
        on("box", sessions.gpu_record("a", "nvidia0", outcome="failed"), sessions.gpu_record("a", "nvidia0"))
    )
    assert [run.outcome for run in find(report, "a").runs] == ["passed"]


def test_a_need_that_only_one_runner_knows_is_kept() -> None:
    report = merged(on("one", sessions.record("a", "skipped")), on("two", sessions.unmet("a")))
    assert find(report, "a").requirement == "1 AMD GPU with ROCm"


def test_runners_are_told_apart() -> None:
    none = sessions.session(machine=None)
    labels = [
        runner.label
        for runner in merge_reports(
            [("x/a.json", on("box")), ("x/b.json", on("box")), ("y/c.json", none), ("z/c.json", none)]
        ).runners
    ]
    assert labels == ["box (a)", "box (b)", "c (c) #1", "c (c) #2"]


def test_a_runner_lists_the_gpus_that_tests_can_use() -> None:
    (runner,) = merged(on("box", exit_status=0)).runners
    assert runner.gpus[0] == "nvidia0 NVIDIA GeForce RTX 4090"
    assert not any("ASPEED" in gpu for gpu in runner.gpus)
    assert (runner.source, runner.exit_status) == ("0.json", 0)


def test_nothing_to_merge_is_an_error() -> None:
    with pytest.raises(ReportError, match="no report to merge"):
        merge_reports([])


def test_text() -> None:
    report = merged(
        on(
            "cuda-box",
            sessions.gpu_record("t.py::a", "nvidia0"),
            sessions.unmet("t.py::gap"),
            sessions.record("t.py::suite", "skipped"),
            exit_status=0,
        ),
        on("amd-box", sessions.unmet("t.py::gap"), sessions.gpu_record("t.py::a", "amd1", outcome="failed")),
        sessions.session(simulated=True, machine=Machine(name="demo")),
    )
    text = merged_text(report, Screen(width=160))
    assert text.startswith("Reports of 3 runners\n  cuda-box  nvidia0 NVIDIA GeForce RTX 4090, nvidia1 ")
    assert "  demo      SIMULATED, counts for nothing on GPUs; no GPU" in text
    assert "2 tests ran nowhere\n  t.py::gap\n    cuda-box, amd-box  missing: needs 1 AMD GPU with ROCm; found" in text
    assert "  t.py::suite\n    cuda-box  skipped" in text
    assert "t.py::a  1 passed, 1 failed  cuda-box: nvidia0; amd-box: amd1" in text
    assert text.endswith("\n\n3 tests: 1 ran, 1 failed, 2 ran nowhere.")


def test_text_without_gaps_and_without_tests() -> None:
    assert merged_text(merged(on("box", sessions.record("a")))).endswith("1 test: 1 ran, 0 failed, none ran nowhere.")
    assert merged_text(merged(on("box"))).endswith("0 tests: 0 ran, 0 failed, none ran nowhere.")


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_text_keeps_within_the_screen(width: int) -> None:
    text = merged_text(merged(sessions.workstation_session(), on("other")), Screen(width=width, unicode=False))
    assert max(map(len, text.split("\n")[:-1])) <= width
    assert text.isascii()
