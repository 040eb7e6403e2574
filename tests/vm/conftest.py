"""Collect the guest's tests without running them here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.vm.collecting import GUEST, GuestModule

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> GuestModule | None:
    """Files of the guest's folder are the guest's."""
    if module_path.parent != GUEST:
        return None
    return GuestModule.from_parent(parent, path=module_path)
