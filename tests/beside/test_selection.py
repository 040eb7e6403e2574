"""-x, --maxfail, --lf, --ff, --sw, -k, -m: part of a suite, and of its skips."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.beside.running import NVIDIA1, workers, workers_slow

if TYPE_CHECKING:
    from tests.beside.running import Suite

MIXED = """
    import pytest
    from conftest import HERE, os

    @pytest.mark.cuda(count=3)
    def test_missing_first(): pass

    @pytest.mark.cuda
    def test_passes(gpu): pass

    @pytest.mark.cuda
    def test_fails(gpu):
        assert os.path.exists(os.path.join(HERE, "mended"))

    @pytest.mark.rocm(count=3)
    def test_missing_last(): pass

    def test_plain(): pass
    """


@workers
def test_maxfail_stops_and_gives_back(suite: Suite, workers: int) -> None:
    suite.pytester.makepyfile(
        """
        import pytest
        from conftest import note

        @pytest.fixture(scope="module")
        def model(module_gpu):
            yield
            note("closed", module_gpu.key)

        @pytest.mark.cuda(memory="40 GiB")
        @pytest.mark.parametrize("n", range(40))
        def test_it(model, gpu, n):
            assert n % 4 != 1
        """
    )
    result = suite.run("--maxfail=2", "--gpu-report=report.json", "--junitxml=junit.xml", workers=workers)
    assert result.ret in {pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED}
    result.stdout.fnmatch_lines(["*stopping after 2 failures*"])
    records = suite.records()
    assert 4 < len(records) < 40
    assert len([test for test in records.values() if test["outcome"] == "failed"]) >= 2
    assert set(suite.noted("closed")) == {NVIDIA1}
    assert suite.held() == {}
    assert suite.cases().keys() == records.keys()


def test_x_stops_at_the_first(suite: Suite) -> None:
    suite.pytester.makepyfile(MIXED)
    result = suite.run("-x", "--gpu-report=report.json", "--gpu-expect-skips=99")
    # Half a run is not judged by its skips.
    result.assert_outcomes(passed=1, skipped=1, failed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert list(suite.records()) == ["test_missing_first", "test_passes", "test_fails"]
    assert suite.held() == {}


@workers_slow
def test_last_failed_knows_no_skip(suite: Suite, workers: int) -> None:
    suite.pytester.makepyfile(MIXED)
    result = suite.run("--gpu-expect-skips=2", "--gpu-write-skips=skips.txt", workers=workers)
    result.assert_outcomes(passed=2, skipped=2, failed=1)
    (suite.path / "mended").touch()
    # Only the failure is run again, and the file that tells of skips elsewhere is no complaint.
    result = suite.run("--lf", "--gpu-expect-skips=skips.txt", "--gpu-report=report.json", workers=workers)
    assert result.ret == pytest.ExitCode.OK
    assert {name: test["outcome"] for name, test in suite.records().items()} == {"test_fails": "passed"}
    result = suite.run("--lf", "--gpu-expect-skips=skips.txt", workers=workers)
    # Nothing failed last time: everything is run, and judged.
    result.assert_outcomes(passed=3, skipped=2)
    assert result.ret == pytest.ExitCode.OK


def test_failed_first_changes_the_order_only(suite: Suite) -> None:
    suite.pytester.makepyfile(MIXED)
    suite.run("--gpu-write-skips=skips.txt").assert_outcomes(passed=2, skipped=2, failed=1)
    result = suite.run("--ff", "--gpu-expect-skips=skips.txt", "--gpu-report=report.json")
    assert next(iter(suite.records())) == "test_fails"
    assert result.parseoutcomes() == {"passed": 2, "skipped": 2, "failed": 1}


def test_stepwise_goes_on_at_the_failure(suite: Suite) -> None:
    suite.pytester.makepyfile(MIXED)
    suite.run("--gpu-write-skips=skips.txt")
    result = suite.run("--sw", "--gpu-expect-skips=skips.txt")
    result.assert_outcomes(passed=1, skipped=1, failed=1)
    (suite.path / "mended").touch()
    result = suite.run("--sw", "--gpu-expect-skips=skips.txt", "--gpu-report=report.json")
    assert list(suite.records()) == ["test_fails", "test_missing_last", "test_plain"]
    assert result.ret == pytest.ExitCode.OK
    # Done: the next run begins at the start.
    suite.run("--sw", "--gpu-expect-skips=skips.txt").assert_outcomes(passed=3, skipped=2)


@workers
def test_by_mark_and_by_keyword(suite: Suite, workers: int) -> None:
    suite.pytester.makepyfile(MIXED)
    (suite.path / "mended").touch()
    suite.run("--gpu-write-skips=skips.txt", workers=workers)
    by_mark = suite.run("-m", "cuda", "--gpu-expect-skips=skips.txt", "--gpu-report=report.json", workers=workers)
    assert suite.records().keys() == {"test_missing_first", "test_passes", "test_fails"}
    assert by_mark.ret == pytest.ExitCode.OK
    by_keyword = suite.run(
        "-k", "last or plain", "--gpu-expect-skips=skips.txt", "--gpu-report=report.json", workers=workers
    )
    assert suite.records().keys() == {"test_missing_last", "test_plain"}
    assert by_keyword.ret == pytest.ExitCode.OK
    # What was selected is still judged.
    expected = suite.path / "skips.txt"
    expected.write_text(expected.read_text() + "\ntest_by_mark_and_by_keyword.py::test_plain\n")
    result = suite.run("-k", "plain", "--gpu-expect-skips=skips.txt", workers=workers)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*::test_plain: expected to be skipped, but was not"])


def test_no_gpu_test_selected_nothing_is_said(suite: Suite) -> None:
    suite.pytester.makepyfile(MIXED)
    result = suite.run("-m", "not cuda and not rocm", on=())
    result.assert_outcomes(passed=1)
    said = [line for line in result.outlines if "gpu" in line.lower()]
    assert all(line.startswith(("plugins:", "rootdir:")) or ".py ." in line for line in said)
