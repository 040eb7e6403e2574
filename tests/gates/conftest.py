"""Hold tests to what they claim to prove about gates."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.gates.judging import SAID
from tests.gates.proofs import GROUNDS

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _claims_are_kept(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test marked `proves(gate, status, on=…)` must have seen that gate say so."""
    SAID.clear()
    yield
    said = {(verdict.id, verdict.status) for verdict in SAID}
    for mark in request.node.iter_markers("proves"):
        assert mark.kwargs.get("on") in GROUNDS, f"{mark}: on is one of {', '.join(sorted(GROUNDS))}"
        assert tuple(mark.args) in said, f"{mark.args} was claimed; gates said {sorted(said)}"
