"""A report says where its leases were kept, and what they therefore were good for."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

SUITE = """
    import pytest

    @pytest.mark.gpu
    def test_gpu(gpu): ...

    def test_cpu(): ...
"""


def notes(pytester: pytest.Pytester, *more: str) -> list[str]:
    pytester.makepyfile(SUITE)
    pytester.runpytest("-p", "gpucoexist", "--gpu-machine=demo", "--gpu-simulate", "--gpu-report=r.json", *more)
    found: list[str] = json.loads((pytester.path / "r.json").read_text())["notes"]
    return found


def test_the_folder_that_was_named(pytester: pytest.Pytester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "leases"
    folder.mkdir()
    monkeypatch.setenv("PYTEST_GPU_LEASE_DIR", str(folder))
    first, *others = notes(pytester)
    assert first == (
        f"Leases were kept in the folder {folder}. They hold back every process that uses {folder}, "
        "of whichever user or container it is part."
    )
    assert any("leases are for people who cooperate" in note for note in others)


def test_none(pytester: pytest.Pytester) -> None:
    assert notes(pytester, "--gpu-lease=off") == [
        "No leases were taken (--gpu-lease=off): nobody else was held back from these devices."
    ]


def test_where_no_device_was_used_nothing_is_said(pytester: pytest.Pytester) -> None:
    assert notes(pytester, "-k", "cpu") == []
