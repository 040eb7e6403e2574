"""What the records of a session come to: counts and groups that every kind of report shows."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpucoexist.reports.model import GpuOutcome
from pytest_gpucoexist.reports.words import counted, plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_gpucoexist.reports.model import SessionReport, TestRecord

__all__ = [
    "OUTCOME_WORDS",
    "Unmet",
    "none_ran",
    "ran_simulated",
    "short_counts",
    "tests_by_device",
    "unmet_groups",
    "used_devices",
]

OUTCOME_WORDS = {
    "ran": "run",
    "missing": "missing",
    "masked": "masked",
    "not_granted": "not granted",
    "simulated": "simulated",
    "unfit": "unfit",
    "busy": "busy",
    "not_run": "not run",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmet:
    """Tests whose need was not met for one reason."""

    outcome: GpuOutcome
    reason: str
    nodeids: tuple[str, ...]


def ran_simulated(record: TestRecord) -> bool:
    """Whether a test ran on stand-ins: it counts for nothing on real hardware."""
    if record.outcome == "skipped":
        return False
    return record.gpu_outcome == "simulated" or any(device.simulated for device in record.devices)


def unmet_groups(records: Iterable[TestRecord]) -> list[Unmet]:
    """Group the tests whose need was not met by what was missing, the most frequent reason first."""
    groups: dict[tuple[GpuOutcome, str], list[str]] = defaultdict(list)
    for record in records:
        if record.requirement is None or record.gpu_outcome is None or ran_simulated(record):
            continue
        if record.gpu_outcome in {"ran", "not_run"}:
            continue
        reason = record.reason or f"needs {record.requirement}"
        groups[record.gpu_outcome, reason].append(record.nodeid)
    unmet = [
        Unmet(outcome=outcome, reason=reason, nodeids=tuple(nodeids)) for (outcome, reason), nodeids in groups.items()
    ]
    return sorted(unmet, key=lambda group: (-len(group.nodeids), group.outcome, group.reason))


def tests_by_device(records: Iterable[TestRecord]) -> Counter[str]:
    """Count the tests that ran with each device, by the device's key."""
    return Counter(device.key for record in records if record.outcome != "skipped" for device in record.devices)


def used_devices(records: Iterable[TestRecord]) -> str | None:
    """Say how many tests ran with each device: `nvidia0 6, nvidia1 2, amd1 4`. None when none did."""
    records = tuple(records)
    ids = {device.key: device for record in records for device in record.devices}
    counts = tests_by_device(records)
    if not counts:
        return None
    used = sorted((ids[key] for key in counts), key=lambda device: (_VENDORS_FIRST.get(device.id[:2], 9), device.key))
    text = f"Tests by device: {', '.join(f'{device.id} {counts[device.key]:,}' for device in used)}"
    return f"SIMULATED. {text}" if all(device.simulated for device in used) else text


_VENDORS_FIRST = {"nv": 0, "am": 1, "in": 2}


def none_ran(records: Iterable[TestRecord]) -> str | None:
    """Say that tests which need a GPU were selected and none ran on one. None when one did, or none was selected."""
    needing = [record for record in records if record.requirement is not None]
    if not needing or any(record.ran_on_gpu for record in needing):
        return None
    others = [OUTCOME_WORDS[record.gpu_outcome or "not_run"] for record in needing if not ran_simulated(record)]
    stood_in = len(needing) - len(others)
    if not stood_in:
        return f"{plural(len(needing), 'GPU test')} selected and NONE ran on a GPU: {counted(others)}"
    text = f"SIMULATED: {plural(stood_in, 'GPU test')} ran on stand-ins, NONE ran on a GPU"
    if not others:
        return text
    why = others[0] if len(set(others)) == 1 else counted(others)
    return f"{text}; {plural(len(others), 'test')} did not run ({why})"


def short_counts(report: SessionReport) -> list[tuple[str, int]]:
    """Count what a reader looks for first, each with its label."""
    tests: Sequence[TestRecord] = report.tests
    return [
        ("ran on a GPU", sum(record.ran_on_gpu for record in tests if record.requirement is not None)),
        ("ran simulated", sum(ran_simulated(record) for record in tests if record.requirement is not None)),
        ("failed", sum(record.outcome in {"failed", "error"} for record in tests)),
        ("not run for want of hardware", sum(len(group.nodeids) for group in unmet_groups(tests))),
        ("need no GPU", sum(record.requirement is None for record in tests)),
    ]
