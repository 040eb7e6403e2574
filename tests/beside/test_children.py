"""What a test's children inherit: a nested pytest runs on the devices of its test, and asks for nothing."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests.beside.running import NVIDIA1, workers

if TYPE_CHECKING:
    from tests.beside.running import Suite

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="on Windows leases bind one process only")

NESTED = """
    import os, subprocess, sys
    import pytest
    from conftest import HERE, note

    COMMAND = [sys.executable, "-m", "pytest", "-p", "gpucoexist", "-p", "no:cacheprovider", "-q",
               "--gpu-machine=demo", "--gpu-simulate", "--gpu-wait=0", os.path.join(HERE, "inner")]

    @pytest.mark.cuda(memory="40 GiB", exclusive=True)
    def test_outer(gpu, gpu_env):
        assert gpu_env["PYTEST_GPU_LEASE_TOKEN"] == os.environ["PYTEST_GPU_LEASE_TOKEN"]
        done = subprocess.run(COMMAND, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "1 passed" in done.stdout
        environ = {name: value for name, value in os.environ.items() if name != "PYTEST_GPU_LEASE_TOKEN"}
        done = subprocess.run(COMMAND, capture_output=True, text=True, env=environ)
        assert "1 error" in done.stdout and "PYTEST_GPU_LEASE_TOKEN" in done.stdout, done.stdout

    def test_nothing_is_left():
        note("left", os.environ.get("PYTEST_GPU_LEASE_TOKEN"))
    """

INNER = f"""
import pytest

@pytest.mark.cuda(memory="40 GiB", exclusive=True)
def test_inner(gpu):
    assert gpu.key == "{NVIDIA1}"
"""


@workers
def test_a_nested_session_uses_its_parents_devices(suite: Suite, workers: int) -> None:
    inner = suite.path / "inner"
    inner.mkdir()
    (inner / "test_inner.py").write_text(INNER)
    (inner / "pytest.ini").write_text("[pytest]\n")
    suite.pytester.makepyfile(NESTED)
    result = suite.run("--ignore=inner", "--gpu-report=report.json", workers=workers)
    result.assert_outcomes(passed=2)
    assert suite.noted("left") == [None]
    assert suite.held() == {}


def test_what_the_caller_had_comes_back(suite: Suite) -> None:
    suite.pytester.makepyfile(
        """
        import os
        from conftest import note

        def test_it(cuda_gpu, gpu_leases):
            mine = os.environ["PYTEST_GPU_LEASE_TOKEN"]
            with gpu_leases.acquire("rocm"):
                note("seen", os.environ["PYTEST_GPU_LEASE_TOKEN"] != mine)
            note("seen", os.environ["PYTEST_GPU_LEASE_TOKEN"] == mine)
            os.environ["PYTEST_GPU_LEASE_TOKEN"] = "of the test's own"

        def test_after():
            note("after", os.environ["PYTEST_GPU_LEASE_TOKEN"])
        """
    )
    suite.run(environ={"PYTEST_GPU_LEASE_TOKEN": "9:of nobody"}).assert_outcomes(passed=2)
    assert suite.noted("seen") == [True, True]
    assert suite.noted("after") == ["9:of nobody"]


def test_the_token_is_in_no_options_way(suite: Suite) -> None:
    suite.pytester.makepyfile(
        """
        import os
        from conftest import note

        def test_it(cuda_gpu):
            note("seen", os.environ["PYTEST_GPU_LEASE"])
        """
    )
    suite.run(environ={"PYTEST_GPU_LEASE": "module"}).assert_outcomes(passed=1)
    assert suite.noted("seen") == ["module"]
