"""The reference pages name everything that a person can write: options, keys, marks, fixtures, hooks, commands."""

from __future__ import annotations

import argparse
import ast
import inspect
import re
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucoexist import cli, hookspecs
from pytest_gpucoexist.model.arguments import KEYWORDS
from pytest_gpucoexist.reports.model import GPU_OUTCOMES
from pytest_gpucoexist.session import fixtures, options
from tests.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator


class Parser:
    """Stands in for pytest's parser and notes what is added to it."""

    def __init__(self) -> None:
        self.flags: list[str] = []
        self.keys: list[str] = []

    def getgroup(self, *_names: str) -> Parser:
        return self

    def addoption(self, flag: str, **_more: Any) -> None:
        self.flags.append(flag)

    def addini(self, key: str, *_more: Any, **_named: Any) -> None:
        self.keys.append(key)


def added() -> Parser:
    parser = Parser()
    options.add_options(parser)  # type: ignore[arg-type]
    return parser


def page(name: str) -> str:
    return (ROOT / "docs/reference" / f"{name}.md").read_text(encoding="utf-8")


def fixture_names() -> list[str]:
    functions = [node for node in ast.parse(inspect.getsource(fixtures)).body if isinstance(node, ast.FunctionDef)]
    return [
        function.name
        for function in functions
        if any(ast.unparse(decorator).startswith("pytest.fixture") for decorator in function.decorator_list)
    ]


def commands() -> Iterator[tuple[str, str]]:
    """Give each command with each of its flags, and with an empty one for itself."""
    (subparsers,) = (action for action in cli._parser()._actions if isinstance(action, argparse._SubParsersAction))
    for name, parser in subparsers.choices.items():
        yield name, ""
        for action in parser._actions:
            yield from ((name, flag) for flag in action.option_strings if flag not in {"-h", "--help"})


def section(text: str, heading: str) -> str:
    found = re.search(rf"^## {heading}$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, f"no section {heading!r}"
    return found[1]


@pytest.mark.parametrize("flag", added().flags)
def test_options(flag: str) -> None:
    assert re.search(rf"^\| `{flag}[=`]", page("options"), re.MULTILINE)


def test_ini_keys() -> None:
    parser = added()
    like_options = {flag.removeprefix("--").replace("-", "_") for flag in parser.flags}
    for key in sorted(set(parser.keys) - like_options):
        assert f"| `{key}` |" in page("options"), key


@pytest.mark.parametrize("name", fixture_names())
def test_fixtures(name: str) -> None:
    assert re.search(rf"^\|[^|]*`{name}`", page("fixtures"), re.MULTILINE)


@pytest.mark.parametrize("mark", KEYWORDS)
def test_marks(mark: str) -> None:
    text = page("marks")
    assert f"@pytest.mark.{mark}(" in text
    for keyword in KEYWORDS[mark]:
        assert f"| `{keyword}` |" in text, keyword


@pytest.mark.parametrize("hook", hookspecs.__all__)
def test_hooks(hook: str) -> None:
    signature = ", ".join(inspect.signature(getattr(hookspecs, hook)).parameters)
    assert f"`{hook}({signature})`" in page("marks")


@pytest.mark.parametrize(("command", "flag"), list(commands()))
def test_commands(command: str, flag: str) -> None:
    assert f"`{flag}" in section(page("cli"), command) if flag else f"gpucoexist {command} " in page("cli")


@pytest.mark.parametrize("outcome", GPU_OUTCOMES)
def test_outcomes(outcome: str) -> None:
    assert f"| `{outcome}` |" in page("options")


def test_features() -> None:
    """A name in `features` that no probe ever reports could only skip a test."""
    reported = {
        name
        for path in (ROOT / "pytest_gpucoexist/probes").glob("*.py")
        for name in re.findall(r'"features\.(\w+)"', path.read_text(encoding="utf-8"))
    }
    for name in sorted(reported):
        assert f"`{name}`" in section(page("marks"), "Features"), name
