"""All of them at once, as a person has them: found by autoload."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.beside.running import workers

if TYPE_CHECKING:
    from tests.beside.running import Suite

pytestmark = pytest.mark.slow


@workers
def test_all_plugins(beside: Suite, workers: int) -> None:
    beside.pytester.makepyfile(
        product="def one(): return 1",
        test_it="""
        import pytest
        from product import one

        runs = []

        @pytest.mark.cuda(memory="40 GiB")
        def test_flaky(gpu, numa_node):
            runs.append(gpu.key)
            assert len(runs) == one() + 1
            assert runs[0] == runs[1]

        def test_each(each_gpu): assert one()

        @pytest.mark.cuda(count=3)
        def test_missing(): pass
        """,
    )
    result = beside.run(
        "--reruns=1",
        "--timeout=120",
        "--cov=product",
        "--cov-fail-under=100",
        "--html=page.html",
        "--junitxml=junit.xml",
        "--gpu-report=report.json",
        "--gpu-expect-skips=1",
        "-Werror",
        workers=workers,
        autoload=True,
    )
    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(passed=4, skipped=1)
    result.stdout.fnmatch_lines(["Using --randomly-seed=*", "*4 passed, 1 skipped*1 rerun*"])
    for name in ("timeout", "rerunfailures", "randomly", "cov", "html", "xdist", "gpucoexist"):
        result.stdout.fnmatch_lines([f"plugins: *{name}-*"])
    assert {test["outcome"] for test in beside.records().values()} == {"passed", "skipped"}
    assert beside.held() == {}
