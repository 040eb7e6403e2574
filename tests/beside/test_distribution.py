"""Every --dist of pytest-xdist, and JUnit properties in its strict family."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.beside.running import NVIDIA0, NVIDIA1, workers

if TYPE_CHECKING:
    from tests.beside.running import Suite

slow = pytest.mark.slow

SUITE = """
    import pytest
    from conftest import note

    @pytest.mark.xdist_group("pair")
    @pytest.mark.cuda(count=2)
    @pytest.mark.parametrize("n", range(3))
    def test_two(gpus, n): note("given", sorted(gpu.key for gpu in gpus))

    @pytest.mark.xdist_group("one")
    class TestGroup:
        @pytest.mark.cuda
        @pytest.mark.parametrize("n", ["a@b", "c"])
        def test_one(self, class_gpu, gpu, n): assert gpu == class_gpu

        @pytest.mark.rocm(count=3)
        def test_missing(self): pass

    def test_each(each_gpu): pass
    """


@pytest.mark.parametrize(
    "dist", ["load", "loadgroup", *(pytest.param(name, marks=slow) for name in ("loadscope", "loadfile", "worksteal"))]
)
def test_ids_and_skips_are_those_of_a_serial_run(suite: Suite, dist: str) -> None:
    suite.pytester.makepyfile(SUITE)
    suite.run("--gpu-report=serial.json", "--gpu-write-skips=skips.txt").assert_outcomes(passed=8, skipped=1)
    result = suite.run(f"--dist={dist}", "--gpu-report=report.json", "--gpu-expect-skips=skips.txt", workers=2)
    result.assert_outcomes(passed=8, skipped=1)
    assert result.ret == 0
    serial, parallel = suite.records("serial.json"), suite.records()
    assert serial.keys() == parallel.keys()
    assert {name: test["gpu_outcome"] for name, test in serial.items()} == {
        name: test["gpu_outcome"] for name, test in parallel.items()
    }
    assert all(given == [NVIDIA0, NVIDIA1] for given in suite.noted("given"))
    assert suite.held() == {}


def test_each_worker_is_heard(suite: Suite) -> None:
    # With --dist=each a test has as many ends as there are workers: the worst of them must not be lost.
    suite.pytester.makepyfile(
        """
        import os
        import pytest

        @pytest.mark.cuda
        @pytest.mark.parametrize("n", range(6))
        def test_fails_on_one(gpu, n):
            assert os.environ["PYTEST_XDIST_WORKER"] != f"gw{n % 2}"
        """
    )
    result = suite.run("--dist=each", "--gpu-report=report.json", workers=2)
    result.assert_outcomes(passed=6, failed=6)
    tests = json.loads((suite.path / "report.json").read_text())["tests"]
    assert {test["nodeid"].rpartition("::")[2] for test in tests if test["outcome"] == "failed"} == {
        f"test_fails_on_one[{n}]" for n in range(6)
    }
    assert suite.held() == {}


@pytest.mark.parametrize("family", [pytest.param("xunit1", marks=slow), "xunit2"])
@workers
def test_junit_properties(suite: Suite, workers: int, family: str) -> None:
    suite.pytester.makeini(f"[pytest]\njunit_family = {family}")
    suite.pytester.makepyfile(
        """
        import pytest

        @pytest.fixture
        def broken(gpu): raise OSError

        @pytest.mark.cuda(count=2)
        def test_two(gpus, record_property):
            record_property("own", 1)

        @pytest.mark.cuda
        def test_fails(gpu): assert 0

        @pytest.mark.cuda
        def test_error(broken): pass

        @pytest.mark.cuda(count=3)
        def test_missing(): pass

        def test_plain(): pass
        """
    )
    suite.run("--junitxml=junit.xml", workers=workers).assert_outcomes(passed=2, failed=1, errors=1, skipped=1)
    cases = suite.cases()
    assert [value.split()[0] for value in cases["test_two"].values("gpu_device")] == [NVIDIA0, NVIDIA1]
    assert cases["test_two"].values("gpu_requirement") == ["2 NVIDIA GPUs with CUDA"]
    assert cases["test_two"].values("gpu_numa_node") == ["0"]
    assert cases["test_two"].values("own") == ["1"]
    for name in ("test_two", "test_fails", "test_error"):
        assert cases[name].values("gpu_outcome") == ["simulated"]
        assert all(value.endswith("(SIMULATED)") for value in cases[name].values("gpu_device"))
    assert (cases["test_fails"].outcome, cases["test_error"].outcome) == ("failure", "error")
    assert cases["test_missing"].values("gpu_outcome") == ["missing"]
    assert cases["test_missing"].values("gpu_reason") == [cases["test_missing"].message]
    assert not [name for name, _ in cases["test_plain"].properties if name.startswith("gpu")]
