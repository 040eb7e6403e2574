"""A gate without a check, from the few things in which such gates differ."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.registry import VENDORS, Gate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucoexist.model.verdicts import Level, Severity

__all__ = ["later"]


def later(
    id: str,  # noqa: A002
    title: str,
    *,
    group: str,
    reads: str,
    criterion: str,
    why: str,
    action: str,
    source: str,
    vendors: tuple[str, ...] = VENDORS,
    level: Level = "transfer",
    severity: Severity = "warn",
    limits: Mapping[str, float] | None = None,
) -> Gate:
    """Describe a gate that this version does not run."""
    return Gate(
        id=id,
        title=title,
        group=group,
        reads=reads,
        criterion=criterion,
        why=why,
        action=action,
        source=source,
        vendors=vendors,
        level=level,
        severity=severity,
        limits=dict(limits or {}),
    )
