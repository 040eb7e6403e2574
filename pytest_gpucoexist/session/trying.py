"""The trials of a session: between a first judgement, which says what must not be touched, and the one that counts.

The machine is judged anew afterwards, so that what the copies left in the kernel's log and in counters is seen.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.model.verdicts import Judgement
    from pytest_gpucoexist.session.state import GpuSession

__all__ = ["after_trials"]


def after_trials(session: GpuSession, subject: Subject, judgement: Judgement) -> Subject | None:
    """Try the devices that are fit and return what is to be judged; None, with a note, where nothing can be copied."""
    machine = subject.machine
    if machine.simulated and not session.options.simulate:
        session.notes.append(f"gates: nothing was copied for level {subject.level}: a replayed machine has no devices")
        return None
    from pytest_gpucoexist.leases.opening import open_leaser
    from pytest_gpucoexist.trials.leased import try_machine

    options = session.options
    leaser: Any = None
    if options.lease != "off":
        leaser = open_leaser(lambda: machine, subject.host, lease_dir=options.lease_dir, session=session.run_id)
    try:
        trials = try_machine(
            machine,
            leases=leaser,
            release=leaser.release if leaser is not None else lambda _: None,
            unfit=judgement.unfit,
            level="full" if subject.level == "full" else "transfer",
            budget_s=options.gate_budget_s if subject.level == "full" else None,
            python={name: session.config.getini(f"gpu_python_{name}") for name in ("nvidia", "amd")},
            owner="gates",
        )
    finally:
        if leaser is not None:
            leaser.close()
    session.notes.append(f"gates: copies were tried for {trials.duration_s:.1f} s (level {subject.level})")
    return replace(subject, trials=trials, _shared={}, _locks={})
