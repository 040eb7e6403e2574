"""The project's own marks in our terms, as `gpu_marks` and `gpu_doctests` have them."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from pytest_gpucoexist.errors import RequirementError

__all__ = ["MarkText", "parse_lines", "parse_mark_text"]

MarkText = tuple[str, dict[str, Any]]
"""Name and keyword arguments of one of our marks."""


def parse_mark_text(text: str) -> list[MarkText]:
    """Read `gpu`, `gpu(count=2)` or `cuda, rocm(arch="gfx90a")`: names of our marks with literal keyword arguments.

    Raises RequirementError.
    """
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
        try:
            found.setdefault(left.strip(), []).extend(parse_mark_text(right.strip()))
        except RequirementError as error:
            raise pytest.UsageError(f"{key}: {line!r}: {error}") from None
    return found
