"""Ctrl-C, pytest.exit and processes that die in the middle of a GPU test."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests.beside.running import NVIDIA1, workers

if TYPE_CHECKING:
    from tests.beside.running import Suite

slow = pytest.mark.slow

SUITE = """
    import os, signal, threading
    import pytest
    from conftest import HERE, note

    pytestmark = pytest.mark.cuda(memory="40 GiB")

    @pytest.fixture(scope="module")
    def model(module_gpu):
        yield
        note("closed", module_gpu.key)

    def test_before(model): pass

    def test_ends(gpu):
        {end}

    def test_after(model): pass
    """


@pytest.mark.parametrize(
    "end",
    ["raise KeyboardInterrupt", "os.kill(os.getpid(), signal.SIGINT)", "pytest.exit('enough')"],
    ids=["raised", "signal", "exit"],
)
def test_an_interrupt_in_a_gpu_test(suite: Suite, end: str) -> None:
    suite.pytester.makepyfile(SUITE.format(end=end))
    result = suite.run("--gpu-report=report.json", "--junitxml=junit.xml", "--gpu-expect-skips=5")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert suite.held() == {}
    # What was chosen for the module is closed; half a run is not judged by its skips.
    assert suite.noted("closed") == [NVIDIA1]
    records = suite.records()
    assert "test_after" not in records
    assert records["test_before"]["outcome"] == "passed"
    assert suite.cases()["test_before"].outcome == "passed"
    assert "INTERNALERROR" not in result.stdout.str() + result.stderr.str()


@slow
def test_an_interrupt_of_the_controller(suite: Suite) -> None:
    # The signal comes while one worker has the device and the other waits for it.
    suite.pytester.makepyfile(SUITE.format(end="os.kill(os.getppid(), signal.SIGINT); threading.Event().wait(30)"))
    result = suite.run("--gpu-report=report.json", workers=2)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert (suite.path / "report.json").exists()
    assert "INTERNALERROR" not in result.stdout.str() + result.stderr.str()


@pytest.mark.parametrize(
    "end",
    ["os._exit(7)", *(pytest.param(end, marks=slow) for end in ("os.kill(os.getpid(), signal.SIGKILL)", "os.abort()"))],
)
def test_a_worker_that_dies_with_the_only_device(suite: Suite, end: str) -> None:
    if sys.platform == "win32" and "SIGKILL" in end:
        pytest.skip("on Windows there is no SIGKILL")
    suite.pytester.makepyfile(SUITE.format(end=end))
    result = suite.run("--gpu-report=report.json", "--junitxml=junit.xml", workers=2)
    result.assert_outcomes(passed=2, failed=1)
    assert suite.held() == {}
    records = suite.records()
    assert {name: test["outcome"] for name, test in records.items()} == {
        "test_before": "passed",
        "test_ends": "failed",
        "test_after": "passed",
    }
    assert records["test_after"]["devices"][0]["key"] == NVIDIA1


@workers
def test_a_test_that_forks(suite: Suite, workers: int) -> None:
    if sys.platform == "win32":
        pytest.skip("on Windows there is no fork")
    suite.pytester.makepyfile(
        """
        import os
        import pytest
        from pytest_gpucoexist import current_gpu
        from pytest_gpucoexist.errors import DeviceBusyError

        pytestmark = [pytest.mark.cuda(memory="40 GiB"), pytest.mark.filterwarnings("ignore:.*fork")]

        def child(work):
            pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    work()
                    status = 0
                finally:
                    os._exit(status)
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

        def test_knows_its_device(gpu):
            def work():
                assert current_gpu() == gpu
            assert child(work) == 0
            assert current_gpu() == gpu

        def test_a_child_gives_nothing_back(gpu_leases, gpu):
            context = gpu_leases.acquire("rocm", arch="gfx1100")
            context.__enter__()
            # A child that ends like its parent unwinds the same contexts.
            assert child(lambda: context.__exit__(None, None, None)) == 0
            with pytest.raises(DeviceBusyError, match="does not wait"):
                gpu_leases.acquire("rocm", arch="gfx1100").__enter__()
            context.__exit__(None, None, None)

        @pytest.mark.parametrize("n", range(3))
        def test_after(gpu, n): pass
        """
    )
    result = suite.run("--gpu-report=report.json", workers=workers)
    result.assert_outcomes(passed=5)
    assert suite.held() == {}
    assert len(suite.records()) == 5
