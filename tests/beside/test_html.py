"""pytest-html: its report says why a test was skipped."""

from __future__ import annotations

import html
import json
import re
from typing import TYPE_CHECKING

import pytest

from tests.beside.running import workers

if TYPE_CHECKING:
    from tests.beside.running import Suite

pytestmark = pytest.mark.slow


@workers
def test_the_reason_is_in_the_page(beside: Suite, workers: int) -> None:
    beside.pytester.makepyfile(
        """
        import pytest

        @pytest.mark.cuda(count=3)
        def test_missing(): pass

        @pytest.mark.cuda
        def test_there(gpu): pass

        @pytest.mark.rocm
        def test_fails(gpu): raise AssertionError
        """
    )
    result = beside.run(
        "--html=page.html",
        "--self-contained-html",
        "--gpu-report=report.json",
        plugins=("html", "metadata"),
        workers=workers,
    )
    result.assert_outcomes(passed=1, failed=1, skipped=1)
    page = (beside.path / "page.html").read_text(encoding="utf-8")
    blob = re.search(r'data-jsonblob="([^"]*)"', page)
    assert blob is not None
    rows = {test.rpartition("::")[2]: runs[-1] for test, runs in json.loads(html.unescape(blob[1]))["tests"].items()}
    assert {name: row["result"] for name, row in rows.items()} == {
        "test_missing": "Skipped",
        "test_there": "Passed",
        "test_fails": "Failed",
    }
    reason = beside.records()["test_missing"]["reason"]
    assert reason.startswith("needs 3 NVIDIA GPUs with CUDA; found")
    assert reason in html.unescape(rows["test_missing"]["log"])
