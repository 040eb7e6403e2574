"""The page of all gates says what the registry and the tests say."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from tests.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

PAGE = "docs/reference/gates.md"


def test_the_page_is_up_to_date(tmp_path: Path) -> None:
    made = tmp_path / "gates.md"
    subprocess.run([sys.executable, "docs/gates.py", str(made)], cwd=ROOT, check=True)
    assert made.read_text(encoding="utf-8") == (ROOT / PAGE).read_text(encoding="utf-8"), (
        f"run: python docs/gates.py {PAGE}"
    )
