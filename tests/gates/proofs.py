"""Which tests show which gate say what, on which ground: read from their marks, by collecting them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

from tests.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pytest

__all__ = ["GROUNDS", "collect_proofs"]

GROUNDS = ("recording", "tree", "fake", "vm", "host", "values")
"""A recorded machine; text or trees as a kernel or driver prints them; a fake driver under the vendor's own client; a
kernel in a virtual machine; this computer; what trials say, written by hand from numbers that others measured."""

FOLDERS = ("tests/gates", "tests/vm")

_WHERE = "GPUCOEXIST_PROOFS"


def collect_proofs() -> list[tuple[str, str, str]]:
    """Return (gate, status, ground) of every `proves` mark below the folders of gate tests."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "proofs.json")
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                "--collect-only",
                "-q",
                "-p",
                "no:cacheprovider",
                "-p",
                __name__,
                *_here(),
            ],
            cwd=ROOT,
            env={**os.environ, _WHERE: path, "PYTEST_ADDOPTS": ""},
            capture_output=True,
            text=True,
            check=False,
        )
        if not os.path.exists(path):
            raise RuntimeError(f"collecting the tests of gates failed:\n{done.stdout}\n{done.stderr}")
        with open(path, encoding="utf-8") as file:
            return [(gate, status, ground) for gate, status, ground in json.load(file)]


def _here() -> Iterable[str]:
    return [folder for folder in FOLDERS if (ROOT / folder).is_dir()]


def pytest_collection_finish(session: pytest.Session) -> None:
    """In the collecting process: write what the marks claim."""
    found = {(*mark.args, mark.kwargs.get("on")) for item in session.items for mark in item.iter_markers("proves")}
    with open(os.environ[_WHERE], "w", encoding="utf-8") as file:
        json.dump(sorted(found), file)
