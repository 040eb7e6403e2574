"""What must not run does not, and what must fail is not excused: malformed marks, `xfail`, distributed runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fixtures.running import needs_xdist

if TYPE_CHECKING:
    from collections.abc import Callable

    Run = Callable[..., pytest.RunResult]

MALFORMED = """
    import pytest

    @pytest.mark.cuda(cuont=1)
    def test_malformed(): print("RAN WITHOUT ITS GPU")

    def test_cpu(): pass
"""


@pytest.mark.parametrize("how", ["--continue-on-collection-errors", pytest.param("-n2", marks=needs_xdist)])
def test_malformed_mark_alone_does_not_run(pytester: pytest.Pytester, session: Run, how: str) -> None:
    """Errors of collection end a serial run; xdist runs what could be collected, whatever the error."""
    pytester.makepyfile(MALFORMED)
    result = session("-rA", how, "--gpu-machine=demo", on=None)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=1, errors=2)
    result.stdout.fnmatch_lines(["*cuda() has no keyword 'cuont'*"])
    result.stdout.no_fnmatch_line("*RAN WITHOUT ITS GPU*")


def test_malformed_mark_ends_a_serial_run(pytester: pytest.Pytester, session: Run) -> None:
    pytester.makepyfile(MALFORMED)
    result = session("--gpu-machine=demo", on=None)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.assert_outcomes(errors=1)


@pytest.mark.parametrize("how", ["-n0", pytest.param("-n2", marks=needs_xdist)])
@pytest.mark.parametrize(
    ("line", "said"), [("gpu_marks = slow: bar(1", "'bar(1' is no mark"), ("gpu_doctests = x", "'x' is not NAME: MARK")]
)
def test_malformed_ini_line_is_a_usage_error_everywhere(
    pytester: pytest.Pytester, session: Run, how: str, line: str, said: str
) -> None:
    pytester.makeini(f"[pytest]\n{line}")
    pytester.makepyfile("def test_cpu(): pass")
    result = session(how)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {line.split(maxsplit=1)[0]}: *{said}*"])
    assert "INTERNALERROR" not in result.stdout.str() + result.stderr.str()


@pytest.mark.parametrize(("options", "errors"), [([], 0), (["--gpu-missing=fail"], 1), (["--gpu-require=cuda:2"], 2)])
def test_xfail_does_not_excuse_what_the_machine_lacks(
    pytester: pytest.Pytester, session: Run, options: list[str], errors: int
) -> None:
    # The promise is kept at the start and broken at the test; that none ran is an error of its own.
    pytester.makeconftest(
        """
        from dataclasses import replace
        import pytest

        @pytest.hookimpl(tryfirst=True)
        def pytest_collection_finish(session):
            from pytest_gpucoexist.session.state import GPU_SESSION
            known = session.config.stash[GPU_SESSION]
            known._machine = replace(known.machine(), gpus=())
        """
    )
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.xfail
        @pytest.mark.cuda
        def test_it(): raise AssertionError
        """
    )
    result = session(*options, real=True)
    result.assert_outcomes(errors=errors, skipped=not errors)
    result.stdout.no_fnmatch_line("*xfailed*")


def test_device_that_cannot_be_had_fails_under_xfail_too(pytester: pytest.Pytester, session: Run) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.cuda
        def test_first(module_gpu): pass

        @pytest.mark.xfail
        @pytest.mark.rocm
        def test_second(module_gpu): pass
        """
    )
    result = session("--gpu-simulate", "--gpu-machine=demo", on=None)
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*no one device serves both*"])
