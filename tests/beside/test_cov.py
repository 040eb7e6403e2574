"""pytest-cov: what it measures and how the run ends are its own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.beside.running import workers

if TYPE_CHECKING:
    from tests.beside.running import Suite

pytestmark = pytest.mark.slow

MODULE = """
    def double(x):
        if x > 10:
            return 20
        return 2 * x
    """

SUITE = """
    import pytest
    from product import double

    @pytest.mark.cuda
    def test_small(gpu, numa_node): assert double(2) == 4

    @pytest.mark.cuda(count=3)
    def test_large(gpu): assert double(11) == 20

    def test_plain(): assert double(1) == 2
    """


def measured(beside: Suite, *arguments: str, workers: int) -> dict[str, Any]:
    result = beside.run(
        "--cov=product", "--cov-branch", "--cov-report=json", *arguments, plugins=("pytest_cov",), workers=workers
    )
    assert result.ret == 0
    data = json.loads((beside.path / "coverage.json").read_text())
    assert data["files"].keys() == {"product.py"}
    entry: dict[str, Any] = data["files"]["product.py"]
    return {name: entry[name] for name in ("executed_lines", "missing_lines", "executed_branches", "missing_branches")}


@workers
def test_the_data_are_whole(beside: Suite, workers: int) -> None:
    beside.pytester.makepyfile(product=MODULE, test_it=SUITE)
    assert measured(beside, workers=workers) == {
        "executed_lines": [1, 2, 4],
        "missing_lines": [3],
        "executed_branches": [[2, 4]],
        "missing_branches": [[2, 3]],
    }


@workers
def test_whoever_fails_the_run_it_stays_failed(beside: Suite, workers: int) -> None:
    beside.pytester.makepyfile(product=MODULE, test_it=SUITE)
    cov, plugins = ("--cov=product", "--cov-report="), ("pytest_cov",)
    result = beside.run(*cov, "--cov-fail-under=100", "--gpu-report=report.json", plugins=plugins, workers=workers)
    result.assert_outcomes(passed=2, skipped=1)
    assert result.ret == 1
    assert {test["outcome"] for test in beside.records().values()} == {"passed", "skipped"}
    result = beside.run(*cov, "--cov-fail-under=10", "--gpu-expect-skips=0", plugins=plugins, workers=workers)
    assert result.ret == 1
    # Nothing ran, so pytest-cov warns of no data; what was promised decides how the run ends.
    result = beside.run(*cov, "--gpu-require=cuda", plugins=plugins, workers=workers)
    assert result.ret == 69
