"""Text of a session."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_gpucoexist.model.machine import Machine
from pytest_gpucoexist.reports.model import ObserveRow, PlanRow
from pytest_gpucoexist.reports.screen import Screen
from pytest_gpucoexist.reports.terminal import (
    device_line,
    machine_header,
    none_ran_line,
    observe_table,
    plan_table,
    skip_summary,
    wait_line,
)
from tests.reports import machines, sessions

ROWS = (
    PlanRow(
        nodeid="tests/test_kernels.py::test_add[float32]",
        requirement="1 NVIDIA GPU with CUDA",
        devices=("nvidia0",),
        alternatives=("nvidia1", "nvidia2"),
    ),
    PlanRow(
        nodeid="tests/test_kernels.py::TestPairs::test_copy",
        requirement="1 NVIDIA GPU with CUDA, 1 AMD GPU with ROCm",
        devices=("nvidia0", "amd1"),
    ),
    PlanRow(
        nodeid="tests/test_hip.py::test_hip_add",
        requirement="2 AMD GPUs with ROCm",
        outcome="missing",
        reason="needs 2 AMD GPUs with ROCm; found 1: 0000:c3:00.0",
    ),
    PlanRow(nodeid="docs/index.md", requirement="1 AMD GPU with ROCm", outcome="masked"),
)

PLAN = """\
Plan for workstation (SIMULATED: a replayed machine)

Test                     Where
──────────────────────────────────────────────────────────────────────────────
tests/test_kernels.py
  test_add[float32]      nvidia0, or nvidia1 or nvidia2
  TestPairs::test_copy   nvidia0 + amd1
tests/test_hip.py
  test_hip_add           missing: needs 2 AMD GPUs with ROCm; found 1:
                         0000:c3:00.0
docs/index.md
  docs/index.md          masked: needs 1 AMD GPU with ROCm

