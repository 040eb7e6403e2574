"""Send each test's result out of the guest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.vm.guest.port import say

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Reporter"]


class Reporter:
    """A plugin of the guest's session: one message for each test, when its last phase is over."""

    def __init__(self) -> None:
        self._reports: dict[str, list[pytest.TestReport]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_logfinish(self, nodeid: str) -> Iterator[None]:
        """Send what the phases of a test came to: the first that did not pass, and what was printed."""
        yield
        reports = self._reports.pop(nodeid, [])
        telling = next((report for report in reports if not report.passed), None) or reports[-1]
        properties: dict[str, Any] = dict(telling.user_properties)
        say(
            {
                "nodeid": nodeid,
                "outcome": telling.outcome,
                "when": telling.when,
                "text": telling.longreprtext if telling.failed else str(telling.longrepr or ""),
                "sections": [list(section) for section in telling.sections],
                "seconds": round(sum(report.duration for report in reports), 2),
                "verdicts": properties.get("verdicts", []),
                "recording": properties.get("recording"),
            }
        )

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the reports of a test until it is finished."""
        self._reports.setdefault(report.nodeid, []).append(report)
