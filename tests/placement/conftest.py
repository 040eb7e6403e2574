"""Tests of workers begin without what a session around them would hand down."""

from __future__ import annotations

import pytest


@pytest.fixture
def unmasked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take away homes and masks that this process has itself."""
    for name in ("PYTEST_GPU_HOME", "PYTEST_GPU_HOME_DETAILS", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
