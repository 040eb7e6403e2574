"""Fixtures of the guest's tests. Each begins and ends with no driver loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.vm.guest.drivers import unload_all
from tests.vm.guest.judging import SAID

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _as_it_was(request: pytest.FixtureRequest) -> Iterator[None]:
    """Leave the next test a machine without drivers; hand over what gates said in this one."""
    SAID.clear()
    yield
    request.node.user_properties.append(("verdicts", [[verdict.id, verdict.status] for verdict in SAID]))
    unload_all()
