"""A gate's description beside its function, and the list of all of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_gpucoexist.model.verdicts import LEVELS, SEVERITIES, Level, Severity

if TYPE_CHECKING:
    from pytest_gpucoexist.gates.findings import Finding
    from pytest_gpucoexist.gates.subject import Subject

__all__ = ["GROUPS", "Check", "Gate", "gate"]

Check = Callable[["Subject"], "Iterable[Finding]"]

GROUPS = (
    "driver",
    "kernel-module",
    "device-node",
    "kernel-log",
    "pcie-link",
    "memory-mapping",
    "numa",
    "ras",
    "power",
    "occupancy",
    "libraries",
    "environment",
    "container",
    "baseline",
    "transfer-integrity",
    "transfer-bandwidth",
)
"""Groups in the order in which a person should read them."""

VENDORS = ("nvidia", "amd", "intel")

_ID = re.compile(r"[a-z][a-z0-9_]*(\.[a-z0-9_]+)+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """One thing that can be wrong with a machine.

    `reads`, `criterion`, `why`, `action` and `source` are sentences for a person: what is looked at, what must hold,
    what goes wrong otherwise, what to do, who has seen it. `vendors` empty: about the host, whatever its GPUs.
    `limits` names the numbers that `gpu_gate_limits` can change, with their defaults. A gate with `needs_gpu` is
    skipped where no device of its vendors is granted here. `check` is None in a gate that a later level brings.
    Raises ValueError when the description is not complete.
    """

    id: str
    group: str
    title: str
    reads: str
    criterion: str
    why: str
    action: str
    source: str
    vendors: tuple[str, ...] = VENDORS
    level: Level = "quick"
    severity: Severity = "warn"
    blocking: bool = False
    needs_gpu: bool = True
    limits: Mapping[str, float] = field(default_factory=dict, hash=False)
    check: Check | None = None

    def __post_init__(self) -> None:
        """Refuse what would make a page or a report with holes."""
        if not _ID.fullmatch(self.id):
            raise ValueError(f"gate {self.id!r}: an id is made of lower-case words with dots between")
        for name in ("group", "title", "reads", "criterion", "why", "action", "source"):
            if not getattr(self, name):
                raise ValueError(f"gate {self.id}: {name} is empty")
        if self.level not in LEVELS:
            raise ValueError(f"gate {self.id}: level {self.level!r} is not one of {', '.join(LEVELS)}")
        if not isinstance(self.vendors, tuple) or not set(self.vendors) <= set(VENDORS):
            raise ValueError(f"gate {self.id}: vendors {self.vendors!r} are not a tuple out of {', '.join(VENDORS)}")
        if self.severity not in SEVERITIES:
            raise ValueError(f"gate {self.id}: severity {self.severity!r} is not one of {', '.join(SEVERITIES)}")
        if self.blocking and self.severity != "fail":
            raise ValueError(f"gate {self.id}: a gate that blocks has the severity fail")


def gate(
    id: str,  # noqa: A002
    *,
    group: str,
    title: str,
    reads: str,
    criterion: str,
    why: str,
    action: str,
    source: str,
    vendors: tuple[str, ...] = VENDORS,
    level: Level = "quick",
    severity: Severity = "warn",
    blocking: bool = False,
    needs_gpu: bool = True,
    limits: Mapping[str, float] | None = None,
) -> Callable[[Check], Gate]:
    """Make a Gate of a function. See Gate for the arguments."""

    def make(check: Check) -> Gate:
        return Gate(
            id=id,
            group=group,
            title=title,
            reads=reads,
            criterion=criterion,
            why=why,
            action=action,
            source=source,
            vendors=vendors,
            level=level,
            severity=severity,
            blocking=blocking,
            needs_gpu=needs_gpu,
            limits=dict(limits or {}),
            check=check,
        )

    return make
