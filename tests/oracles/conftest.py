"""Each recorded tree is unpacked and discovered once for all oracles."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.oracles.trees import PCI_TREES, Tree, unpack

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session", params=PCI_TREES, ids=lambda path: path.rpartition("/")[2].split(".tar")[0])
def tree(request: pytest.FixtureRequest, shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Tree:
    """One recorded machine."""
    return unpack(shared / "machines" / request.param, tmp_path_factory.mktemp("tree"))
