"""Where marks may stand, whose they are, and what becomes of nonsense."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist.session import discovery
from pytest_gpucoexist.session.marks import MARK_LINES
from pytest_gpucoexist.session.marktext import parse_mark_text
from tests.machines import dual, machine, nvidia

if TYPE_CHECKING:
    from collections.abc import Callable

    Session = Callable[..., pytest.RunResult]


EVERYWHERE = """
    import unittest
    import pytest

    @pytest.mark.rocm
    def test_function(): raise AssertionError

    @pytest.mark.rocm
    class TestClass:
        def test_method(self): raise AssertionError

    class Base:
        @pytest.mark.rocm(count=1)
        def test_inherited(self): raise AssertionError

    class TestDerived(Base):
        pass

    @pytest.mark.parametrize("x", [0, pytest.param(1, marks=pytest.mark.rocm)])
    def test_parameter(x): assert x == 0

    @pytest.mark.usefixtures("rocm_gpu")
    class TestUses:
        def test_it(self): raise AssertionError

    def test_fixture(rocm_gpu): raise AssertionError

    @pytest.mark.rocm
    class Case(unittest.TestCase):
        @classmethod
        def setUpClass(cls): raise AssertionError("set up before the decision")
        def test_unit(self): raise AssertionError

    class Mixed(unittest.TestCase):
        @pytest.mark.rocm
        def test_needing(self): raise AssertionError
        def test_plain(self): pass

    def test_plain(): pass
"""


@pytest.mark.parametrize("args", [(), ("--strict-markers",), ("-n2",)])
def test_marks_work_everywhere(session: Session, pytester: pytest.Pytester, args: tuple[str, ...]) -> None:
    pytester.makepyfile(EVERYWHERE)
    result = session(*args, on=machine(nvidia()))
    result.assert_outcomes(passed=3, skipped=8)
    result.stdout.fnmatch_lines(["8 tests (missing): needs 1 AMD GPU with ROCm; found no AMD GPU"])


def test_a_mark_on_a_module(session: Session, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        "import pytest\npytestmark = [pytest.mark.cuda(count=2)]\ndef test_it(gpus): assert len(gpus) == 2"
    )
    session("--gpu-simulate").assert_outcomes(passed=1)
    session("--gpu-simulate", on=machine(nvidia())).assert_outcomes(skipped=1)


def test_the_skip_points_at_the_test_and_gives_the_reason(session: Session, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it="import pytest\n\n@pytest.mark.rocm\ndef test_it(): pass")
    result = session("-rs", on=machine(nvidia()))
    result.stdout.fnmatch_lines(["SKIPPED [[]1[]] test_it.py:*: needs 1 AMD GPU with ROCm; found no AMD GPU"])


def test_markers_are_explained(session: Session) -> None:
    result = session("--markers", on=None)
    for line in MARK_LINES.values():
        assert f"@pytest.mark.{line}" in result.outlines


def test_a_name_in_the_projects_ini_is_the_projects(session: Session, pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nmarkers =\n    cuda(version): ours\n    gpu: ours too")
    pytester.makepyfile(
        """
        import pytest
        @pytest.mark.cuda("11.8")
        @pytest.mark.gpu(nonsense=1)
        def test_it(): pass
        @pytest.mark.rocm
        def test_other(): pass
        """
    )
    result = session("--strict-markers", on=machine())
    result.assert_outcomes(passed=1, skipped=1)


@pytest.mark.parametrize("where", ["conftest.py", "sub/conftest.py"])
def test_a_name_that_a_conftest_registers_is_the_projects(
    session: Session, pytester: pytest.Pytester, where: str
) -> None:
    (pytester.path / "sub").mkdir()
    (pytester.path / where).write_text(
        'def pytest_configure(config):\n    config.addinivalue_line("markers", "gpu(n): the project\'s own")\n'
    )
    (pytester.path / "sub/test_it.py").write_text("import pytest\n@pytest.mark.gpu(4)\ndef test_it(): pass\n")
    session("--strict-markers", on=machine()).assert_outcomes(passed=1)


def test_marks_of_the_project_can_be_mapped(session: Session, pytester: pytest.Pytester) -> None:
    pytester.makeini(
        """
        [pytest]
        markers =
            multi_gpu(n): many
            cuda: ours
            rocm: ours
        gpu_marks =
            multi_gpu: gpu(count=3)
            cuda: gpu
            rocm: rocm
            both: cuda, rocm(count=2)
        """
    )
    pytester.makepyfile(
        """
        import pytest
        @pytest.mark.multi_gpu(64)
        def test_multi(gpus): assert len(gpus) == 3
        @pytest.mark.cuda("anything")
        def test_cuda(gpu): pass
        @pytest.mark.rocm(count=1)
        def test_rocm(gpu): assert gpu.vendor == "amd"
        @pytest.mark.both
        def test_both(): pass
        """
    )
    result = session("--gpu-simulate", "--strict-markers")
    result.assert_outcomes(passed=3, skipped=1)
    result.stdout.fnmatch_lines(["1 test (missing): needs 2 AMD GPUs with ROCm; found 0000:c1:00.0 (fits)"])


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("multi_gpu", "gpu_marks: 'multi_gpu' is not NAME: MARK; write for example multi_gpu: gpu(count=2)"),
        ("multi_gpu: gpu(count=", "gpu_marks: 'multi_gpu: gpu(count=': 'gpu(count=' is no mark"),
        ("multi_gpu: gpu(count=n)", "the arguments must be plain values"),
        ("multi_gpu: gpu(cout=2)", "no keyword 'cout'; valid keywords: vendor, count"),
        ("multi_gpu: gpu.x", "is no mark; write for example gpu(count=2)"),
        ("multi_gpu: slow", "'slow' is no mark of this plugin; these are: gpu, cuda"),
        ("multi_gpu: gpu(2)", "takes keywords only"),
    ],
)
def test_a_wrong_mapping_is_a_usage_error(
    session: Session, pytester: pytest.Pytester, line: str, complaint: str
) -> None:
    pytester.makeini(f"[pytest]\ngpu_marks =\n    {line}")
    pytester.makepyfile("def test_it(): pass")
    result = session(on=None)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert complaint in result.stderr.str()


def test_mark_texts() -> None:
    assert parse_mark_text("gpu") == [("gpu", {})]
    assert parse_mark_text(" cuda(arch='>=8.0'), rocm ") == [("cuda", {"arch": ">=8.0"}), ("rocm", {})]


def test_doctests_by_path(session: Session, pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ngpu_doctests =\n    docs/gpu*.txt: rocm\n    nothing/*: cuda")
    (pytester.path / "docs").mkdir()
    for name in ("gpu_guide", "plain"):
        (pytester.path / f"docs/{name}.txt").write_text(">>> 1 + 1\n2\n")
    result = session("--doctest-glob=*.txt", "-v", on=machine())
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(["docs/gpu_guide.txt::gpu_guide.txt SKIPPED*"])


def test_the_hook_says_what_a_test_needs(session: Session, pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import pytest
        def pytest_gpucoexist_requirement(item):
            return {"test_text": "cuda(count=9)", "test_mark": pytest.mark.rocm(count=9).mark,
                    "test_list": [pytest.mark.rocm, "cuda(count=9)"], "test_bad": 7,
                    "test_closer": "cuda(count=9)"}.get(item.name)
        """
    )
    pytester.makepyfile(
        """
        import pytest
        def test_text(): pass
        def test_mark(): pass
        def test_list(): pass
        @pytest.mark.cuda(count=1)
        def test_closer(): pass
        def test_none(): pass
        """
    )
    result = session("--gpu-simulate")
    result.assert_outcomes(passed=1, skipped=4)
    result.stdout.fnmatch_lines(["3 tests (missing): needs 9 NVIDIA GPUs with CUDA; *"])
    pytester.makepyfile("def test_bad(): pass")
    result = session()
    result.stdout.fnmatch_lines(["*pytest_gpucoexist_requirement returned 7: return a mark*"])
    assert result.ret == pytest.ExitCode.INTERRUPTED


