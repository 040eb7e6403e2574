"""Skips that are accounted for: expected, written, promised, summed up."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from pytest_gpucoexist.errors import UserError
from pytest_gpucoexist.model import plan
from pytest_gpucoexist.session.skips import compare_skips, format_skips, parse_skips
from tests.machines import amd, dual, machine, nvidia

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Session = Callable[..., pytest.RunResult]

BOTH_WAYS = pytest.mark.parametrize("way", [(), ("-n2",)], ids=["serial", "xdist"])

SUITE = """
    import pytest

    @pytest.mark.cuda
    def test_cuda(gpu): pass

    @pytest.mark.rocm
    @pytest.mark.parametrize("x", ["a b", "[c]"])
    def test_rocm(x): pass

    def test_framework():
        pytest.importorskip("pycuda")

    def test_own_reason():
        pytest.importorskip("tensorrt", reason="no fun without it")

    def test_something_else():
        pytest.importorskip("surely_not_there")

    def test_plain(): pass
"""

MODULE = """
    import pytest
    cupy = pytest.importorskip("cupy.cuda")
    def test_it(): pass
"""


@pytest.fixture
def suite(pytester: pytest.Pytester) -> Path:
    pytester.makepyfile(test_it=SUITE, test_module=MODULE)
    return pytester.path


def junit(path: Path) -> tuple[int, int, dict[str, str]]:
    """Failures plus errors, skips, and the messages of what is red."""
    (suite_node,) = ET.parse(path).getroot().iter("testsuite")
    red = {
        f"{case.get('classname')}::{case.get('name')}": problem.text or ""
        for case in suite_node.iter("testcase")
        for problem in case
        if problem.tag in {"failure", "error"}
    }
    return int(suite_node.get("failures", 0)) + int(suite_node.get("errors", 0)), int(suite_node.get("skipped", 0)), red


@BOTH_WAYS
def test_the_number_of_hardware_skips(session: Session, suite: Path, way: tuple[str, ...]) -> None:
    # Two for want of AMD, two tests and a module for want of a framework; the seventh skip is none of hardware.
    result = session(*way, "--gpu-simulate", "--gpu-expect-skips=5", on=machine(nvidia()))
    assert result.ret == 0
    result = session(*way, "--gpu-simulate", "--gpu-expect-skips=4", "--junitxml=j.xml", on=machine(nvidia()))
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        ["*ERROR collecting --gpu-expect-skips=4*", "5 hardware skips, expected 4", "    test_it.py::*"]
    )
    failed, _, red = junit(suite / "j.xml")
    assert failed == 1
    assert "5 hardware skips, expected 4" in "".join(red.values())


@BOTH_WAYS
def test_the_file_of_expected_skips(session: Session, suite: Path, way: tuple[str, ...]) -> None:
    result = session(*way, "--gpu-simulate", "--gpu-write-skips=sub/skips.txt", on=machine(nvidia()))
    result.stdout.fnmatch_lines(["5 hardware skips written to sub/skips.txt"])
    text = (suite / "sub/skips.txt").read_text()
    assert "test_it.py::test_rocm[a b]\n    needs 1 AMD GPU with ROCm; found no AMD GPU\n" in text
    assert "test_module.py\n    could not import 'cupy.cuda': No module named 'cupy'" in text
    assert "test_it.py::test_own_reason\n    no fun without it" in text
    assert session(*way, "--gpu-simulate", "--gpu-expect-skips=sub/skips.txt", on=machine(nvidia())).ret == 0

    lines = [line for line in text.splitlines() if "test_rocm[[]c]" not in line]
    edited = "\n".join(lines).replace("No module named 'cupy'", "another reason").replace("test_framework", "test_gone")
    (suite / "sub/skips.txt").write_text(edited)
    result = session(*way, "--gpu-simulate", "--gpu-expect-skips=sub/skips.txt", on=machine(nvidia()))
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    out = result.stdout.str()
    assert "test_it.py::test_framework: skipped, which was not expected: could not import 'pycuda'" in out
    assert "test_it.py::test_gone: expected to be skipped, but was not" in out
    assert "test_module.py: skipped for another reason" in out


def test_skips_as_text() -> None:
    skips = {"b.py::test[x y]": "needs 1 GPU;\nfound no GPU", "a.py": "why"}
    text = format_skips(skips)
    assert parse_skips(text, "f") == {"a.py": "why", "b.py::test[x y]": "needs 1 GPU; found no GPU"}
    assert compare_skips(parse_skips(text, "f"), skips) == []
    assert compare_skips(parse_skips("a.py\nb.py::test[x y]\n", "f"), skips) == []
    assert parse_skips("a\n  one\n  two\n", "f") == {"a": "one two"}
    with pytest.raises(UserError, match="f:1: a reason without a test id"):
        parse_skips("  reason\n", "f")


@pytest.mark.parametrize("option", ["--gpu-write-skips=file/skips.txt", "--gpu-report=file/r.json"])
def test_what_cannot_be_written_is_said_before_the_first_test(session: Session, suite: Path, option: str) -> None:
    (suite / "file").write_text("")
    result = session(option, "--gpu-simulate")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = filter(None, result.stderr.lines)
    assert line.startswith(f"ERROR: {option.partition('=')[0]}: cannot write ")
    assert f"no folder {suite / 'file'}" in line


def test_a_folder_in_place_of_a_report_is_said_before_the_first_test(session: Session, suite: Path) -> None:
    (suite / "r.json").mkdir()
    result = session("--gpu-report=r.json", "--gpu-simulate")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "it is a folder; give the name of a file" in result.stderr.str()


def test_a_report_whose_folder_has_gone_at_the_end_fails_the_run(session: Session, pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import os
        def test_it(): os.rmdir("out")
    """)
    result = session("--gpu-report=out/r.json", "--gpu-simulate")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert list(pytester.path.glob("out*")) == []


