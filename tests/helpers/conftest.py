"""Helpers made for one fault each, and proof that asking them leaves nothing behind."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_gpucoexist.host.base import HelperReply
from pytest_gpucoexist.host.helpers import ask_helpers

if not sys.platform.startswith("linux"):
    pytest.skip("helpers run on Linux only", allow_module_level=True)

Ask = Callable[..., HelperReply]


def children() -> set[int]:
    """Processes whose parent is this one, zombies too."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        found.update(map(int, (task / "children").read_text().split()))
    return found


def descriptors() -> dict[str, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[name] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # the listing's own
            continue
    return found


@pytest.fixture
def nothing_left() -> Iterator[None]:
    before = children(), descriptors()
    yield
    assert (children(), descriptors()) == before


@pytest.fixture
def purpose(tmp_path: Path) -> Callable[[str, str], None]:
    """Write a helper module."""
    folder = tmp_path / "purpose"
    folder.mkdir()
    (folder / "__init__.py").touch()

    def write(name: str, code: str) -> None:
        (folder / f"{name}.py").write_text(textwrap.dedent(code))

    return write


@pytest.fixture
def ask(tmp_path: Path, purpose: Callable[[str, str], None], nothing_left: None) -> Ask:
    """Write a helper's code and ask it."""

    def run(
        code: str, request: dict[str, Any] | None = None, *, deadline_s: float = 60.0, **environ: str
    ) -> HelperReply:
        purpose("it", code)
        return ask_helpers(
            ["it"],
            request or {},
            environ={**os.environ, **environ},
            python_path=[str(tmp_path), *sys.path],
            deadline_s=deadline_s,
            package="purpose",
        )["it"]

    return run
