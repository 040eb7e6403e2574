"""Other interpreters, interpreters that do not start, and functions that they cannot import."""

from __future__ import annotations

import glob
import importlib.util
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucoexist.errors import VendorCallError, VendorFunctionError, VendorLaunchError, VendorPayloadError
from pytest_gpucoexist.host import local_host
from pytest_gpucoexist.processes.launch import find_interpreter
from tests.machines import dual, nvidia
from tests.processes import called

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from types import ModuleType

    from pytest_gpucoexist.processes.process import VendorProcess


@pytest.fixture(scope="session")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter of a fresh environment, with nothing installed."""
    folder = tmp_path_factory.mktemp("bare")
    done = subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(folder)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"needs the module venv: {done.stderr}")
    return str(folder / "bin" / "python")


@pytest.fixture
def make_module(tmp_path: Path) -> Iterator[Callable[..., ModuleType]]:
    """Make modules that are loaded here by their file, as pytest does with `importmode=importlib`."""
    made: list[str] = []

    def make(name: str, source: str, folder: str = "") -> ModuleType:
        path = tmp_path.joinpath(folder, *name.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        made.append(name)
        spec.loader.exec_module(module)
        return module

    yield make
    for name in made:
        sys.modules.pop(name, None)


def test_an_interpreter_without_this_package_or_execnet_serves(
    start: Callable[..., VendorProcess], bare_python: str
) -> None:
    process = start(python=bare_python)
    there = process.run(called.where)
    assert there["executable"] == bare_python
    assert process.run(called.same, {"a": [1, 2.5]}) == {"a": [1, 2.5]}
    large = b"x" * 1_000_000
    assert process.run(called.same, large) == large
    assert _foreign(there) == []
    for absent in ("execnet", "numpy"):
        with pytest.raises(VendorCallError, match=f"No module named '{absent}'"):
            process.run(called.import_module, absent)


def _foreign(there: dict[str, Any]) -> list[str]:
    """Return the folders of packages that are on its path and not its own."""
    root = os.path.dirname(os.path.dirname(there["executable"]))
    return [each for each in there["path"] if "site-packages" in each and not each.startswith(root)]


def test_an_array_for_an_interpreter_without_numpy_is_refused(
    start: Callable[..., VendorProcess], bare_python: str
) -> None:
    np = pytest.importorskip("numpy", reason="needs NumPy")
    process = start(python=bare_python)
    for size in (3, 100_000):
        with pytest.raises(VendorPayloadError, match="NumPy cannot be imported here"):
            process.run(called.same, np.zeros(size))
    assert process.run(called.same, 1) == 1


def test_a_module_that_cannot_be_imported_there_says_what_to_do(
    start: Callable[..., VendorProcess], bare_python: str, make_module: Callable[..., ModuleType]
) -> None:
    pytest.importorskip("numpy", reason="needs NumPy")
    module = make_module("test_needs_numpy", "import numpy\ndef total(x): return float(numpy.sum(x))\n")
    assert start().run(module.total, [1, 2]) == 3.0
    process = start(python=bare_python)
    with pytest.raises(VendorFunctionError) as caught:
        process.run(module.total, [1, 2])
    text = str(caught.value)
    assert f"test_needs_numpy ({module.__file__}) cannot be imported by {bare_python}: ModuleNotFoundError" in text
    assert "move the function to a module that imports only what" in text
    assert "No module named 'numpy'" in text
    assert "import numpy" in text
    with pytest.raises(VendorFunctionError, match="cannot be imported"):
        process.run(module.total, [1, 2])
    assert process.run(called.same, 1) == 1


def test_an_installed_function_is_that_of_the_other_interpreter(
    start: Callable[..., VendorProcess], bare_python: str
) -> None:
    np = pytest.importorskip("numpy", reason="needs NumPy")
    with pytest.raises(VendorFunctionError, match=r"numpy.* cannot be imported by .*bare"):
        start(python=bare_python).run(np.sort, [2, 1])
    assert start().run(np.sort, [2, 1]).tolist() == [1, 2]


def test_modules_of_files_with_parents_and_neighbours(
    start: Callable[..., VendorProcess], make_module: Callable[..., ModuleType], tmp_path: Path
) -> None:
    (tmp_path / "suite" / "unit").mkdir(parents=True)
    (tmp_path / "suite" / "unit" / "helper.py").write_text("FACTOR = 3\n")
    (tmp_path / "suite" / "unit" / "__init__.py").write_text("SEEN = 'package'\n")
    source = "import dataclasses\n@dataclasses.dataclass\nclass P:\n  x: int\ndef use(x):\n"
    source += "    from .helper import FACTOR\n    from . import SEEN\n    return FACTOR * P(x).x, SEEN, __name__\n"
    module = make_module("suite.unit.test_it", source)
    assert start().run(module.use, 5) == (15, "package", "suite.unit.test_it")


def test_a_module_whose_path_is_no_text(
    start: Callable[..., VendorProcess], make_module: Callable[..., ModuleType]
) -> None:
    folder = os.fsdecode(b"caf\xe9")
    try:
        module = make_module("test_latin", "def here(): return __name__\n", folder)
    except OSError as error:
        pytest.skip(f"needs a file system that takes any name: {error}")
    assert start().run(module.here) == "test_latin"


def test_two_files_of_one_name(start: Callable[..., VendorProcess], make_module: Callable[..., ModuleType]) -> None:
    """Without packages, every folder's `conftest.py` is the module `conftest`."""
    process = start()
    first = make_module("conftest", "def who(): return 'first'\n", "a")
    assert process.run(first.who) == "first"
    second = make_module("conftest", "def who(): return 'second'\n", "b")
    assert process.run(second.who) == "second"
    sys.modules["conftest"] = first
    assert process.run(first.who) == "first"