def test_an_interrupted_run_is_not_judged(session: Session, pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_one(): assert 0\ndef test_two(): pass")
    result = session("-x", "--gpu-expect-skips=7")
    assert "expected 7" not in result.stdout.str()


@BOTH_WAYS
def test_a_promise_that_is_kept(session: Session, suite: Path, way: tuple[str, ...]) -> None:
    result = session(*way, "--gpu-require=cuda:2,rocm", on=dual(), real=True)
    assert result.ret == 0
    if not way:
        result.stdout.fnmatch_lines(["  promised by this runner: cuda:2,rocm"])


@BOTH_WAYS
@pytest.mark.parametrize("simulate", [False, True])
def test_a_promise_that_is_broken_stops_before_the_first_test(
    session: Session, suite: Path, way: tuple[str, ...], simulate: bool
) -> None:
    args = ["--gpu-require=cuda:2,rocm", "--junitxml=j.xml", "--gpu-report=r.json", "--gpu-write-skips=s.txt"]
    if simulate:
        result = session(*way, *args, "--gpu-simulate", on=dual())
    else:
        result = session(*way, *args, on=machine(nvidia(), amd()), real=True)
    assert result.ret == 69
    out = result.stdout.str()
    wanted = (
        "simulated devices keep no promise" if simulate else "needs 2 NVIDIA GPUs with CUDA; found 0000:41:00.0 (fits)"
    )
    assert wanted in out
    assert "passed" not in out
    assert "workers" not in out
    failed, _, red = junit(suite / "j.xml")
    assert failed == 1
    assert wanted in "".join(red.values())
    report = json.loads((suite / "r.json").read_text())
    assert (report["exit_status"], report["tests"]) == (69, [])
    assert wanted in "".join(report["notes"])
    assert not (suite / "s.txt").exists()


@BOTH_WAYS
def test_what_was_not_promised_may_be_skipped(
    session: Session, pytester: pytest.Pytester, way: tuple[str, ...]
) -> None:
    pytester.makepyfile(
        """
        import pytest
        def test_pass(cuda_gpu): pass
        @pytest.mark.cuda(count=3)
        def test_not_promised(): pass
        @pytest.mark.cuda(memory="1 TiB")
        def test_condition_not_promised(): pass
        """
    )
    result = session(*way, "--gpu-require=cuda:2", on=dual(), real=True)
    result.assert_outcomes(passed=1, skipped=2)


def test_a_promised_device_that_goes_missing_is_a_failure(
    session: Session, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "unmet_promises", lambda *_: ())
    pytester.makepyfile(
        "import pytest\n@pytest.mark.cuda\ndef test_it(): pass\n@pytest.mark.rocm\ndef test_amd(): pass"
    )
    result = session("--gpu-require=cuda", "--junitxml=j.xml", on=machine(), real=True)
    result.assert_outcomes(errors=2, skipped=1)  # the test, and that nothing ran
    result.stdout.fnmatch_lines(["*found no NVIDIA GPU (promised by --gpu-require=cuda)*"])


@BOTH_WAYS
def test_gpu_tests_were_selected_and_none_ran(
    session: Session, pytester: pytest.Pytester, way: tuple[str, ...]
) -> None:
    pytester.makepyfile("import pytest\n@pytest.mark.rocm\ndef test_it(): pass\ndef test_plain(): pass")
    result = session(*way, on=machine(nvidia()), real=True)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["1 GPU test selected and NONE ran on a GPU: 1 missing"])
    result = session(*way, "--gpu-require=cuda", "--junitxml=j.xml", on=machine(nvidia()), real=True)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    failed, _, red = junit(pytester.path / "j.xml")
    assert failed == 1
    assert "NONE ran on a GPU" in "".join(red.values())


@BOTH_WAYS
def test_missing_hardware_can_be_a_failure(session: Session, suite: Path, way: tuple[str, ...]) -> None:
    result = session(*way, "--gpu-missing=fail", "--gpu-simulate", on=machine(nvidia()))
    result.assert_outcomes(errors=2, passed=2, skipped=4)


