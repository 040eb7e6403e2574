"""`--gpu-plan` and `--gpu-observe`: everything decided, nothing done."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.machines import dual, machine, nvidia

if TYPE_CHECKING:
    from collections.abc import Callable

    Session = Callable[..., pytest.RunResult]

BOTH_WAYS = pytest.mark.parametrize("way", [(), ("-n2",)], ids=["serial", "xdist"])

SUITE = """
    import pathlib
    import pytest

    pathlib.Path("imported").touch()

    @pytest.fixture(autouse=True)
    def trace():
        pathlib.Path("ran").touch()

    @pytest.mark.cuda
    def test_cuda(): pass
    @pytest.mark.cross_vendor
    def test_pair(): pass
    @pytest.mark.rocm(count=2)
    def test_many(): pass
    def test_plain(): pass
"""


@BOTH_WAYS
def test_the_plan_runs_nothing(session: Session, pytester: pytest.Pytester, way: tuple[str, ...]) -> None:
    pytester.makepyfile(SUITE)
    result = session(*way, "--gpu-plan", "--gpu-require=cuda:3")
    assert result.ret == 0
    assert not (pytester.path / "ran").exists()
    result.stdout.fnmatch_lines(
        [
            "Plan for testbox (SIMULATED: a replayed machine)",
            "  test_cuda  *nvidia0, or nvidia1*",
            "  test_pair  *nvidia0 + amd0*",
            "  test_many  *missing*",
            "2 tests would run on a GPU; 1 test would not (1 missing); 1 test needs no GPU",
            "--gpu-require=cuda:3 would stop this run: cuda:3 is promised: needs 3 NVIDIA GPUs*",
        ]
    )


def test_the_plan_changes_with_the_machine(session: Session, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SUITE)
    result = session("--gpu-plan", on=machine(nvidia(1)))
    result.stdout.fnmatch_lines(["  test_cuda *nvidia1*", "1 test would run on a GPU; 2 tests would not*"])


def test_the_plan_of_a_suite_without_gpu_tests(session: Session, pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(): raise AssertionError")
    result = session("--gpu-plan")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*1 test needs no GPU"])


def test_the_plan_of_a_suite_with_errors(session: Session, pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import pytest\n@pytest.mark.gpu(x=1)\ndef test_it(): raise AssertionError")
    assert session("--gpu-plan").ret == pytest.ExitCode.INTERRUPTED
    result = session("--gpu-plan", "--continue-on-collection-errors")
    result.stdout.fnmatch_lines(["*0 tests would run on a GPU; 1 test would not (1 not run)*"])


@BOTH_WAYS
def test_observing_changes_nothing_and_reports_the_differences(
    session: Session, pytester: pytest.Pytester, way: tuple[str, ...]
) -> None:
    pytester.makepyfile(
        test_it="""
        import os
        import pytest
        @pytest.mark.rocm(count=2)
        def test_would_skip(): pass
        @pytest.mark.cuda
        def test_agrees(): pass
        @pytest.mark.cuda
        @pytest.mark.skipif(True, reason="no CUDA today")
        def test_would_run(): pass
        @pytest.mark.rocm(count=2)
        def test_both_skip(): pytest.skip("not here")
        @pytest.mark.rocm(count=2)
        def test_fails_without(): assert 0
        def test_unmarked(): pytest.skip("CUDA not available")
        def test_framework(): pytest.importorskip("pycuda")
        def test_other(): pytest.skip("needs a database")
        def test_plain(): pass
        """
    )
    before = session(*way, "-p", "no:gpucoexist", "-rA", "-W", "ignore", on=None)
    result = session(*way, "--gpu-observe", "--gpu-require=cuda:9", "--gpu-missing=fail", on=dual(), real=True)
    assert result.parseoutcomes() == before.parseoutcomes()
    result.stdout.fnmatch_lines(
        [
            "5 tests would go differently, 2 the same:",
            "test_it.py::test_would_skip",
            "    the suite:  passed",
            "    the plugin: skip: needs 2 AMD*",
        ],
        consecutive=False,
    )
    table = " ".join(result.stdout.str().split("would go differently")[1].split())
    for name in ("test_would_skip", "test_would_run", "test_fails_without", "test_unmarked", "test_framework"):
        assert f"test_it.py::{name}" in table
    for name in ("test_agrees", "test_both_skip", "test_other", "test_plain"):
        assert f"test_it.py::{name} " not in table
    assert "run on nvidia0 or nvidia1" in table


def test_observing_a_suite_that_agrees(session: Session, pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import pytest\n@pytest.mark.cuda\ndef test_it(): pass")
    result = session("--gpu-observe", on=dual(), real=True)
    result.stdout.fnmatch_lines(
        ["  observing: everything is decided*", "The plugin would have decided like the suite for all 1 GPU test."]
    )