def test_a_module_of_a_name_that_the_standard_library_has(
    start: Callable[..., VendorProcess], make_module: Callable[..., ModuleType]
) -> None:
    import colorsys

    process = start()
    mine = make_module("colorsys", "def rgb_to_hls(*args): return 'mine'\n")
    assert process.run(mine.rgb_to_hls, 0, 0, 0) == "mine"
    sys.modules["colorsys"] = colorsys
    assert process.run(called.import_module, "colorsys") == colorsys.__file__
    assert process.run(colorsys.rgb_to_hls, 0, 0, 0) == colorsys.rgb_to_hls(0, 0, 0)


def test_a_function_that_its_module_does_not_have_there(
    start: Callable[..., VendorProcess], make_module: Callable[..., ModuleType]
) -> None:
    source = "import sys\nif 'pytest' in sys.modules:\n    def only_here(): return 1\n"
    module = make_module("test_only_here", source)
    with pytest.raises(VendorFunctionError, match="test_only_here has no only_here here"):
        start().run(module.only_here)


@pytest.mark.parametrize("mode", ["prepend", "append", "importlib"])
@pytest.mark.parametrize("packages", [False, True], ids=["folders", "packages"])
def test_each_way_in_which_pytest_imports(pytester: pytest.Pytester, mode: str, packages: bool) -> None:
    pytest.importorskip("execnet", reason="needs execnet")
    pytester.makepyfile(
        **{
            "suite/unit/test_there": """
                import os, sys
                from pytest_gpucoexist.host import local_host
                from pytest_gpucoexist.processes.launch import LaunchOrder
                from pytest_gpucoexist.processes.process import VendorProcess

                def here(number):
                    return os.getpid(), __name__, __file__, number + 1

                def test_there():
                    with VendorProcess(LaunchOrder(python=sys.executable, environment=os.environ), local_host()) as it:
                        assert it.run(here, 1) == (it.pid, __name__, __file__, 2)
            """
        }
    )
    if packages:
        for folder in ("suite", "suite/unit"):
            (pytester.path / folder / "__init__.py").touch()
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", f"--import-mode={mode}")
    result.assert_outcomes(passed=1)


