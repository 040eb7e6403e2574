"""Every way of loading the plugin, and of not loading it; strict modes; two sessions in one process."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from typing import TYPE_CHECKING

import pytest

from tests.beside.running import NO_XDIST, NVIDIA1, workers, workers_slow

if TYPE_CHECKING:
    from tests.beside.running import Suite

GPU_TEST = """
    import pytest

    @pytest.mark.cuda(memory="40 GiB")
    def test_it(gpu):
        assert gpu.pci_address == "0000:04:00.0"
    """

# Appended to a conftest that must load without the plugin.
PLAIN = """
import sys

def pytest_unconfigure(config):
    print("LOADED", sorted(name for name in sys.modules if name.startswith("pytest_gpucoexist")))
"""

installed = {point.name for point in importlib.metadata.entry_points(group="pytest11")}
autoloads = pytest.mark.skipif(
    "gpucoexist" not in installed, reason="needs this package installed, for its entry point"
)


@autoloads
@workers_slow
def test_blocked_it_is_not_there(suite: Suite, workers: int) -> None:
    suite.pytester.makeconftest(PLAIN)
    suite.pytester.makepyfile(
        """
        import sys

        def test_plain():
            assert not [name for name in sys.modules if name.startswith("pytest_gpucoexist")]

        def test_fixture(cuda_gpu): pass
        """
    )
    result = suite.run("-p", "no:gpucoexist", on=(), workers=workers, autoload=True)
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*fixture 'cuda_gpu' not found*"])
    if not workers:
        result.stdout.fnmatch_lines(["LOADED []*"])


@autoloads
@pytest.mark.parametrize("autoload", [True, False])
def test_named_twice(suite: Suite, autoload: bool) -> None:
    suite.pytester.makepyfile(GPU_TEST)
    result = suite.run("-p", "gpucoexist", "-p", "gpucoexist", autoload=autoload)
    result.assert_outcomes(passed=1)
    assert result.stdout.str().count("selected test needs a GPU") == 1


@workers_slow
def test_not_named_with_autoload_off_it_is_not_there(suite: Suite, workers: int) -> None:
    suite.pytester.makeconftest(PLAIN)
    suite.pytester.makepyfile("def test_it(gpu): pass")
    result = suite.run(on=(), us=False, workers=workers)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*fixture 'gpu' not found*"])


@workers
def test_strict(suite: Suite, workers: int) -> None:
    # Marks are registered, and nothing warns: neither at load, nor while it runs, nor at the end.
    suite.pytester.makepyfile(
        """
        import pytest

        @pytest.mark.gpu(vendor="amd")
        @pytest.mark.rocm(arch="gfx11*")
        def test_marks(gpu, numa_node, gpu_env): pass

        @pytest.mark.cross_vendor
        def test_pair(gpu_pair): pass

        def test_each(each_gpu): pass

        @pytest.mark.cuda(count=3)
        def test_missing(gpus): pass
        """
    )
    strict = ("--strict-markers", "--strict-config", "-Werror", "--gpu-report=report.json", "--junitxml=junit.xml")
    result = suite.run(*strict, workers=workers)
    result.assert_outcomes(passed=5, skipped=1)
    assert result.ret == 0
    suite.pytester.makepyfile("import pytest\n@pytest.mark.cudaa\ndef test_it(): pass")
    result = suite.run(*strict, workers=workers)
    assert result.ret != 0
    result.stdout.fnmatch_lines(["*'cudaa' not found in `markers` configuration option*"])


IMPORT_ALL = """
import importlib, pkgutil, sys
import pytest_gpucoexist

# A helper speaks over a pipe that its caller made.
names = [module.name for module in pkgutil.walk_packages(pytest_gpucoexist.__path__, "pytest_gpucoexist.")]
names = [name for name in names if not name.endswith(("__main__", "helpers.runner"))]
for name in names:
    importlib.import_module(name)
for name in pytest_gpucoexist.__all__:
    getattr(pytest_gpucoexist, name)
assert len(names) > 80, names
"""


def test_every_module_is_imported_without_a_warning(suite: Suite) -> None:
    result = suite.pytester.run(sys.executable, "-W", "error", "-X", "dev", "-c", IMPORT_ALL)
    assert (result.ret, result.outlines, result.errlines) == (0, [], [])


def test_a_session_in_development_mode(suite: Suite) -> None:
    # Files and pipes that were not closed show as a ResourceWarning here.
    suite.pytester.makepyfile(GPU_TEST)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONDEVMODE", "1")
        patch.setenv("PYTHONWARNINGS", "error")
        result = suite.run("-Werror", "--gpu-report=report.json")
    result.assert_outcomes(passed=1)
    assert result.errlines == []


@workers_slow
def test_import_mode_importlib(suite: Suite, workers: int) -> None:
    for folder in ("one", "two"):
        inner = suite.pytester.mkdir(folder)
        (inner / "test_same.py").write_text("def test_it(cuda_gpu, module_gpu):\n    assert cuda_gpu == module_gpu\n")
    result = suite.run("--import-mode=importlib", "--gpu-report=report.json", workers=workers)
    result.assert_outcomes(passed=2)
    tests = json.loads((suite.path / "report.json").read_text())["tests"]
    assert {test["nodeid"] for test in tests} == {"one/test_same.py::test_it", "two/test_same.py::test_it"}


TWICE = """
import os, sys, threading
import pytest

before = dict(os.environ)
fixed = ["-p", "gpucoexist", "-p", "no:cacheprovider", "-q"]
demo = [*fixed, "test_a.py", "--gpu-machine=demo"]
first = pytest.main([*demo, "-p", "xdist", "-n1", "--gpu-simulate", "--gpu-report=first.json"])
second = pytest.main([*demo, "--gpu-report=second.json", "--gpu-expect-skips=1"])
third = pytest.main([*demo, "--gpu-require=cuda:99"])
fourth = pytest.main([*demo, "--gpu-simulate", "--gpu-report=fourth.json"])
fifth = pytest.main([*fixed, "test_plain.py"])

from pytest_gpucoexist.session.current import running
print("STATUS", [int(each) for each in (first, second, third, fourth, fifth)])
print("LEFT", running(), [each.name for each in threading.enumerate() if "gpucoexist" in each.name])
after = dict(os.environ)
print("CHANGED", {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)})
"""


def test_several_sessions_in_one_process(suite: Suite) -> None:
    pytest.importorskip("xdist", reason=NO_XDIST)
    suite.pytester.makepyfile(test_a=GPU_TEST, test_plain="def test_it(request): pass", twice=TWICE)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("PYTEST_ADDOPTS", "PYTEST_CURRENT_TEST", "PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT"):
            patch.delenv(name, raising=False)
        patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        result = suite.pytester.run(sys.executable, "twice.py")
    # What one session decided is no news to the next: runs, skips, is refused, runs again, needs nothing.
    result.stdout.fnmatch_lines(["STATUS [[]0, 0, 69, 0, 0]", "LEFT None [[]]", "CHANGED *"])
    changed = next(line for line in result.outlines if line.startswith("CHANGED"))
    assert "GPU" not in changed.upper()
    assert "VISIBLE" not in changed
    outcomes = []
    for name in ("first", "second", "fourth"):
        (test,) = suite.records(f"{name}.json").values()
        outcomes.append((test["outcome"], [device["key"] for device in test["devices"]]))
    assert outcomes == [("passed", [NVIDIA1]), ("skipped", []), ("passed", [NVIDIA1])]
