"""Every code block of README and docs runs, and prints what the page shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conftest import ROOT
from tests.docs.blocks import Block, BlockError, blocks_of, run_block

if TYPE_CHECKING:
    from pathlib import Path

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])
RUN = [page for page in PAGES if "_build" not in page.parts and page.name != "CHANGELOG.md"]


@pytest.mark.parametrize("page", RUN, ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks(page: Path, tmp_path: Path) -> None:
    blocks = blocks_of(page)
    for block in blocks:
        run_block(block, tmp_path)
    # Set-up commands for a fresh machine stand in `bash` blocks: the check script runs those of the README itself.
    assert all(block.language for block in blocks), f"{page.name}: a block without a language is not run"


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (Block("console", "$ echo one\ntwo\n", 1), "prints"),
        (Block("console", "$ false\n", 1), "exits with 1, not 0"),
        (Block("console", "$ true  # exits with 3\n", 1), "exits with 0, not 3"),
        (Block("python", "raise SystemExit(2)\n", 1), "exit status 2"),
        (Block("rust", "fn main() {}\n", 1), "run by nobody"),
    ],
)
def test_a_wrong_block_is_noticed(block: Block, message: str, tmp_path: Path) -> None:
    with pytest.raises(BlockError, match=message):
        run_block(block, tmp_path)
