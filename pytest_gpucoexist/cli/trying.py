"""The trials of `gpucoexist doctor`, with a line on a terminal that says what is being tried."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.model.verdicts import Judgement

__all__ = ["REPLAYED", "after_trials"]

REPLAYED = "Nothing was copied: a replayed machine has no devices."


def after_trials(subject: Subject, judgement: Judgement, budget_s: float | None = None) -> Subject | None:
    """Try the devices that are fit, under leases, and return what is to be judged; None for a replayed machine."""
    if subject.machine.simulated:
        return None
    from pytest_gpucoexist.leases.opening import open_leaser
    from pytest_gpucoexist.trials.leased import try_machine

    leaser = open_leaser(lambda: subject.machine, subject.host)
    try:
        trials = try_machine(
            subject.machine,
            leases=leaser,
            release=leaser.release,  # type: ignore[arg-type]
            unfit=judgement.unfit,
            level="full" if subject.level == "full" else "transfer",
            budget_s=budget_s if subject.level == "full" else None,
            progress=_say,
            owner="gpucoexist doctor",
        )
    finally:
        leaser.close()
        _say("")
    return replace(subject, trials=trials, _shared={}, _locks={})


def _say(text: str) -> None:
    """Show a step: in place on a terminal, as a line elsewhere."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{f'gpucoexist: trying {text}' if text else ''}", end="", file=sys.stderr, flush=True)
    elif text:
        print(f"gpucoexist: trying {text}", file=sys.stderr, flush=True)
