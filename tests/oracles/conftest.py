"""Each recorded tree is unpacked and discovered once for all oracles."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.oracles.trees import PCI_TREES, Tree, unpack

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def memory_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in memory where there is one: of 40,000 small files a disk makes a minute."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path_factory.mktemp("trees")
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="gpucoexist-trees-") as folder:
        yield Path(folder)


@pytest.fixture(scope="session", params=PCI_TREES, ids=lambda path: path.rpartition("/")[2].split(".tar")[0])
def tree(request: pytest.FixtureRequest, shared: Path, memory_folder: Path) -> Iterator[Tree]:
    """One recorded machine."""
    folder = memory_folder / request.param.replace("/", "-")
    folder.mkdir()
    yield unpack(shared / "machines" / request.param, folder)
    shutil.rmtree(folder)
