"""`--gpu-observe`: what the plugin would have decided, beside what the suite did."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.reports.model import ObserveRow
from pytest_gpucoexist.session.frameworks import framework_of_skip, speaks_of_gpus

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from pytest_gpucoexist.reports.model import TestRecord
    from pytest_gpucoexist.session.ledger import Ledger

__all__ = ["observe_rows"]


def observe_rows(ledger: Ledger) -> list[ObserveRow]:
    """Make a row for every test that needs a GPU, and for every skip that speaks of GPUs without a known need."""
    rows = []
    for record in ledger.records():
        told, reason = ledger.told(record.nodeid), ledger.skip_reason(record.nodeid)
        if told:
            rows.append(_needing(record, told, reason))
        elif record.outcome == "skipped" and reason and (framework_of_skip(reason) or speaks_of_gpus(reason)):
            rows.append(
                ObserveRow(
                    nodeid=record.nodeid,
                    decision="run: no mark says that it needs a GPU",
                    outcome="skipped",
                    differs=True,
                    suite_reason=reason,
                )
            )
    return rows


def _needing(record: TestRecord, told: Mapping[str, Any], reason: str | None) -> ObserveRow:
    would_run = told["decision"] == "run"
    if would_run:
        candidates = told["candidates"]
        decision = f"run on {' or '.join(candidates)}"
    elif told["decision"] in {"unfit", "error"}:
        decision = f"fail: {told['decision_reason']}"
    else:
        decision = f"skip: {told['decision_reason']}"
    return ObserveRow(
        nodeid=record.nodeid,
        requirement=told["requirement"],
        decision=decision,
        outcome=record.outcome,
        differs=would_run == (record.outcome == "skipped"),
        suite_reason=reason if record.outcome == "skipped" else None,
    )
