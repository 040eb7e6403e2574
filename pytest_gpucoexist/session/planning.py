"""`--gpu-plan`: where every selected test would run, or why not. Nothing runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist.errors import GpuCoexistError
from pytest_gpucoexist.model.matching import choose
from pytest_gpucoexist.session.gating import is_unfit
from pytest_gpucoexist.session.summary import screen_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpucoexist.model.machine import Machine
    from pytest_gpucoexist.model.plan import Decision
    from pytest_gpucoexist.reports.model import PlanRow
    from pytest_gpucoexist.session.state import GpuSession

__all__ = ["Planner", "plan_row"]


class Planner:
    """Prints the plan in place of the run."""

    def __init__(self, session: GpuSession) -> None:
        """`session` decides."""
        self._session = session

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Print, and run nothing. Raises pytest's own interruption when collection had errors."""
        if session.testsfailed and not session.config.option.continue_on_collection_errors:
            raise session.Interrupted(f"{session.testsfailed} error(s) during collection")
        from pytest_gpucoexist.reports.screen import PLAIN
        from pytest_gpucoexist.reports.terminal import plan_table

        try:
            machine = self._session.machine()
        except GpuCoexistError as error:
            raise pytest.UsageError(str(error)) from None
        rows = self._rows(session.items, machine)
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        screen = PLAIN if reporter is None else screen_of(reporter)
        text = plan_table(
            rows,
            machine,
            unmarked=len(session.items) - len(rows),
            screen=screen,
            verbosity=getattr(session.config.option, "verbose", 0),
        )
        if reporter is not None:
            reporter.ensure_newline()
            reporter.write_line("")
            for line in text.splitlines():
                reporter.write_line(line)
            for name, unmet in self._promises(machine):
                reporter.write_line(f"--gpu-require={name} would stop this run: {unmet}", red=True)
            if self._session.options.gate_policy == "stop" and is_unfit(self._session):
                reporter.write_line("--gpu-gate-policy=stop would stop this run: the machine is unfit", red=True)
        return True

    def _rows(self, items: Sequence[pytest.Item], machine: Machine) -> list[PlanRow]:
        decided = [(item, self._session.decision(item)) for item in self._session.needs.select(items)]
        default = self._session.options.default_memory_bytes
        shares = self._session.options.lease != "off"
        return [
            plan_row(item.nodeid, decision, machine, default_memory_bytes=default, shares=shares)
            for item, decision in decided
            if decision is not None
        ]

    def _promises(self, machine: Machine) -> list[tuple[str, str]]:
        from pytest_gpucoexist.model.plan import unmet_promises

        options = self._session.options
        return [(options.require or "", text) for text in unmet_promises(options.promises, machine)]


def plan_row(
    nodeid: str,
    decision: Decision,
    machine: Machine,
    *,
    default_memory_bytes: int | None = None,
    shares: bool = True,
) -> PlanRow:
    """Say where one test would run when all devices are free, and which others would do.

    With `shares` also which part of a device's memory it would lease: `default_memory_bytes` where it names none.
    """
    from pytest_gpucoexist.reports.model import PlanRow

    requirement = decision.need.describe()
    if decision.outcome != "run":
        outcome = "not_run" if decision.outcome == "error" else decision.outcome
        return PlanRow(nodeid=nodeid, requirement=requirement, outcome=outcome, reason=decision.reason)
    candidates = dict.fromkeys(key for group in decision.groups for key in group.candidates)
    chosen = choose(decision.groups, candidates, machine, closest_pair=decision.need.closest_pair) or ()
    devices = [key for group in chosen for key in group]
    ids = {gpu.key: gpu.id for gpu in machine.gpus}
    return PlanRow(
        nodeid=nodeid,
        requirement=requirement,
        devices=tuple(ids[key] for key in devices),
        alternatives=tuple(ids[key] for key in candidates if key not in devices),
        share=_share(decision, chosen, machine, default_memory_bytes) if shares else None,
    )


def _share(
    decision: Decision, chosen: Sequence[Sequence[str]], machine: Machine, default_memory_bytes: int | None
) -> str | None:
    from pytest_gpucoexist.leases.claims import claim_for
    from pytest_gpucoexist.model.arguments import format_bytes

    texts: list[str] = []
    for group, keys in zip(decision.groups, chosen, strict=True):
        for key in keys:
            gpu = machine.gpu(key)
            share = None
            if gpu is not None:
                share = claim_for(gpu, group.requirement, default_memory_bytes=default_memory_bytes).share
            texts.append("whole" if share is None else format_bytes(share.memory_bytes))
    if all(text == "whole" for text in texts):
        return None
    return texts[0] if len(set(texts)) == 1 else " + ".join(texts)
