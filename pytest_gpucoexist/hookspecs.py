"""Hooks that projects and other plugins can implement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pytest_gpucoexist.gates.registry import Gate
    from pytest_gpucoexist.host import Host
    from pytest_gpucoexist.model.machine import Machine
    from pytest_gpucoexist.model.readings import Observation
    from pytest_gpucoexist.reports.model import SessionReport

__all__ = [
    "pytest_gpucoexist_gates",
    "pytest_gpucoexist_machine",
    "pytest_gpucoexist_probes",
    "pytest_gpucoexist_report",
    "pytest_gpucoexist_requirement",
]


@pytest.hookspec
def pytest_gpucoexist_requirement(item: pytest.Item) -> Any:
    """Say what a test needs: a mark (`pytest.mark.cuda(count=2)`), its text (`"cuda(count=2)"`), or a list of these.

    None leaves the test as it is. What is returned counts as closer than any mark on the test. Called once for each
    selected test, so it should be quick.
    """


@pytest.hookspec
def pytest_gpucoexist_machine(config: pytest.Config, machine: Machine) -> Machine | None:
    """Amend the machine after discovery, for example to veto a device; return a new value or None.

    Each plugin gets what the one before it returned. Called once per discovery, in an xdist run by the controller
    alone.
    """


@pytest.hookspec
def pytest_gpucoexist_probes(config: pytest.Config, host: Host) -> list[Observation] | None:
    """Observe devices through `host`, which may be this computer or a recording; return a list of `Observation`.

    What the package's own probes tell of the same field is trusted more. A probe that raises, or that returns
    anything else, is reported among the machine's conflicts, and the others are heard.
    """


@pytest.hookspec
def pytest_gpucoexist_gates(config: pytest.Config) -> list[Gate] | None:
    """Add gates to those that judge the machine; return a list of `Gate`, as `@gate(...)` makes them.

    Called once, when a selected test needs a GPU. Gates of a deeper level than the session's are left out.
    """


@pytest.hookspec
def pytest_gpucoexist_report(config: pytest.Config, report: SessionReport) -> SessionReport | None:
    """Amend the session's report before it is written; return a new value or None.

    Each plugin gets what the one before it returned.
    """
