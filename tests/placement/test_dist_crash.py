"""Workers that die under `--gpu-dist=auto`, teardowns that fail between two tests, devices that others hold."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.fixtures.running import needs_xdist
from tests.placement.planned import Planned

pytestmark = needs_xdist

CRASHES = """
    import os, signal
    import pytest

    @pytest.mark.cuda(count=2)
    @pytest.mark.parametrize("n", range(9))
    def test_two(gpus, n):
        if n == 1: os._exit(3)
        if n == 3: os.kill(os.getpid(), signal.SIGKILL)
        if n == 5: os.abort()
    """


def test_a_crash_is_told_of_the_test_that_ran_and_the_others_run(pytester: pytest.Pytester) -> None:
    suite = Planned(pytester, test_it=CRASHES)
    result = suite.run(workers=3)
    result.assert_outcomes(passed=6, failed=3)
    for number in (1, 3, 5):
        result.stdout.fnmatch_lines([f"*crashed while running 'test_it.py::test_two?{number}?'*"])
    assert suite.ran() == sorted(f"test_two[{n}]" for n in (0, 2, 4, 6, 7, 8))


def test_no_worker_is_replaced_where_that_is_forbidden(pytester: pytest.Pytester) -> None:
    suite = Planned(pytester, test_it=CRASHES)
    result = suite.run("--max-worker-restart=0", workers=2)
    # The worker that is left may get on before pytest-xdist tells it to end, and may crash, too: then nobody is left.
    assert 1 <= result.parseoutcomes()["failed"] <= 2
    assert {entry["worker"] for entry in suite.read()} <= {"gw0", "gw1"}
    result.stdout.no_fnmatch_line("*replacing crashed worker*")
    result.stdout.fnmatch_lines(["*worker gw? crashed and worker restarting disabled*"])


# Which test comes after `test_first` is decided while it runs: the teardown of its module's fixture happens at a
# position that is passed by, in the worker that ran it.
TEARDOWN = """
    import time
    import pytest

    @pytest.fixture(scope="module")
    def broken():
        yield
        raise RuntimeError("what the module left")

    @pytest.mark.cuda(count=2)
    @pytest.mark.parametrize("n", range(3))
    def test_first(gpus, broken, n): time.sleep(0.01)
    """
BESIDE = """
    import pytest

    @pytest.mark.gpu
    @pytest.mark.parametrize("n", range(6))
    def test_beside(gpus, n): pass
    """


def test_an_error_between_two_tests_belongs_to_the_one_before(pytester: pytest.Pytester) -> None:
    suite = Planned(pytester, test_a=TEARDOWN, test_b=BESIDE)
    result = suite.run(workers=3)
    outcomes = result.parseoutcomes()
    assert outcomes["passed"] == 9
    assert outcomes["errors"] >= 1
    result.stdout.fnmatch_lines(["*ERROR at teardown of test_first*", "*what the module left*"])
    result.stdout.no_fnmatch_line("*INTERNALERROR*")


HOLDER = """
    import os, time
    import pytest

    @pytest.mark.cuda(count=2)
    def test_holds(gpus):
        open("held", "w").close()
        while not os.path.exists("enough"): time.sleep(0.01)
    """
OTHERS = """
    import os, time
    import pytest

    @pytest.mark.cuda
    @pytest.mark.parametrize("n", range(3))
    def test_nvidia(gpus, n): pass

    @pytest.mark.rocm
    @pytest.mark.parametrize("n", range(3))
    def test_amd(gpus, n):
        if n == 2: open("enough", "w").close()
    """


def test_what_another_session_holds_is_left_alone_until_it_is_free(pytester: pytest.Pytester) -> None:
    suite = Planned(pytester, test_holder=HOLDER, test_others=OTHERS)
    holder = pytester.popen(
        [sys.executable, "-m", "pytest", "-p", "gpucoexist", "--gpu-machine=demo", "--gpu-simulate", "test_holder.py"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while not (pytester.path / "held").exists():
            assert holder.poll() is None, "the other session ended before it held anything"
        result = suite.run("test_others.py")
    finally:
        (pytester.path / "enough").touch()
        assert holder.wait() == 0
    result.assert_outcomes(passed=6)
    order = [entry["test"] for entry in sorted(suite.read(), key=lambda entry: entry["start"])]
    first = [name for name in order if name.startswith(("test_amd", "test_nvidia"))][:3]
    assert sorted(first) == ["test_amd[0]", "test_amd[1]", "test_amd[2]"]


def test_a_plugin_may_have_a_crashed_test_run_again(pytester: pytest.Pytester) -> None:
    """As pytest-rerunfailures does it: by the scheduler's `config`, and `mark_test_pending`."""
    suite = Planned(
        pytester,
        conftest="""
def pytest_handlecrashitem(crashitem, report, sched):
    if not sched.config.option.collectonly:
        sched.mark_test_pending(crashitem)
        report.outcome = "rerun"
""",
        test_it="""
            import os
            import pytest

            @pytest.mark.gpu
            @pytest.mark.parametrize("n", range(4))
            def test_again(gpus, n):
                if n == 2 and not os.path.exists("died"):
                    open("died", "w").close()
                    os._exit(1)
            """,
    )
    suite.run().assert_outcomes(passed=4)
    assert suite.ran() == [f"test_again[{n}]" for n in range(4)]


def test_what_a_stop_left_undone_is_not_told_as_lost(pytester: pytest.Pytester) -> None:
    """One failure on each worker: neither stops by itself, as one that had both would."""
    suite = Planned(
        pytester,
        test_it="""
            import os, time
            import pytest

            @pytest.mark.gpu
            @pytest.mark.parametrize("n", range(2))
            def test_fails(gpus, n):
                open(os.environ["PYTEST_XDIST_WORKER"], "w").close()
                while not (os.path.exists("gw0") and os.path.exists("gw1")): time.sleep(0.01)
                assert n == 2

            @pytest.mark.parametrize("n", range(50))
            def test_cpu(n): time.sleep(0.1)
            """,
    )
    result = suite.run("--maxfail=2")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert "errors" not in result.parseoutcomes()
    result.stdout.no_fnmatch_line("*not run, because*")


@pytest.mark.parametrize("of", [1, 8], ids=["the last of all", "one among others"])
def test_a_test_may_end_the_run_with_a_code_of_its_own(pytester: pytest.Pytester, of: int) -> None:
    suite = Planned(
        pytester,
        test_it=f"""
            import pytest

            @pytest.mark.gpu
            @pytest.mark.parametrize("n", range({of}))
            def test_it(gpu, n):
                if n in (0, 2): pytest.exit("enough", returncode=7)
            """,
    )
    result = suite.run()
    assert result.ret == 7
    result.stdout.no_fnmatch_line("*INTERNALERROR*")
    assert len(set(suite.ran())) == len(suite.ran())
