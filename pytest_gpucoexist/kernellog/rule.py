"""What a rule of the kernel log is."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from pytest_gpucoexist.model.verdicts import Severity

__all__ = ["BDF", "BDF_OLD", "Rule", "RuleSeverity"]

# Domain optional (some messages leave it out, NVIDIA prints 4 or 8 digits), function optional (NVIDIA's Xids).
BDF = r"(?P<bdf>(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)"

# Drivers before 2010 wrote bus and device with four digits and two: "Xid (0002:00)".
BDF_OLD = BDF[:-1] + r"|[0-9a-fA-F]{4}:[0-9a-fA-F]{2})"

RuleSeverity = Literal["fail", "warn", "info", "by-code"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One thing that a kernel, a driver or a vendor's program prints.

    `regex` is searched in a record's message. Every message that it matches contains one of `anchors`: they are looked
    for first, in the whole log at once, so that a line of no interest costs nothing; `within` is a text that every such
    message has, where many rules share it. `severity` holds for a line of
    this session and for a log without a session; `earlier` for one from before it (None: the same). `vendor` is "any"
    where the driver named in the line decides.
    """

    id: str
    vendor: str
    severity: RuleSeverity
    regex: str
    anchors: tuple[str, ...]
    meaning: str
    action: str
    earlier: Severity | None = None
    within: str = ""
    pattern: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "pattern", re.compile(self.regex))
