"""One cluster for all tests of this folder."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.slurm.cluster import Cluster, unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Three nodes with GPUs that only Slurm believes in: `green`, `red` and, with both vendors, `mixed`."""
    missing = unavailable()
    if missing is not None:
        pytest.skip(missing)
    # Not under pytest's own folder: its path is too long for a Unix socket, and others may not enter it.
    folder = Path(tempfile.mkdtemp(prefix="gcs-"))
    made = Cluster(folder)
    try:
        made.start()
        yield made
    finally:
        made.stop()
        shutil.rmtree(folder, ignore_errors=True)
