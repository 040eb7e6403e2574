"""The devices of a test beside its outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    Session = Callable[..., pytest.RunResult]

SUITE = """
    import pytest

    def test_one(cuda_gpu): pass
    def test_pair(gpu_pair): assert 0
    @pytest.mark.rocm(count=9)
    def test_none(gpu): pass
    @pytest.mark.xfail
    def test_xfail(rocm_gpu): assert 0
    def test_plain(): pass
"""


def test_serially(session: Session, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=SUITE)
    result = session("-v", "--gpu-simulate", "-rA")
    result.stdout.fnmatch_lines(
        [
            "test_it.py::test_one PASSED (nvidia0) *%]",
            "test_it.py::test_pair FAILED (nvidia0, amd0) *%]",
            "test_it.py::test_none SKIPPED (needs 9 AMD GPUs*",
            "test_it.py::test_xfail XFAIL (amd0)*%]",
            "test_it.py::test_plain PASSED *%]",
        ]
    )
    # What tools read stays as it was.
    result.stdout.fnmatch_lines(["PASSED test_it.py::test_one", "FAILED test_it.py::test_pair - *"])
    result.assert_outcomes(passed=2, failed=1, skipped=1, xfailed=1)


def test_in_workers(session: Session, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=SUITE)
    result = session("-v", "-n2", "--gpu-simulate")
    result.stdout.fnmatch_lines(["*PASSED (nvidia?) test_it.py::test_one*"])


def test_not_without_being_asked(session: Session, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=SUITE)
    result = session("--gpu-simulate")
    assert "(nvidia0)" not in result.stdout.str().partition("GPU coexistence")[0].replace("GPUs of", "")