2 tests would run on a GPU; 2 tests would not (1 missing, 1 masked); 1 test needs no GPU"""


def squeezed(text: str) -> list[list[str]]:
    return [line.split() for line in text.split("\n") if line.strip("─ ")]


def test_plan() -> None:
    text = plan_table(ROWS, machines.workstation(), unmarked=1, screen=Screen(width=80))
    assert squeezed(text) == squeezed(PLAN)


def test_a_wide_plan_says_what_a_test_needs() -> None:
    text = plan_table(ROWS, machines.workstation(), screen=Screen(width=140))
    assert "nvidia0 + amd1                  1 NVIDIA GPU with CUDA, 1 AMD GPU with ROCm" in text
    assert "missing                         needs 2 AMD GPUs with ROCm; found 1: 0000:c3:00.0" in text


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_a_plan_keeps_within_the_screen(width: int) -> None:
    long = replace(ROWS[0], nodeid=f"tests/test_long.py::test_{'x' * 200}")
    text = plan_table((*ROWS, long), machines.workstation(), screen=Screen(width=width, unicode=False))
    assert max(map(len, text.split("\n")[:-1])) <= width
    assert text.isascii()


def test_a_plan_without_gpu_tests() -> None:
    text = plan_table((), sessions.real_machine(), unmarked=30)
    assert text == "Plan for workstation\n\n0 tests would run on a GPU; 30 tests need no GPU"


def test_header_of_a_real_machine() -> None:
    lines = machine_header(
        sessions.real_machine(), promised="cuda:2,rocm", observe=True, interferences=("mask style: uuid",)
    )
    assert lines == [
        "GPUs of workstation: 1 NVIDIA (nvidia0), 1 AMD (amd1)",
        "  not usable: nvidia1 (0000:44:00.0): hidden by CUDA_VISIBLE_DEVICES=0",
        "  not usable: amd0 (0000:c1:00.0): user not in group render (gid 105)",
        "  mask: CUDA_VISIBLE_DEVICES=0",
        "  WARNING: CUDA_VISIBLE_DEVICES=0 also hides AMD GPUs: HIP reads it because HIP_VISIBLE_DEVICES is empty",
        "  mask: ROCR_VISIBLE_DEVICES=2 (translated from Slurm's node-wide index 2)",
        "  promised by this runner: cuda:2,rocm",
        "  observing: everything is decided and recorded, nothing is done",
        "  mask style: uuid",
    ]


@pytest.mark.parametrize(
    ("simulate", "how"),
    [(True, "tests that need a GPU run on stand-ins"), (False, "tests that need a GPU are skipped")],
)
def test_header_of_a_replayed_machine(simulate: bool, how: str) -> None:
    first, second, *_rest = machine_header(machines.workstation(), simulate=simulate)
    assert first.startswith("GPUs of workstation (SIMULATED): ")
    assert how in second
    assert len(second) <= 80


def test_a_header_where_nothing_runs_does_not_say_how() -> None:
    lines = machine_header(machines.workstation(), simulate=None)
    assert "SIMULATED" in lines[0]
    assert not any("tests that need a GPU" in line for line in lines)


def test_header_of_a_machine_without_gpus() -> None:
    assert machine_header(Machine(name="runner")) == ["GPUs of runner: none that can be used"]


def test_header_in_ascii() -> None:
    gpus = tuple(machines.nvidia(n, f"0000:0{n + 1}:00.0") for n in range(4))
    assert machine_header(Machine(name="m", gpus=gpus), screen=Screen(unicode=False)) == [
        "GPUs of m: 4 NVIDIA (nvidia0 ... nvidia3)"
    ]


def test_none_ran() -> None:
    line = none_ran_line(
        [sessions.unmet("a"), sessions.unmet("b"), sessions.unmet("c", "masked"), sessions.record("d")]
    )
    assert line == "3 GPU tests selected and NONE ran on a GPU: 2 missing, 1 masked"


def test_none_ran_says_simulated() -> None:
    ran = sessions.gpu_record("a", "nvidia0", gpu_outcome="simulated")
    assert none_ran_line([ran, ran]) == "SIMULATED: 2 GPU tests ran on stand-ins, NONE ran on a GPU"
    assert none_ran_line([ran, sessions.unmet("b")]) == (
        "SIMULATED: 1 GPU test ran on stand-ins, NONE ran on a GPU; 1 test did not run (missing)"
    )
    assert none_ran_line([ran, sessions.unmet("b"), sessions.unmet("c"), sessions.unmet("d", "masked")]) == (
        "SIMULATED: 1 GPU test ran on stand-ins, NONE ran on a GPU; 3 tests did not run (2 missing, 1 masked)"
    )


def test_none_ran_is_silent_when_one_did_or_none_was_selected() -> None:
    assert none_ran_line([sessions.unmet("a"), sessions.gpu_record("b", "nvidia0")]) is None
    assert none_ran_line([sessions.record("a"), sessions.record("b", "skipped")]) is None
    assert none_ran_line([]) is None


def test_a_gpu_test_that_nothing_became_of_did_not_run() -> None:
    line = none_ran_line([sessions.record("a", "error", requirement="1 GPU")])
    assert line == "1 GPU test selected and NONE ran on a GPU: 1 not run"


def test_skips_are_grouped_by_what_was_missing() -> None:
    records = [*sessions.workstation_session().tests, *(sessions.unmet(f"t.py::test_{n}") for n in range(9))]
    lines = skip_summary(records)
    assert lines[:3] == [
        f"11 tests (missing): {sessions.NO_AMD}",
        "    tests/test_hip.py::test_hip_add",
        "    tests/test_hip.py::test_hip_mul",
    ]
    assert lines[6] == "    … and 6 more"
    assert lines[7:] == [f"1 test (masked): {sessions.HIDDEN}", "    tests/test_masks.py::test_second_card"]


PARAMETERS = [*(f"t.py::test_many[{n}-[x]]" for n in range(80)), "t.py::test_one[1]", "[a]/u.py::test_two"]


def test_parameters_that_fare_alike_share_a_line() -> None:
    lines = skip_summary([sessions.unmet(nodeid) for nodeid in PARAMETERS])
    assert lines[1:] == ["    t.py::test_many[…] (80 tests)", "    t.py::test_one[1]", "    [a]/u.py::test_two"]


def test_verbosity_of_the_skips() -> None:
    records = [sessions.unmet(nodeid) for nodeid in PARAMETERS]
    assert len(skip_summary(records, verbosity=-1)) == 1
    assert skip_summary(records, verbosity=2)[1:] == [f"    {nodeid}" for nodeid in PARAMETERS]


def test_tests_by_device() -> None:
    first = sessions.gpu_record("a", "nvidia0")
    assert device_line([first, first, sessions.unmet("b")]) == "Tests by device: nvidia0 2"
    stand_in = replace(first, devices=(replace(first.devices[0], simulated=True),))
    assert device_line([stand_in]) == "SIMULATED. Tests by device: nvidia0 1"
    assert device_line([sessions.unmet("b"), sessions.record("c")]) is None


def test_waits_for_others() -> None:
    none, short = sessions.record("a"), sessions.gpu_record("b", "nvidia0", waited_s=0.4)
    one, two = sessions.gpu_record("c", "nvidia0", waited_s=4.08), sessions.gpu_record("d", "nvidia0", waited_s=1.5)
    assert wait_line([none, short]) is None
    assert wait_line([none, short, one]) == "1 test waited 4.1 s for devices that others held: c"
    assert wait_line([two, one]) == "2 tests waited for devices that others held, 5.6 s in all, longest 4.1 s: c"


def test_failures_for_want_of_hardware_are_in_the_summary_and_others_are_not() -> None:
    unfit = sessions.record("a", "failed", requirement="1 GPU", gpu_outcome="unfit", reason="0000:01:00.0 is unfit")
    lines = skip_summary(
        [
            unfit,
            sessions.gpu_record("b", "nvidia0", outcome="failed", reason="assert 1"),
            sessions.record("c", "skipped", reason="no network"),
            sessions.record("d", "skipped", requirement="1 GPU", gpu_outcome="not_run", reason="-x"),
            sessions.record("e", "skipped", requirement="1 GPU", reason="by the suite"),
            sessions.gpu_record("f", "nvidia0", gpu_outcome="simulated"),
        ]
    )
    assert lines == ["1 test (unfit): 0000:01:00.0 is unfit", "    a"]


def test_a_skip_without_a_reason_says_what_it_needs() -> None:
    assert skip_summary([sessions.unmet("a", reason=None)])[0] == "1 test (missing): needs 1 AMD GPU with ROCm"


def test_observed_differences() -> None:
    rows = [
        ObserveRow(
            nodeid="t.py::a",
            decision="run on nvidia0",
            outcome="skipped",
            differs=True,
            suite_reason="torch.cuda.is_available() is False",
        ),
        ObserveRow(nodeid="t.py::b", decision="skip: needs 1 AMD GPU", outcome="passed", differs=True),
        ObserveRow(nodeid="t.py::c", decision="run on nvidia0", outcome="passed", differs=False),
    ]
    text = observe_table(rows)
    assert text.startswith("2 tests would go differently, 1 the same:\n")
    assert "t.py::a  skipped: torch.cuda.is_available() is False  run on nvidia0" in text
    assert "t.py::b  passed                                       skip: needs 1 AMD GPU" in text
    assert "t.py::c" not in text


def test_observed_differences_without_room_for_columns() -> None:
    rows = [
        ObserveRow(
            nodeid=f"t.py::a[{n}]", decision="run on nvidia0", outcome="skipped", differs=True, suite_reason="no"
        )
        for n in range(9)
    ]
    assert observe_table(rows, Screen(width=80)).split("\n") == [
        "9 tests would go differently, 0 the same:",
        "",
        "t.py::a[…] (9 tests)",
        "    the suite:  skipped: no",
        "    the plugin: run on nvidia0",
    ]
    assert observe_table(rows, Screen(width=80), verbosity=1).count("t.py::a[") == 9


def test_a_plan_gathers_parameters_that_fare_alike() -> None:
    rows = [replace(ROWS[2], nodeid=f"tests/test_hip.py::test[{n}]") for n in range(500)]
    text = plan_table(rows, machines.workstation(), screen=Screen(width=80))
    assert "test[…] (500 tests)" in text
    assert text.count("\n") < 12
    assert plan_table(rows, machines.workstation(), verbosity=1).count("  test[") == 500


def test_nothing_observed_differs() -> None:
    row = ObserveRow(nodeid="a", decision="run", outcome="passed", differs=False)
    assert observe_table([row]) == "The plugin would have decided like the suite for all 1 GPU test."
