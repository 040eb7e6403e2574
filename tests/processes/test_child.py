"""What is sent to a vendor process needs the standard library alone, and nothing is loaded here before it is used."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_gpucoexist.processes import bundle
from tests.conftest import ROOT

CHILD = ROOT / "pytest_gpucoexist" / "processes" / "child"
LAZY = {"numpy"}  # imported where an array is met


def imports(path: Path) -> set[tuple[int, str]]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {(0, alias.name.split(".")[0]) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.level, str(node.module).split(".")[0]))
    return found


@pytest.mark.parametrize("name", [*bundle.MODULES, "boot", "launcher"])
def test_a_module_that_is_sent_imports_the_standard_library_and_those_sent_before_it(name: str) -> None:
    found = imports(CHILD / f"{name}.py")
    assert {top for level, top in found if level == 0} <= set(sys.stdlib_module_names) | LAZY
    earlier = bundle.MODULES[: bundle.MODULES.index(name)] if name in bundle.MODULES else ()
    assert {top for level, top in found if level} <= set(earlier)


def test_every_module_of_the_folder_is_sent() -> None:
    assert {path.stem for path in CHILD.glob("*.py")} == {*bundle.MODULES, "boot", "launcher", "__init__"}


def test_the_bundle_has_the_sources_and_execnet_s_base() -> None:
    pytest.importorskip("execnet", reason="needs execnet")
    whole = json.loads(bundle.bundle())
    assert [name for name, _, _ in whole["modules"]] == [bundle.GATEWAY, *bundle.MODULES]
    for name, source, file in whole["modules"]:
        assert Path(file).read_text(encoding="utf-8") == source, name


def test_what_is_loaded_here_before_the_first_process() -> None:
    code = "import sys, pytest_gpucoexist.processes; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert {"execnet", "numpy", "ctypes"}.isdisjoint(done.stdout.split())
