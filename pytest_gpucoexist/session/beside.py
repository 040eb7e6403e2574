"""With `-v`: the devices of a test beside its outcome, `PASSED (nvidia0)`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["DevicesBeside"]


class DevicesBeside:
    """Lives where the terminal is. It changes the words of the running list alone: summaries keep pytest's."""

    def __init__(self) -> None:
        """No report is being shown."""
        self._shown: pytest.TestReport | None = None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> Generator[None, object, object]:
        """Note which report the list shows now."""
        self._shown = report
        try:
            return (yield)
        finally:
            self._shown = None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> Generator[None, Any, Any]:
        """Put the ids of the devices behind the word for the outcome of a call."""
        status = yield
        if report is self._shown and report.when == "call" and status is not None:
            category, letter, word = status
            devices = ", ".join(device["id"] for device in getattr(report, "gpucoexist", {}).get("devices", ()))
            if devices and isinstance(word, str) and word:
                return category, letter, f"{word} ({devices})"
            if devices and isinstance(word, tuple):
                return category, letter, (f"{word[0]} ({devices})", word[1])
        return status
