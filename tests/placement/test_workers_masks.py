"""Nobody changes the masks that `--gpu-workers` set: who does is named, with both values."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist.session.home import home_environment
from pytest_gpucoexist.session.masks import PLUGIN, MaskWatch, watch
from tests.fixtures.running import Suite, needs_xdist
from tests.machines import machine

if TYPE_CHECKING:
    from collections.abc import Mapping

pytestmark = pytest.mark.usefixtures("unmasked")

TOUCH = """
import os

def test_one():
    open(os.path.join(os.path.dirname(__file__), "ran"), "a").close()

def test_two():
    test_one()
"""


@needs_xdist
@pytest.mark.parametrize(
    ("conftest", "module", "who", "what"),
    [
        (
            'import os; os.environ["CUDA_VISIBLE_DEVICES"] = "0"',
            "",
            "*conftest.py. --gpu-workers=narrow had set it*",
            "*CUDA_VISIBLE_DEVICES was '0,1' and is now '0': changed by *",
        ),
        (
            "import os\ndef pytest_sessionstart(): os.environ.pop('HIP_VISIBLE_DEVICES', None)",
            "",
            "*a hook of a plugin or conftest that runs before collection*",
            "*HIP_VISIBLE_DEVICES was '0' and is not set any more: changed by*",
        ),
        (
            "",
            'import os; os.environ.update(CUDA_VISIBLE_DEVICES="", CUDA_DEVICE_ORDER="FAST")',
            "*test_changed.py. --gpu-workers*",
            "*CUDA_VISIBLE_DEVICES was '0,1' and is now '', CUDA_DEVICE_ORDER was 'PCI_BUS_ID' and is now 'FAST':*",
        ),
    ],
    ids=["conftest", "hook", "module"],
)
def test_before_the_first_test_the_run_ends(
    pytester: pytest.Pytester, conftest: str, module: str, who: str, what: str
) -> None:
    suite = Suite(pytester, conftest=f"\n{conftest}\n")
    pytester.makepyfile(test_changed=module + "\n" + TOUCH)
    result = suite.run("--gpu-workers=narrow", workers=1)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert result.parseoutcomes() == {"errors": 1}
    result.stdout.fnmatch_lines([what])
    result.stdout.fnmatch_lines([who])
    assert not (pytester.path / "ran").exists()
    assert "INTERNALERROR" not in result.stdout.str()


@needs_xdist
def test_a_test_that_changes_one_is_an_error_of_its_own(pytester: pytest.Pytester) -> None:
    """Not of the tests after it, and not where it takes the change back itself."""
    suite = Suite(pytester)
    pytester.makepyfile(
        """
        import os
        import pytest

        def test_changes():
            os.environ["CUDA_VISIBLE_DEVICES"] = "7"

        def test_after():
            assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1"

        def test_takes_it_back(monkeypatch):
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")

        @pytest.fixture
        def broken():
            yield
            del os.environ["CUDA_VISIBLE_DEVICES"]
            raise OSError("teardown")

        def test_fails_in_teardown(broken): pass

        def test_last():
            assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1"
        """
    )
    result = suite.run("--gpu-workers=rotate", workers=1)
    result.assert_outcomes(passed=5, errors=2)
    result.stdout.fnmatch_lines(
        [
            "*ERROR at teardown of test_changes*",
            "*CUDA_VISIBLE_DEVICES was '0,1' and is now '7': changed by *::test_changes*",
            "*ERROR at teardown of test_fails_in_teardown*",
            "*OSError: teardown*",
            "*CUDA_VISIBLE_DEVICES was '0,1' and is not set any more: changed by *::test_fails_in_teardown*",
        ]
    )


@pytest.mark.parametrize(
    ("now", "words"),
    [
        ({"A": "1", "B": "2"}, None),
        ({"A": "1", "B": "3"}, "B was '2' and is now '3': changed by x.py. --gpu-workers=narrow had set it"),
        ({"A": "1"}, "B was '2' and is not set any more: changed by x.py."),
        ({"A": "", "B": "3"}, "A was '1' and is now '', B was '2' and is now '3': changed by x.py."),
    ],
)
def test_words(monkeypatch: pytest.MonkeyPatch, now: Mapping[str, str], words: str | None) -> None:
    watch = MaskWatch({"A": "1", "B": "2"}, "narrow")
    for name in ("A", "B"):
        monkeypatch.delenv(name, raising=False)
    for name, value in now.items():
        monkeypatch.setenv(name, value)
    said = watch.look("x.py")
    assert said is None if words is None else said is not None and said.startswith(words)
    assert watch.look("x.py") is None  # put back


def test_only_the_worker_itself_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child of a test may run pytest too, with masks of its own."""
    manager = pytest.PytestPluginManager()
    for variable, value in home_environment((), machine(), "narrow", {"A": "1"}, {}).items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setenv("PYTEST_GPU_HOME_PID", "1")
    watch(manager)
    assert not manager.has_plugin(PLUGIN)
    monkeypatch.setenv("PYTEST_GPU_HOME_PID", "")  # as the controller sets it
    watch(manager)
    assert manager.has_plugin(PLUGIN)
    assert os.environ["PYTEST_GPU_HOME_PID"] == str(os.getpid())
