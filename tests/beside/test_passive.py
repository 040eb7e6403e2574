"""--collect-only, --help, --version and their like look at nothing: no file of the system, no change of it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests.beside.running import AUDIT, noted, workers

if TYPE_CHECKING:
    from tests.beside.running import Suite

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="on Windows and on macOS there is nothing to look at")

SUITE = """
    import pytest

    @pytest.mark.cuda
    def test_marked(gpu, numa_node): pass

    @pytest.mark.rocm(count=2, memory="8 GiB")
    class TestClass:
        def test_in_class(self, class_gpu): pass

    @pytest.mark.parametrize("n", [pytest.param(1, marks=pytest.mark.gpu(framework="torch")), 2])
    def test_plain(n): pass
    """


def watched(suite: Suite, *arguments: str, workers: int = 0) -> tuple[pytest.RunResult, set[str], list[str]]:
    """Run on this very computer, with the audit hook in every process."""
    log = suite.path / "audit.log"
    log.unlink(missing_ok=True)
    environ = {"PYTHONPATH": str(AUDIT), "GPUCOEXIST_AUDIT_LOG": str(log)}
    result = suite.run(*arguments, on=(), workers=workers, environ=environ)
    return result, *noted(log)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--collect-only", "-q"),
        ("--collect-only", "-q", "--gpu-require=cuda:8", "--gpu-report=report.json", "--gpu-expect-skips=9"),
        ("--collect-only", "-q", "-m", "cuda or rocm", "--gpu-write-skips=skips.txt"),
        ("--help", "--gpu-require=cuda:8", "--gpu-report=report.json"),
        ("--version",),
        ("--markers",),
        ("--fixtures",),
        ("--fixtures-per-test",),
        ("--setup-plan", "-m", "not cuda and not rocm and not gpu"),
    ],
    ids=" ".join,
)
def test_nothing_is_touched(suite: Suite, arguments: tuple[str, ...]) -> None:
    suite.pytester.makepyfile(SUITE)
    result, processes, events = watched(suite, *arguments)
    assert result.ret == pytest.ExitCode.OK
    assert len(processes) == 1
    assert events == []
    assert not list(suite.path.glob("report.json")) + list(suite.path.glob("skips.txt"))
    if "--collect-only" in arguments:
        result.stdout.fnmatch_lines(["*::test_marked"])
    if "--help" in arguments:
        result.stdout.fnmatch_lines(["GPU coexistence:", "*--gpu-require=*"])
    if "--markers" in arguments:
        result.stdout.fnmatch_lines(["@pytest.mark.cuda*", "@pytest.mark.rocm*"])


def test_only_each_looks_while_collecting(suite: Suite) -> None:
    suite.pytester.makepyfile(SUITE, test_each="def test_each(each_gpu): pass")
    _, _, events = watched(suite, "--collect-only", "-q", "test_each.py")
    assert any(" /sys/" in event for event in events)
    _, _, events = watched(suite, "--collect-only", "-q", "--ignore=test_each.py")
    assert events == []


@workers
def test_the_hook_sees_what_is_done(suite: Suite, workers: int) -> None:
    # The control: with a test that needs a GPU, somebody looks; under xdist only the controller does.
    suite.pytester.makepyfile("def test_it(gpu): pass")
    _, processes, events = watched(suite, workers=workers)
    assert len(processes) == 1 + workers
    looking = {event.split()[0] for event in events if " /sys/" in event}
    assert len(looking) == 1


@workers
def test_without_a_gpu_test_nothing_is_touched(suite: Suite, workers: int) -> None:
    suite.pytester.makepyfile(SUITE)
    result, processes, events = watched(suite, "-m", "not cuda and not rocm and not gpu", workers=workers)
    result.assert_outcomes(passed=1)
    assert len(processes) == 1 + workers
    assert events == []
