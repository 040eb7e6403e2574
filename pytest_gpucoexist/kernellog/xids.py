"""What an NVIDIA Xid code means for a test session."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpucoexist.kernellog.xid_table import ROWS, XidSeverity

if TYPE_CHECKING:
    from pytest_gpucoexist.model.verdicts import Severity

__all__ = ["XIDS", "XidPolicy", "recovery_action", "xid_policy"]

# The words in brackets of "changed from 0x0 (None) to 0x1 (GPU Reset Required)".
_RECOVERY = re.compile(r"changed from [^()]*\([^()]*\) to [^()]*\(([^()]*)\)")
_FATALITY = re.compile(r"\b(Non-?)?Fatal\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class XidPolicy:
    """How one code is judged: in this session (`now`) and earlier in this boot (`before`)."""

    xid: int
    now: XidSeverity
    before: XidSeverity
    meaning: str
    action: str

    def severity(self, message: str, *, in_session: bool) -> Severity:
        """Judge a line that carries this code."""
        policy = self.now if in_session else self.before
        if policy == "by-word":
            word = _FATALITY.search(message)
            return "warn" if word is not None and word[1] else "fail"  # without the word, nothing says it is harmless
        if policy == "by-text":
            return "info" if recovery_action(message) in {"None", "none"} else "fail"
        return policy


def recovery_action(message: str) -> str | None:
    """Return the action that an Xid 154 changed to, such as `GPU Reset Required`."""
    match = _RECOVERY.search(message)
    return None if match is None else match[1].strip()


def xid_policy(xid: int) -> XidPolicy:
    """Return the policy of a code; for one that is not in the table, a warning that says so."""
    known = XIDS.get(xid)
    if known is not None:
        return known
    return XidPolicy(
        xid=xid,
        now="warn",
        before="info",
        meaning=f"Xid {xid}, a code that is not in the table of this version",
        action="look it up in NVIDIA's Xid catalogue; see what ran at that time",
    )


XIDS: dict[int, XidPolicy] = {
    xid: XidPolicy(xid=xid, now=now, before=before, meaning=meaning, action=action)
    for xid, now, before, meaning, action in ROWS
}
