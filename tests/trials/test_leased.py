"""What may be touched: what is visible, fit, and nobody else's; the rest is named with its reason."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("numpy", reason="needs NumPy")
pytest.importorskip("execnet", reason="needs execnet")

from pytest_gpucoexist.errors import DeviceBusyError
from pytest_gpucoexist.trials.leased import try_machine
from tests.staging.conftest import AMD, MACHINE, NVIDIA

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpucoexist.model.groups import Group

MACHINE = replace(MACHINE, simulated=True)


class Given:
    """Gives every device but those that others use."""

    def __init__(self, busy: str) -> None:
        self.busy = busy
        self.held: list[str] = []

    def acquire(self, groups: Sequence[Group], owner: str, *, timeout_s: float | None = None) -> object:
        (key,) = groups[0].candidates
        assert timeout_s is not None
        if key == self.busy:
            raise DeviceBusyError(f"{owner} cannot have {key}: python (7) has it")
        self.held.append(key)
        return key

    def release(self, lease: object) -> None:
        self.held.remove(str(lease))


def test_only_what_is_fit_visible_and_free_is_touched() -> None:
    hidden = replace(MACHINE, gpus=(NVIDIA[0], replace(NVIDIA[1], visible=False), *AMD))
    leases = Given(AMD[0].key)
    steps: list[str] = []
    trials = try_machine(
        hidden,
        leases=leases,
        release=leases.release,
        unfit={AMD[1].key: "ras.amd: many errors"},
        level="transfer",
        budget_s=60,
        progress=steps.append,
    )
    touched = {end for each in trials.integrity for end in (each.source, each.target)}
    touched |= {end for one in trials.samples for end in (one.source, one.target)}
    assert touched == {"host", NVIDIA[0].key}
    untried = {each.source: (each.status, each.reason.split(":")[0]) for each in trials.untried}
    assert untried == {AMD[0].key: ("UNKNOWN", "in use by others"), AMD[1].key: ("SKIP", "it is unfit")}
    assert leases.held == []
    assert any("nvidia0" in step for step in steps)


def test_leases_are_given_back_when_trials_are_interrupted() -> None:
    leases = Given("")

    def stop(_: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        try_machine(
            MACHINE, leases=leases, release=leases.release, unfit={}, level="transfer", budget_s=60, progress=stop
        )
    assert leases.held == []


def test_a_device_without_a_driver_is_not_opened() -> None:
    bare = replace(MACHINE, simulated=False, gpus=(NVIDIA[0],))
    trials = try_machine(bare, leases=None, unfit={}, level="transfer", budget_s=60)
    assert [(each.status, each.reason) for each in trials.untried] == [("SKIP", "no driver holds it")]
    assert trials.integrity == ()
