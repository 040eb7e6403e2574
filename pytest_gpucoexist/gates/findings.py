"""What a gate yields: one finding for each device, or one for the machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpucoexist.model.verdicts import Evidence, Fix, VerdictStatus

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_gpucoexist.model.machine import Gpu

__all__ = ["Finding", "failed", "passed", "skipped", "unknown", "warned"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A status, one sentence that says why, the devices it is about, and what it rests on.

    `action` and `fix` are given where the gate's own action is not the best one here; `blocking` False weakens a
    blocking gate for this finding.
    """

    status: VerdictStatus
    reason: str
    devices: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    action: str | None = None
    fix: tuple[Fix, ...] = ()
    blocking: bool = True


def passed(reason: str, *evidence: Evidence, on: Iterable[Gpu] = ()) -> Finding:
    """Say that the criterion holds, and what was read that shows it."""
    return _finding("PASS", reason, evidence, on)


def warned(
    reason: str, *evidence: Evidence, on: Iterable[Gpu] = (), action: str | None = None, fix: Iterable[Fix] = ()
) -> Finding:
    """Say that it does not hold, and that the run can go on."""
    return _finding("WARN", reason, evidence, on, action, fix)


def failed(
    reason: str,
    *evidence: Evidence,
    on: Iterable[Gpu] = (),
    action: str | None = None,
    fix: Iterable[Fix] = (),
    blocking: bool = True,
) -> Finding:
    """Say that it does not hold. In a gate that blocks, the devices `on` (none: all of its vendors) become unfit."""
    return _finding("FAIL", reason, evidence, on, action, fix, blocking)


def unknown(reason: str, *evidence: Evidence, on: Iterable[Gpu] = (), action: str | None = None) -> Finding:
    """Say that the evidence could not be read: denied, absent where it should be, or garbage."""
    return _finding("UNKNOWN", reason, evidence, on, action)


def skipped(reason: str, *, on: Iterable[Gpu] = ()) -> Finding:
    """Say that the gate does not apply here."""
    return _finding("SKIP", reason, (), on)


def _finding(
    status: VerdictStatus,
    reason: str,
    evidence: tuple[Evidence, ...],
    on: Iterable[Gpu],
    action: str | None = None,
    fix: Iterable[Fix] = (),
    blocking: bool = True,
) -> Finding:
    return Finding(
        status=status,
        reason=reason,
        devices=tuple(gpu.key for gpu in on),
        evidence=evidence,
        action=action,
        fix=tuple(fix),
        blocking=blocking,
    )
