"""What the gates said about a machine: verdicts, what they rest on, and which devices are unfit.

Attribute names are those of the JSON that `gpucoexist doctor --json` prints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from pytest_gpucoexist.model.codec import decode, encode
from pytest_gpucoexist.model.trials import Trials

__all__ = [
    "LEVELS",
    "SEVERITIES",
    "STATUSES",
    "Evidence",
    "Fix",
    "Judgement",
    "Level",
    "Pair",
    "Severity",
    "Verdict",
    "VerdictStatus",
    "worst",
]

VerdictStatus = Literal["PASS", "WARN", "FAIL", "SKIP", "UNKNOWN", "ERROR"]
"""`UNKNOWN`: the evidence could not be read, which is never a PASS. `SKIP`: it does not apply here. `ERROR`: the gate
itself broke; `detail` has its traceback."""

STATUSES: tuple[VerdictStatus, ...] = get_args(VerdictStatus)

Severity = Literal["fail", "warn", "info"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)

Level = Literal["quick", "standard", "transfer", "full"]
LEVELS: tuple[Level, ...] = get_args(Level)
"""Each level contains those before it: files and environment; vendor queries; short copies; long ones."""

_GRAVITY: tuple[VerdictStatus, ...] = ("SKIP", "PASS", "UNKNOWN", "ERROR", "WARN", "FAIL")


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One thing that was read: where (`source`: a path, a variable, a call), what was there, what should be there."""

    source: str
    found: str
    expected: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """Lines that a person can add to a file, or run (`path` is None). They are printed, never written."""

    lines: tuple[str, ...]
    path: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What one gate says about one or several devices. `devices` are keys of GPUs; none: about the machine.

    `reason` is one sentence; `expected` is the gate's criterion. A FAIL of a `blocking` verdict makes its devices (or,
    when it names none, all devices of the gate's `vendors`) unfit. `ignored` has the reason that a person gave for
    ignoring the gate: then it is shown and counts for nothing.
    """

    id: str
    group: str
    status: VerdictStatus
    severity: Severity = "warn"
    blocking: bool = False
    vendors: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    reason: str = ""
    evidence: tuple[Evidence, ...] = ()
    expected: str = ""
    action: str = ""
    fix: tuple[Fix, ...] = ()
    source: str = ""
    detail: str | None = None
    ignored: str | None = None

    @property
    def blocks(self) -> bool:
        """Whether it takes devices out."""
        return self.status == "FAIL" and self.blocking and self.ignored is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """How two GPUs (`Gpu.key`) reach each other: their relation in the words of `nvidia-smi topo`, and the path."""

    a: str
    b: str
    relation: str | None
    path: str
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """All verdicts of one run of the gates. `unfit` says in words, by `Gpu.key`, why a device must not be used.

    `fit` is False when a blocking gate failed, None when nothing could be judged (every blocking gate is UNKNOWN or
    broke). `matrix` is filled by `gpucoexist doctor` alone.
    """

    level: Level
    fit: bool | None
    verdicts: tuple[Verdict, ...] = ()
    unfit: Mapping[str, str] = field(default_factory=dict, hash=False)
    duration_s: float = 0.0
    matrix: tuple[Pair, ...] = ()
    trials: Trials | None = None
    """What was tried with the devices, at the levels `transfer` and `full`: every sample."""

    def by_gate(self) -> dict[str, VerdictStatus]:
        """Return the worst status of each gate, ignored verdicts left out: what a summary counts."""
        found: dict[str, VerdictStatus] = {}
        for verdict in self.verdicts:
            if verdict.ignored is None:
                found[verdict.id] = worst((found.get(verdict.id, "SKIP"), verdict.status))
        return found

    def to_json(self) -> dict[str, Any]:
        """Return builtins only."""
        return encode(self)  # type: ignore[no-any-return]

    @classmethod
    def from_json(cls, data: object) -> Judgement:
        """Read what `to_json` wrote. Raises DataError."""
        return decode(cls, data)


def worst(statuses: tuple[VerdictStatus, ...]) -> VerdictStatus:
    """Return the gravest status; `SKIP` when there is none."""
    return max(statuses, key=_GRAVITY.index, default="SKIP")
