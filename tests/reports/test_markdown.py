"""Markdown for a job summary."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_gpucoexist.model.machine import Machine
from pytest_gpucoexist.reports.markdown import merged_markdown, report_markdown
from pytest_gpucoexist.reports.merge import merge_reports
from tests.reports import machines, sessions

SESSION = """\
## GPU tests on workstation

**5** ran on a GPU, **2** failed, **3** not run for want of hardware, **4** need no GPU

Promised: `cuda:2,rocm`

**Failed**

- `tests/test_kernels.py::test_overflow`
- `tests/test_shapes.py::test_strides`

| Tests | Not run because |
|---|---|
| 2 | missing: needs 1 AMD GPU with ROCm; found 0000:c1:00.0 (user not in group render (gid 105)) |
| 1 | masked: needs 2 NVIDIA GPUs with CUDA; found 1, and 1 hidden by CUDA\\_VISIBLE\\_DEVICES=0 |

| GPU | Address | Name | Driver | Use | Tests |
|---|---|---|---|---|---|
| nvidia0 | `0000:43:00.0` | NVIDIA GeForce RTX 4090 | nvidia 570.86.15 | CUDA | 5 |
"""


def test_a_session() -> None:
    text = report_markdown(sessions.workstation_session())
    assert text.startswith(SESSION)
    assert text.endswith("- gpus: NVML counts 3 NVIDIA GPUs, PCI 2\n\n- 2 tests were rerun\n")


def test_simulated_and_none_ran_are_alerts() -> None:
    simulated = report_markdown(sessions.session(simulated=True, machine=machines.workstation()))
    assert "> [!WARNING]\n> **SIMULATED**" in simulated
    none = report_markdown(sessions.session(sessions.unmet("a")))
    assert "> [!CAUTION]\n> **1 GPU test selected and NONE ran on a GPU: 1 missing**" in none


def test_a_session_without_a_machine() -> None:
    assert report_markdown(sessions.session(machine=None)) == "## GPU tests\n\n**0** ran on a GPU\n"


def test_a_machine_without_warnings() -> None:
    machine = Machine(name="m", gpus=(machines.nvidia(0, "0000:01:00.0"),))
    assert report_markdown(sessions.session(machine=machine)).endswith("| CUDA | 0 |\n")


@pytest.mark.parametrize(
    ("hostile", "safe"),
    [
        ("a|b", "a\\|b"),
        ("@everyone", "\\@everyone"),
        ("<img src=x>", "\\<img src=x\\>"),
        ("[x](y)", "\\[x\\](y)"),
        ("two\nlines", "two lines"),
    ],
)
def test_texts_stay_texts(hostile: str, safe: str) -> None:
    text = report_markdown(sessions.session(sessions.unmet("a", reason=hostile), notes=(hostile,)))
    assert f"| 1 | missing: {safe} |" in text
    assert f"- {safe}\n" in text


@pytest.mark.parametrize(
    ("nodeid", "code"),
    [("t.py::test[a|b]", "`t.py::test[a\\|b]`"), ("t.py::test[`x`]", "`` t.py::test[`x`] ``")],
)
def test_ids_stay_in_their_fence(nodeid: str, code: str) -> None:
    assert f"- {code}\n" in report_markdown(sessions.session(sessions.record(nodeid, "failed")))


def test_long_lists_are_counted() -> None:
    tests = [sessions.record(f"t::{n}", "failed") for n in range(25)]
    text = report_markdown(sessions.session(*tests))
    assert "- `t::19`\n" in text
    assert "t::20" not in text
    assert "… and 5 more" in text


def test_several_runners() -> None:
    report = sessions.workstation_session()
    other = sessions.session(
        sessions.gpu_record("tests/test_hip.py::test_hip_add", "amd1"),
        sessions.unmet("tests/test_hip.py::test_hip_mul", reason="needs 2 AMD GPUs with ROCm; found 1"),
        machine=replace(sessions.real_machine(), name="amd_box"),
        exit_status=0,
    )
    replay = sessions.session(simulated=True, machine=Machine(name="demo", simulated=True))
    text = merged_markdown(merge_reports([("a.json", report), ("b.json", other), ("c.json", replay)]))
    assert text.startswith("## GPU tests on 3 runners\n\n> [!CAUTION]\n> **3 tests ran nowhere**\n")
    assert (
        "| `tests/test_hip.py::test_hip_mul` | workstation: missing: needs 1 AMD GPU with ROCm; found 0000:c1:00.0 "
        "(user not in group render (gid 105))<br>amd\\_box: missing: needs 2 AMD GPUs with ROCm; found 1 |"
    ) in text
    assert "| `tests/test_hip.py::test_hip_add` | passed on amd\\_box: amd1 |" in text
    assert "| 8 | 2 | 1 |" in text
    assert "| demo **SIMULATED** | none | 0 | 0 |  |" in text


def test_many_tests_of_several_runners() -> None:
    gaps = [sessions.unmet(f"gap::{n}") for n in range(21)]
    ran = [sessions.record(f"ran::{n}") for n in range(1001)]
    text = merged_markdown(merge_reports([("a.json", sessions.session(*gaps, *ran))]))
    assert "`gap::19`" in text
    assert "`gap::20`" not in text
    assert "`ran::999`" in text
    assert "`ran::1000`" not in text
    assert "… and 1 more: a .json or .html report has them all" in text


def test_nothing_to_say() -> None:
    assert "ran nowhere" not in merged_markdown(merge_reports([("a.json", sessions.session())]))
