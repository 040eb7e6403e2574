"""A session without GPU tests loads nothing heavy for the plugin's sake: in no process."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.beside.running import workers, workers_slow

if TYPE_CHECKING:
    from tests.beside.running import Suite

FORBIDDEN = {
    "amdsmi", "ctypes", "cupy", "jsonschema", "multiprocessing", "numpy", "packaging", "pynvml", "rich", "torch"
}  # fmt: skip

# Loaded with -p before all others, so that it is there at the very end too.
SPY = """
import atexit, json, os, sys

HERE = os.path.dirname(os.path.abspath(__file__))

def pytest_configure(config):
    worker = getattr(config, "workerinput", {}).get("workerid", "main")

    @atexit.register
    def write():
        with open(os.path.join(HERE, f"modules-{worker}.json"), "w") as file:
            json.dump(sorted(sys.modules), file)
"""

PLAIN = """
    import pytest

    @pytest.mark.skip(reason="none of hardware")
    def test_skipped(): pass

    @pytest.mark.parametrize("n", range(4))
    def test_plain(n, tmp_path): pass

    class TestClass:
        def test_in_class(self): pass
    """


def modules(suite: Suite, *arguments: str, workers: int, us: bool = True) -> dict[str, set[str]]:
    """Return the modules that each process had loaded when it ended."""
    for path in suite.path.glob("modules-*.json"):
        path.unlink()
    result = suite.run(*arguments, on=(), plugins=("spy",), workers=workers, us=us)
    result.assert_outcomes(passed=5, skipped=1)
    found = {path.stem: set(json.loads(path.read_text())) for path in suite.path.glob("modules-*.json")}
    assert len(found) == 1 + workers
    return found


@workers
def test_nothing_heavy_without_a_gpu_test(suite: Suite, workers: int) -> None:
    (suite.path / "conftest.py").unlink()
    suite.pytester.makepyfile(spy=SPY, test_it=PLAIN)
    without = modules(suite, workers=workers, us=False)
    loaded = modules(suite, workers=workers)
    for process, names in loaded.items():
        added = names - without[process]
        assert "pytest_gpucoexist.plugin" in added
        assert not {name.split(".")[0] for name in added} & FORBIDDEN
        # Of our own, neither values nor anything that reads the system.
        ours = {name.split(".")[1] for name in added if name.startswith("pytest_gpucoexist.")}
        assert not ours & {"model", "host", "probes", "helpers", "reports", "testing", "cli", "leases"}
        # And nothing of the standard library that pytest has not loaded itself.
        assert {name for name in added if not name.startswith("pytest_gpucoexist")} <= {"spy"}


@workers_slow
def test_unselected_gpu_tests_change_nothing(suite: Suite, workers: int) -> None:
    (suite.path / "conftest.py").unlink()
    suite.pytester.makepyfile(
        spy=SPY,
        test_it=PLAIN,
        test_gpu="import pytest\n@pytest.mark.cuda(memory='8 GiB')\ndef test_it(gpu, numa_node): pass",
    )
    without = modules(suite, "--ignore=test_gpu.py", workers=workers, us=False)
    loaded = modules(suite, "-m", "not cuda", workers=workers)
    for process, names in loaded.items():
        assert not {name.split(".")[0] for name in names - without[process]} & FORBIDDEN


def test_an_empty_session_loads_what_reads_options_and_no_more(suite: Suite) -> None:
    (suite.path / "conftest.py").unlink()
    suite.pytester.makepyfile(spy=SPY)
    suite.pytester.mkdir("empty")
    result = suite.run("empty", on=(), plugins=("spy",))
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    names = json.loads((suite.path / "modules-main.json").read_text())
    ours = {name.removeprefix("pytest_gpucoexist.") for name in names if name.startswith("pytest_gpucoexist.")}
    assert ours == {"plugin", "hookspecs", "session", "session.marks", "session.options"}
