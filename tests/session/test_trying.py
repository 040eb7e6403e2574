"""Sessions of level `transfer`: devices are tried before the first test, and a recording is only judged."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("numpy", reason="needs NumPy")
pytest.importorskip("execnet", reason="needs execnet")

if TYPE_CHECKING:
    from pathlib import Path

LOADED = ("-p", "gpucoexist")  # whether plugins load themselves or not

TEST = """
    import pytest

    @pytest.mark.gpu
    def test_one(gpu):
        assert gpu.fit
"""


def ran(pytester: pytest.Pytester, *arguments: str) -> tuple[pytest.RunResult, dict[str, Any]]:
    pytester.makepyfile(TEST)
    report: Path = pytester.path / "report.json"
    result = pytester.runpytest_subprocess(*LOADED, "--gpu-machine=demo", f"--gpu-report={report}", *arguments)
    return result, json.loads(report.read_text(encoding="utf-8"))


def test_simulated_devices_are_tried_before_the_first_test(pytester: pytest.Pytester) -> None:
    result, report = ran(pytester, "--gpu-gates=transfer", "--gpu-simulate")
    result.assert_outcomes(passed=1)
    judgement = report["judgement"]
    verdicts = {each["id"]: each["status"] for each in judgement["verdicts"]}
    assert verdicts["xfer.roundtrip"] == "PASS"
    assert verdicts["xfer.staged.cross"] == "PASS"
    assert verdicts["xfer.host_canary"] == "PASS"
    assert {each["kind"] for each in judgement["trials"]["samples"]} >= {"h2d", "d2h", "staged"}
    assert judgement["unfit"] == {}
    result.stdout.fnmatch_lines(["*copies were tried for * s (level transfer)*"])


def test_a_recording_is_not_tried(pytester: pytest.Pytester) -> None:
    result, report = ran(pytester, "--gpu-gates=transfer")
    assert report["judgement"]["trials"] is None
    result.stdout.fnmatch_lines(["*nothing was copied for level transfer*"])


@pytest.mark.parametrize("value", ["0", "soon", "4000"])
def test_a_budget_that_is_none_is_refused(pytester: pytest.Pytester, value: str) -> None:
    pytester.makeini(f"[pytest]\ngpu_gate_budget = {value}\n")
    result = pytester.runpytest_subprocess(*LOADED, "--gpu-machine=demo")
    result.stderr.fnmatch_lines([f"*gpu_gate_budget: '{value}' is not a number of seconds*"])
