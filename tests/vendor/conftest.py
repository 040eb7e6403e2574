from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.fakes.machine import FakeMachine


@pytest.fixture
def machine(fake_machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    """A fake machine whose driver libraries are those that this process's children load."""
    for name, value in fake_machine.environ.items():
        monkeypatch.setenv(name, value)
    return fake_machine
