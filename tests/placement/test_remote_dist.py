"""`--gpu-dist=auto` where workers differ: other machines, other homes. A test runs where it can, and once."""

from __future__ import annotations

import pytest

from tests.fixtures.running import Suite, needs_xdist
from tests.placement.hosts import HOSTS, RECORDER, make_under, on, run, seen, write_host

pytestmark = needs_xdist


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTEST_GPU_HOME", "PYTEST_GPU_HOME_DETAILS", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)


def test_each_test_runs_on_a_machine_that_has_what_it_needs(pytester: pytest.Pytester) -> None:
    """The controller's own machine has nothing; collections differ, because each worker makes tests for its devices."""
    under = make_under(pytester.path)
    write_host(pytester.path, "nodea", "nvidia0")
    write_host(pytester.path, "nodeb", "nvidia1", "amd0")
    pytester.makeconftest(HOSTS + RECORDER)
    pytester.makepyfile(
        """
        import platform
        import pytest

        @pytest.mark.parametrize("n", range(3))
        def test_amd(rocm_gpu, n): pass

        @pytest.mark.cuda(arch="8.9")
        @pytest.mark.parametrize("n", range(3))
        def test_ada(gpus, n): pass

        def test_each(each_gpu): pass

        @pytest.mark.cuda(count=2)
        def test_two(gpus): pass

        def test_cpu(): pass
        """
    )
    result = run(pytester, on(under, "nodea"), on(under, "nodeb"), "--gpu-dist=auto")
    result.assert_outcomes(passed=10, skipped=1)
    entries = [(entry["test"], entry["host"]) for entry in seen(pytester.path)]
    assert len(entries) == 10
    where = dict(entries)
    assert {where[f"test_amd[{n}]"] for n in range(3)} == {"nodeb"}
    assert {where[f"test_ada[{n}]"] for n in range(3)} == {"nodea"}
    assert [where[f"test_each[{name}]"] for name in ("nvidia0", "nvidia1", "amd0")] == ["nodea", "nodeb", "nodeb"]
    assert "test_cpu" in where
    result.stdout.fnmatch_lines(["*needs 2 NVIDIA GPUs with CUDA; found * (fits) (on node?)*"])


def test_homes_limit_what_a_worker_is_given(pytester: pytest.Pytester) -> None:
    """With `narrow` each device's test goes to the worker whose home that is; what no home has is skipped once."""
    suite = Suite(pytester, conftest=RECORDER)
    pytester.makepyfile(
        """
        import os
        import pytest

        def test_each(each_gpu):
            assert each_gpu.key in os.environ["PYTEST_GPU_HOME"]

        @pytest.mark.cuda
        @pytest.mark.parametrize("n", range(6))
        def test_one(gpus, n):
            assert gpus[0].key in os.environ["PYTEST_GPU_HOME"]

        @pytest.mark.cuda(count=2)
        def test_two(gpus): pass
        """
    )
    result = suite.run("--gpu-workers=narrow", "--gpu-dist=auto", workers=2)
    result.assert_outcomes(passed=10, skipped=1)
    result.stdout.fnmatch_lines(["*needs 2 NVIDIA GPUs with CUDA; found *--gpu-workers=narrow shows this worker*"])