@BOTH_WAYS
def test_skips_are_grouped_by_what_was_missing(session: Session, suite: Path, way: tuple[str, ...]) -> None:
    result = session(*way, "--gpu-simulate", on=machine(nvidia()))
    result.stdout.fnmatch_lines(
        ["*= GPU coexistence =*", "2 tests (missing): needs 1 AMD GPU with ROCm; found no AMD GPU", "    test_it.py::*"]
    )
    out = result.stdout.str()
    assert "1 test (missing): could not import 'cupy.cuda': No module named 'cupy'" in out
    assert "1 test (missing): no fun without it" in out
    assert "surely_not_there" not in out.split("GPU coexistence")[1]


@BOTH_WAYS
def test_frameworks_are_noticed_without_any_mark(
    session: Session, pytester: pytest.Pytester, way: tuple[str, ...]
) -> None:
    pytester.makepyfile(MODULE)
    pytester.makepyfile(test_x="def test_it(): pass")
    result = session(*way, on=None)
    result.stdout.fnmatch_lines(["1 test (missing): could not import 'cupy.cuda'*"])


@BOTH_WAYS
def test_junit_and_the_report_carry_what_happened(session: Session, suite: Path, way: tuple[str, ...]) -> None:
    result = session(*way, "--gpu-report=r.json", "--junitxml=j.xml", on=dual(), real=True)
    result.stdout.fnmatch_lines(["report written to r.json"])
    properties = {
        case.get("name"): [(each.get("name"), each.get("value")) for each in case.iter("property")]
        for case in ET.parse(suite / "j.xml").iter("testcase")
    }
    found = dict(properties["test_cuda"])
    assert found["gpu_requirement"] == "1 NVIDIA GPU with CUDA"
    assert found["gpu_outcome"] == "ran"
    assert found["gpu_numa_node"] == "0"
    device = str(found["gpu_device"])
    assert device.startswith(("0000:41:00.0 GPU-00000000", "0000:42:00.0 GPU-00000001"))
    assert device.endswith("GA102 [GeForce RTX 3090] nvidia 535.261.03")
    assert properties["test_plain"] == []

    report = json.loads((suite / "r.json").read_text())
    tests = {test["nodeid"]: test for test in report["tests"]}
    assert len(tests) == 8
    assert tests["test_it.py::test_cuda"]["gpu_outcome"] == "ran"
    assert tests["test_it.py::test_cuda"]["devices"][0]["driver"] == "nvidia"
    assert tests["test_it.py::test_plain"]["gpu_outcome"] is None
    assert tests["test_module.py"]["reason"].startswith("could not import 'cupy.cuda'")
    assert (report["exit_status"], report["simulated"], report["machine"]["name"]) == (0, False, "testbox")
    if way:
        assert tests["test_it.py::test_cuda"]["worker"] in {"gw0", "gw1"}
        assert tests["test_it.py::test_plain"]["worker"] in {"gw0", "gw1"}


def test_a_plugin_can_amend_the_report(session: Session, pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import dataclasses
        def pytest_gpucoexist_report(config, report):
            return dataclasses.replace(report, notes=("added",))
        """
    )
    pytester.makepyfile("def test_it(): pass")
    session("--gpu-report=r.json")
    assert json.loads((pytester.path / "r.json").read_text())["notes"] == ["added"]


@BOTH_WAYS
def test_every_way_a_test_can_end_is_told_apart(
    session: Session, pytester: pytest.Pytester, way: tuple[str, ...]
) -> None:
    pytester.makepyfile(
        test_it="""
        import pytest
        pytestmark = pytest.mark.gpu
        @pytest.fixture
        def broken(): assert 0
        @pytest.fixture
        def late():
            yield
            assert 0
        def test_passed(): pass
        def test_failed(): assert 0
        def test_setup(broken): pass
        def test_teardown(late): pass
        def test_skipped(): pytest.skip("for a reason of its own")
        @pytest.mark.skip(reason="never")
        def test_mark(): pass
        @pytest.mark.xfail
        def test_xfailed(): assert 0
        @pytest.mark.xfail
        def test_xpassed(): pass
        """
    )
    session(*way, "--gpu-report=r.json", on=dual(), real=True)
    tests = json.loads((pytester.path / "r.json").read_text())["tests"]
    ends = {test["nodeid"].split("test_it.py::test_")[1]: (test["outcome"], test["gpu_outcome"]) for test in tests}
    assert ends == {
        "passed": ("passed", "ran"),
        "failed": ("failed", "ran"),
        "setup": ("error", "ran"),
        "teardown": ("error", "ran"),
        "skipped": ("skipped", "not_run"),
        "mark": ("skipped", "not_run"),
        "xfailed": ("xfailed", "ran"),
        "xpassed": ("xpassed", "ran"),
    }


def test_a_suite_that_only_lacks_a_framework_is_not_accused(session: Session, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(MODULE)
    result = session("--gpu-require=cuda", on=dual(), real=True)
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    assert "NONE ran" not in result.stdout.str()
