"""Fixtures of the guest's tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.vm.guest.judging import SAID

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _verdicts_are_handed_over(request: pytest.FixtureRequest) -> Iterator[None]:
    """Send what gates said in a test along with its result."""
    SAID.clear()
    yield
    request.node.user_properties.append(("verdicts", [[verdict.id, verdict.status] for verdict in SAID]))
