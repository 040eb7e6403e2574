"""What a rule of the kernel log is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from pytest_gpucoexist.model.verdicts import Severity

__all__ = ["BDF", "BDF_OLD", "Rule", "RuleSeverity"]

# Domain optional (some messages leave it out, NVIDIA prints 4 or 8 digits), function optional (NVIDIA's Xids).
BDF = r"(?P<bdf>(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)"

# Drivers before 2010 wrote bus and device with four digits and two: "Xid (0002:00)".
BDF_OLD = BDF[:-1] + r"|[0-9a-fA-F]{4}:[0-9a-fA-F]{2})"

# printk cuts its own lines at 1,024 bytes; what is longer came from somewhere else, and costs time.
_LONGEST = 4096

RuleSeverity = Literal["fail", "warn", "info", "by-code"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One thing that a kernel, a driver or a vendor's program prints.

    `regex` is searched in a record's message. Every message that it matches contains one of `anchors` once the digits
    are taken out of both: anchors are looked for first, so that a line of no interest costs nothing. `severity` holds
    for a line of this session and for a log without a session; `earlier` for one from before it (None: the same).
    `vendor` is "any" where the driver named in the line decides.
    """

    id: str
    vendor: str
    severity: RuleSeverity
    regex: str
    anchors: tuple[str, ...]
    meaning: str
    action: str
    earlier: Severity | None = None

    def search(self, message: str) -> re.Match[str] | None:
        """Find the rule in a message; compiled when first needed, because most logs need few of the rules."""
        return re.compile(self.regex).search(message, 0, _LONGEST)
