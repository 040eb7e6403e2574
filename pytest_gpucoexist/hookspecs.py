"""Hooks that projects and other plugins can implement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pytest_gpucoexist.model.machine import Machine

__all__ = ["pytest_gpucoexist_machine", "pytest_gpucoexist_report", "pytest_gpucoexist_requirement"]


@pytest.hookspec
def pytest_gpucoexist_requirement(item: pytest.Item) -> Any:
    """Say what a test needs: a mark (`pytest.mark.cuda(count=2)`), its text (`"cuda(count=2)"`), or a list of these.

    None leaves the test as it is. What is returned counts as closer than any mark on the test. Called once for each
    selected test, so it should be quick.
    """


@pytest.hookspec
def pytest_gpucoexist_machine(config: pytest.Config, machine: Machine) -> Machine | None:
    """Amend the machine after discovery, for example to veto a device; return a new value or None."""


@pytest.hookspec
def pytest_gpucoexist_report(config: pytest.Config, report: Any) -> Any:
    """Amend the session's report (`reports.model.SessionReport`) before it is written; return a new value or None."""
