"""What a vendor's process is sent is what it imports, no more, and nothing of an installed copy."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("execnet", reason="needs execnet")

from pytest_gpucoexist.processes.bundle import LOAD, shipment
from pytest_gpucoexist.processes.references import Reference
from pytest_gpucoexist.staging.endpoint import PACKAGE, SHIPPED
from tests.conftest import ROOT
from tests.staging.loaded import modules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pytest_gpucoexist.processes.process import VendorProcess


def imported(name: str) -> Iterator[str]:
    """Yield the modules of this package that a module imports when it runs, those for types left out."""
    path = source_of(name)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for_types = {
        id(each)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for each in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and id(node) not in for_types and node.module:
            parts = node.module.split(".")
            if parts[0] == "pytest_gpucoexist":
                below = [".".join([*parts[1:], alias.name]) for alias in node.names]
                yield from (each if is_module(each) else ".".join(parts[1:]) for each in below)


def source_of(name: str) -> Path:
    path = ROOT / "pytest_gpucoexist" / name.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def is_module(name: str) -> bool:
    return source_of(name).exists()


def test_it_is_what_the_child_imports() -> None:
    found, left = set(), ["staging.child"]
    while left:
        name = left.pop()
        if name and name not in found:
            found.add(name)
            left += [*imported(name), name.rpartition(".")[0]]
    assert found == set(SHIPPED)


def test_it_needs_no_numpy_and_no_copy_of_this_package(start: Callable[..., VendorProcess]) -> None:
    process = start()
    process.run(LOAD, shipment(SHIPPED, PACKAGE))
    asked: Any = Reference(module=f"{PACKAGE}.staging.child", function="open_device", file=None)
    assert process.run(asked, "here", "host", "0000:01:00.0")[0] == "done"
    there = process.run(modules)
    assert f"{PACKAGE}.transfer.host_engine" in there
    assert [name for name in there if name.split(".")[0] in {"numpy", "execnet"}] == []
    names = {name for name in there if name.startswith("pytest_gpucoexist.")}
    assert names == set()


def test_an_error_comes_with_the_line_of_the_source(start: Callable[..., VendorProcess]) -> None:
    from pytest_gpucoexist.errors import VendorCallError

    process = start()
    process.run(LOAD, shipment(SHIPPED, PACKAGE))
    asked: Any = Reference(module=f"{PACKAGE}.staging.child", function="allocate", file=None)
    with pytest.raises(VendorCallError, match="KeyError: 'nowhere'") as caught:
        process.run(asked, "nowhere", 1)
    assert "return _engines[key].allocate(size_bytes)" in caught.value.remote_traceback
