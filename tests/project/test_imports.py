"""Imports go: glue → {reports, {gates, placement} → leases, testing} → {probes, kernellog} → host → model.

Transfers know the model alone, vendor processes the host too.
"""

from __future__ import annotations

import ast
import sys
from typing import TYPE_CHECKING

import pytest

from tests.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PACKAGE = ROOT / "pytest_gpucoexist"

# Who may import whom, by folder (or module) right under the package. Everybody may import `errors` and `_version`.
ALLOWED: dict[str, set[str]] = {
    "_version": set(),
    "errors": set(),
    "model": {"model"},
    "helpers": {"helpers"},
    "host": {"host", "model", "helpers"},
    "probes": {"probes", "host", "model"},
    "kernellog": {"kernellog", "model"},
    "gates": {"gates", "kernellog", "leases", "probes", "host", "model"},
    "leases": {"leases", "probes", "host", "model"},
    "placement": {"placement", "leases", "host", "model"},
    "processes": {"processes", "host", "model"},
    "reports": {"reports", "model"},
    "staging": {"staging", "transfer", "processes", "host", "model"},
    "transfer": {"transfer", "model"},
    "trials": {"trials", "staging", "transfer", "processes", "probes", "host", "model"},
    "testing": {"testing", "probes", "host", "model"},
    "session": {
        *{"session", "reports", "gates", "leases", "placement", "processes", "staging", "trials", "testing", "probes"},
        *{"host", "model"},
        *{"hookspecs", "plugin"},
    },
    "hookspecs": {"gates", "reports", "host", "model"},
    "plugin": {"session", "hookspecs"},
    "cli": {"cli", "reports", "gates", "kernellog", "leases", "trials", "testing", "probes", "host", "model"},
    "__main__": {"cli"},
    "__init__": {"session"},
}


def _modules() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if "__pycache__" not in path.parts)


def _area(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[0]


def _imports(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (
                (name, node.lineno) for name in (names if node.module == "pytest_gpucoexist" else [node.module])
            )


def test_there_is_something_to_check() -> None:
    assert {_area(path) for path in _modules()} == set(ALLOWED)


@pytest.mark.parametrize("path", _modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path: Path) -> None:
    wrong = []
    for name, line in _imports(path):
        if name.split(".")[0] != "pytest_gpucoexist":
            continue
        target = name.split(".")[1]
        if target not in ALLOWED[_area(path)] | {"errors", "_version"}:
            wrong.append(f"line {line}: {name}")
    assert wrong == []


@pytest.mark.parametrize(
    "path",
    [path for path in _modules() if _area(path) in {"plugin", "session", "leases", "placement", "__init__"}],
    ids=lambda path: str(path.relative_to(PACKAGE)),
)
def test_what_pytest_loads_takes_no_module_from_its_package(path: Path) -> None:
    """`from package import module` gives the copy of an earlier session, where pytester has forgotten the module."""
    taken = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "pytest_gpucoexist":
            folder = ROOT.joinpath(*str(node.module).split("."))
            modules = [each.name for each in node.names if (folder / f"{each.name}.py").exists()]
            taken += [f"line {node.lineno}: {name}" for name in modules]
    assert taken == []


DOES_IO = {"os", "io", "pathlib", "subprocess", "socket", "ctypes", "tempfile", "shutil", "fcntl", "mmap"}


@pytest.mark.parametrize("path", sorted((PACKAGE / "model").rglob("*.py")), ids=lambda path: path.stem)
def test_the_model_imports_only_packaging_beside_the_standard_library_and_does_no_io(path: Path) -> None:
    outside = []
    for name, line in _imports(path):
        top = name.split(".")[0]
        if top not in sys.stdlib_module_names | {"pytest_gpucoexist", "packaging"}:
            outside.append(f"line {line}: {name}")
        if top in DOES_IO:
            outside.append(f"line {line}: {name} does I/O")
    assert outside == []


@pytest.mark.parametrize("path", sorted((PACKAGE / "placement" / "engine").rglob("*.py")), ids=lambda path: path.stem)
def test_the_engine_is_pure_and_knows_nobody(path: Path) -> None:
    """No I/O, no clock, no thread, chance only from a seed, and nothing of the package but values."""
    ours = tuple(f"pytest_gpucoexist.{name}" for name in ("placement.engine", "leases.lease", "model", "errors"))
    impure = DOES_IO | {"time", "datetime", "threading", "sys"}
    wrong = []
    for name, line in _imports(path):
        top = name.split(".")[0]
        if top in impure or not (top in sys.stdlib_module_names or name.startswith(ours)):
            wrong.append(f"line {line}: {name}")
    assert wrong == []
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    calls = {ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)}
    assert calls.isdisjoint({"open", "print", "input", "random.random", "random.shuffle", "random.choice"})


def test_only_hosts_open_the_system() -> None:
    """Outside `host`, no module names `/sys` or `/proc` in a call of `open`, `os.listdir` and the like."""
    guilty = []
    for path in _modules():
        if _area(path) in {"host", "helpers"}:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            name = ast.unparse(node.func)
            if name in {
                "open",
                "io.open",
                "os.open",
                "os.listdir",
                "os.scandir",
                "os.readlink",
                "os.stat",
                "os.access",
            }:
                text = ast.unparse(node)
                if any(area in text for area in ("'/sys", "'/proc", "'/dev", "'/etc")):
                    guilty.append(f"{path.relative_to(PACKAGE)}:{node.lineno} {text}")
    assert guilty == []


def test_modules_stay_one_idea() -> None:
    long = {
        str(path.relative_to(PACKAGE)): lines
        for path in _modules()
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > 300
    }
    assert long == {}