def test_no_such_interpreter() -> None:
    with pytest.raises(VendorLaunchError, match=r"there is no interpreter /absent/python: .* PATH \(/bin\)"):
        find_interpreter("/absent/python", {"PATH": "/bin"})
    assert find_interpreter(sys.executable, {}) == sys.executable
    folder, name = os.path.split(sys.executable)
    assert find_interpreter(name, {"PATH": f"/absent:{folder}"}) == sys.executable


def script(folder: Path, text: str) -> str:
    path = folder / "python"
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def test_interpreters_that_do_not_start(start: Callable[..., VendorProcess], tmp_path: Path) -> None:
    with pytest.raises(VendorLaunchError, match=r"cannot be started: .*No such file"):
        start(python="/absent/python")
    with pytest.raises(VendorLaunchError, match=r"cannot be started: .*Permission denied"):
        start(python=str(tmp_path))
    with pytest.raises(VendorLaunchError, match=r"ended with status 3: its last words"):
        start(python=script(tmp_path, "#!/bin/sh\necho its last words >&2\nexit 3\n"))
    with pytest.raises(VendorLaunchError, match=r"was ended by SIGTERM"):
        start(python=script(tmp_path, "#!/bin/sh\nkill -TERM $$\n"))
    with pytest.raises(VendorLaunchError, match=r"did not begin to serve within 0\.5 s"):
        start(python=script(tmp_path, "#!/bin/sh\nexec sleep 600\n"), deadline_s=0.5)
    with pytest.raises(VendorLaunchError, match="is a script that starts another process"):
        start(python=script(tmp_path, f'#!/bin/sh\n"{sys.executable}" "$@"\n'))
    wrapper = start(python=script(tmp_path, f'#!/bin/sh\nexport WRAPPED=yes\nexec "{sys.executable}" "$@"\n'))
    assert wrapper.run(called.variables, "WRAPPED") == {"WRAPPED": "yes"}


def test_an_interpreter_that_is_too_old_says_so(start: Callable[..., VendorProcess]) -> None:
    found = [shutil.which(f"python3.{minor}") for minor in range(6, 10)]
    found += sorted(glob.glob(os.path.expanduser("~/.pyenv/versions/3.[6-9].*/bin/python")))
    old = next((each for each in found if each is not None and ".pyenv/shims" not in each), None)
    if old is None:
        pytest.skip("needs a Python between 3.6 and 3.9")
    with pytest.raises(VendorLaunchError, match=r"needs Python 3\.10 or newer; .* is 3\.[6-9]"):
        start(python=old)


def test_any_environment_arrives_as_it_is(start: Callable[..., VendorProcess]) -> None:
    odd = {"PATH": "/bin", "EMPTY": "", "URL": "http://a//b=c;d", "LINES": "a\nb", "BYTES": os.fsdecode(b"\xff\xfe")}
    process = start(environment=odd)
    assert process.run(called.variables, *odd, "HOME") == {**odd, "HOME": None}


def test_another_interpreter_does_not_get_the_home_of_this_one(bare_python: str, start: Any) -> None:
    from pytest_gpucoexist.processes import open_process

    environ = {**local_host().environ, "VIRTUAL_ENV": "/somewhere", "PYTHONHOME": "/absent"}
    with open_process([nvidia(0)], dual(), "nvidia", host=local_host(), environ=environ, python=bare_python) as opened:
        assert opened.run(called.variables, "VIRTUAL_ENV", "PYTHONHOME") == {"VIRTUAL_ENV": None, "PYTHONHOME": None}
        assert opened.process.version.startswith("3.")


def test_without_execnet_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from pytest_gpucoexist.processes.control import require_execnet

    monkeypatch.setitem(sys.modules, "execnet", None)
    with pytest.raises(VendorLaunchError, match="pip install"):
        require_execnet()
