"""Gives a test's devices back when its teardown is over, before its report is made, sent and shown.

Only where all has gone well, so that nobody runs it again. Plugins that run a test again although it passed set it up a
second time: then its devices are acquired a second time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist.errors import GpuCoexistError
from pytest_gpucoexist.session.leasing import HOLDING, give_back, hold_again
from pytest_gpucoexist.session.protocol import HOLD_ERROR

if TYPE_CHECKING:
    from collections.abc import Generator

    from pytest_gpucoexist.session.state import GpuSession

__all__ = ["Returning"]


class Returning:
    """Registered after everything that may use devices in a teardown, so that it stands around that."""

    def __init__(self, session: GpuSession) -> None:
        """`session` decides."""
        self._session = session
        self._passed = False

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Note whether every phase of the running test has passed until now."""
        report = yield
        self._passed = report.passed and (self._passed or report.when == "setup")
        return report

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        """Acquire anew for a test that is set up again after its devices went back."""
        holding = item.stash.get(HOLDING, None)
        if holding is not None and holding.is_back:
            try:
                hold_again(self._session, item, holding)
            except GpuCoexistError as error:
                item.stash[HOLD_ERROR] = error
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, object, object]:
        """Give back what no scope keeps, when a test that passed has been torn down without an error."""
        passed, self._passed = self._passed, False
        result = yield
        holding = item.stash.get(HOLDING, None)
        if passed and holding is not None and holding.is_back is False:
            give_back(self._session, item, nextitem, holding)
        return result