@pytest.mark.parametrize("args", [(), ("-n2",)])
def test_malformed_marks_are_errors_that_name_the_test(
    session: Session, pytester: pytest.Pytester, args: tuple[str, ...]
) -> None:
    pytester.makepyfile(
        test_it="""
        import pytest
        @pytest.mark.gpu(cout=2)
        def test_typo(): pass
        @pytest.mark.cuda(2)
        def test_positional(): pass
        def test_fine(): pass
        """
    )
    result = session(*args)
    out = result.stdout.str()
    assert "GPU requirement of test_it.py::test_typo: gpu() has no keyword 'cout'; valid keywords: vendor, count" in out
    assert "GPU requirement of test_it.py::test_positional: cuda(2) takes keywords only, and these are: count" in out
    assert result.ret in {pytest.ExitCode.INTERRUPTED, pytest.ExitCode.TESTS_FAILED}


def test_collect_only_checks_marks_and_discovers_nothing(
    session: Session, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "discover_machine", lambda *_: pytest.fail("discovered"))
    pytester.makepyfile("import pytest\n@pytest.mark.gpu\ndef test_it(): pass")
    result = session("--collect-only", "--gpu-require=cuda", on=None)
    result.stdout.fnmatch_lines(["*<Function test_it>*", "*1 test collected*"])
    pytester.makepyfile("import pytest\n@pytest.mark.gpu(x=1)\ndef test_it(): pass")
    assert session("--collect-only", on=None).ret != 0


def test_several_marks_and_levels(session: Session, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        pytestmark = pytest.mark.gpu(count=2)
        @pytest.mark.cuda
        def test_merged(gpus): assert [gpu.vendor for gpu in gpus] == ["nvidia", "nvidia"]
        @pytest.mark.gpu(count=1)
        class TestCloser:
            def test_it(self, gpus): assert len(gpus) == 1
        @pytest.mark.cuda(count=1)
        @pytest.mark.rocm(count=1)
        def test_both(gpus): assert [gpu.vendor for gpu in gpus] == ["nvidia", "amd"]
        """
    )
    session("--gpu-simulate", on=dual()).assert_outcomes(passed=3)
