"""pytest-timeout: its limit is the test's, not that of the queue for a device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.beside.running import NVIDIA1

if TYPE_CHECKING:
    from tests.beside.running import Suite

pytestmark = pytest.mark.slow

# The holder keeps the only candidate for longer than the limit of the waiter, counted from when the waiter asked.
QUEUE = """
    import time
    import pytest
    from conftest import note, wait_for

    ONLY = pytest.mark.cuda(memory="40 GiB")

    @ONLY
    @pytest.mark.timeout(60)
    def test_holder(gpu):
        note("order", "holder has it")
        wait_for("asking")
        time.sleep(3)
        note("order", "holder gives it back")

    {waiter}
    """

ASKING = """
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtestloop(session):
    # Registered last, so called before the plugin's own hook around a test.
    session.config.pluginmanager.register(Asking())
    return (yield)

class Asking:
    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item):
        if "waiter" in item.name:
            wait_for("order.log")
            open(os.path.join(HERE, "asking"), "w").close()
        return (yield)
"""


@pytest.fixture
def queue(beside: Suite) -> Suite:
    conftest = beside.path / "conftest.py"
    conftest.write_text(conftest.read_text() + ASKING)
    return beside


def test_waiting_for_a_device_does_not_count(queue: Suite) -> None:
    waiter = """
    @ONLY
    @pytest.mark.timeout(1.5)
    def test_waiter(gpu):
        note("order", "waiter has it")
    """
    queue.pytester.makepyfile(QUEUE.format(waiter=waiter))
    result = queue.run("--gpu-report=report.json", plugins=("timeout",), workers=2)
    result.assert_outcomes(passed=2)
    assert queue.noted("order") == ["holder has it", "holder gives it back", "waiter has it"]
    assert {test["devices"][0]["key"] for test in queue.records().values()} == {NVIDIA1}
    assert queue.held() == {}


def test_waiting_inside_a_test_counts_and_leaves_nothing_behind(queue: Suite) -> None:
    # The control of the test above: the limit is real, and a request that was given up is not granted to nobody.
    waiter = """
    @pytest.mark.timeout(1.5)
    def test_waiter(gpu_leases):
        with gpu_leases.acquire("cuda", memory="40 GiB"):
            note("order", "waiter has it")

    @ONLY
    def test_last(gpu):
        note("order", "last has it")
    """
    queue.pytester.makepyfile(QUEUE.format(waiter=waiter))
    result = queue.run(plugins=("timeout",), workers=2)
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["E * Failed: Timeout*1.5*"])
    assert queue.noted("order") == ["holder has it", "holder gives it back", "last has it"]
    assert queue.held() == {}


@pytest.mark.parametrize("method", ["signal", "thread"])
def test_a_test_that_runs_out_of_time_gives_its_device_back(beside: Suite, method: str) -> None:
    beside.pytester.makepyfile(
        """
        import threading
        import pytest

        pytestmark = pytest.mark.cuda(memory="40 GiB")

        @pytest.mark.timeout(1)
        def test_hangs(gpu):
            threading.Event().wait()

        @pytest.mark.parametrize("n", range(3))
        def test_after(gpu, n): pass
        """
    )
    # By thread, pytest-timeout ends the whole process: with workers, the next one goes on.
    workers = 0 if method == "signal" else 2
    result = beside.run(f"--timeout-method={method}", plugins=("timeout",), workers=workers)
    result.assert_outcomes(passed=3, failed=1)
    assert beside.held() == {}


def test_a_limit_for_the_whole_session_ends_it_cleanly(beside: Suite) -> None:
    beside.pytester.makepyfile(
        """
        import time
        import pytest

        @pytest.mark.parametrize("n", range(1000))
        def test_it(cuda_gpu, n): time.sleep(0.02)
        """
    )
    result = beside.run("--session-timeout=0.5", "--gpu-report=report.json", plugins=("timeout",))
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*session-timeout*"])
    assert 0 < len(beside.records()) < 1000
    assert beside.held() == {}
