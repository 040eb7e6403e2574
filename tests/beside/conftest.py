"""Suites beside other plugins."""

from __future__ import annotations

import pytest

from tests.beside.running import Suite, beside_python


@pytest.fixture
def suite(pytester: pytest.Pytester) -> Suite:
    """A suite in this environment: pytest, pytest-xdist, this package."""
    return Suite(pytester)


@pytest.fixture
def beside(pytester: pytest.Pytester) -> Suite:
    """A suite in the environment that has the plugins of others."""
    return Suite(pytester, beside_python())
