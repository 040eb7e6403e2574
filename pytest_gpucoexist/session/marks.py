"""Our marks, whose they are in this project, and the project's own marks in our terms."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["MARK_LINES", "MarkText", "foreign_names", "parse_lines", "parse_mark_text", "register"]

MARK_LINES: Mapping[str, str] = {
    "gpu": "gpu(vendor=None, count=1, memory=None, arch=None, driver=None, runtime=None, framework=None, features=(), "
    "exclusive=False, same_node=False): the test needs GPUs. Provided by pytest-gpucoexist.",
    "cuda": "cuda(count=1, memory=None, arch=None, ...): the test needs NVIDIA GPUs usable through CUDA; arch is a "
    'compute capability such as ">=8.0". Provided by pytest-gpucoexist.',
    "rocm": "rocm(count=1, memory=None, arch=None, ...): the test needs AMD GPUs usable through ROCm; arch is a gfx "
    'name or glob such as "gfx11*". Provided by pytest-gpucoexist.',
    "cross_vendor": 'cross_vendor(vendors=("nvidia", "amd"), ...): the test needs one device of each vendor, leased '
    "together. Provided by pytest-gpucoexist.",
}
"""What `pytest --markers` prints."""

MarkText = tuple[str, dict[str, Any]]
"""Name and keyword arguments of one of our marks."""


def register(config: pytest.Config) -> None:
    """Register each of our marks, unless the project has registered the name already."""
    foreign = foreign_names(config)
    for name, line in MARK_LINES.items():
        if name not in foreign:
            config.addinivalue_line("markers", line)
    registered = {_name(line) for line in config.getini("markers")}
    for line in config.getini("gpu_marks"):
        name, _, mark = line.partition(":")
        if name.strip().isidentifier() and name.strip() not in registered:
            config.addinivalue_line("markers", f"{name.strip()}: stands for {mark.strip()} (gpu_marks)")


def foreign_names(config: pytest.Config) -> frozenset[str]:
    """Return those of our names that the project registers itself; they are its own and mean nothing here.

    A conftest may register a name long after us: ask again when collection has ended.
    """
    ours = set(MARK_LINES.values())
    names = {_name(line) for line in config.getini("markers") if line not in ours}
    return frozenset(names & MARK_LINES.keys())


def _name(line: str) -> str:
    return line.split(":", maxsplit=1)[0].split("(", maxsplit=1)[0].strip()


def parse_mark_text(text: str) -> list[MarkText]:
    """Read `gpu`, `gpu(count=2)` or `cuda, rocm(arch="gfx90a")`: names of our marks with literal keyword arguments.

    Raises RequirementError.
    """
    from pytest_gpucoexist.errors import RequirementError
    from pytest_gpucoexist.model.requirement import parse_mark

    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        raise RequirementError(f"{text!r} is no mark; write for example gpu(count=2)") from None
    found: list[MarkText] = []
    for node in tree.elts if isinstance(tree, ast.Tuple) else [tree]:
        call = node if isinstance(node, ast.Call) else None
        name = call.func if call else node
        if not isinstance(name, ast.Name):
            raise RequirementError(f"{text!r} is no mark; write for example gpu(count=2)")
        try:
            args = tuple(ast.literal_eval(arg) for arg in call.args) if call else ()
            kwargs = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords} if call else {}
        except ValueError:
            raise RequirementError(f"{text!r}: the arguments must be plain values, e.g. gpu(count=2)") from None
        parse_mark(name.id, args, kwargs)
        found.append((name.id, kwargs))
    return found


def parse_lines(key: str, lines: list[str]) -> dict[str, list[MarkText]]:
    """Read the lines of `gpu_marks` or `gpu_doctests`. Raises pytest.UsageError that names the line."""
    found: dict[str, list[MarkText]] = {}
    for line in lines:
        left, colon, right = line.partition(":")
        if not colon or not left.strip() or not right.strip():
            example = "multi_gpu: gpu(count=2)" if key == "gpu_marks" else "docs/gpu/*.md: cuda"
            raise pytest.UsageError(f"{key}: {line!r} is not NAME: MARK; write for example {example}")
        from pytest_gpucoexist.errors import RequirementError

        try:
            found.setdefault(left.strip(), []).extend(parse_mark_text(right.strip()))
        except RequirementError as error:
            raise pytest.UsageError(f"{key}: {line!r}: {error}") from None
    return found
