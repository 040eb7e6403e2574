"""Say what each line of a kernel log means for the GPUs, if anything."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpucoexist.kernellog.anchors import Anchors
from pytest_gpucoexist.kernellog.context import Context
from pytest_gpucoexist.kernellog.places import address_in, known_function, normal_address
from pytest_gpucoexist.kernellog.rules import RULES
from pytest_gpucoexist.kernellog.xids import xid_policy
from pytest_gpucoexist.model.verdicts import Severity

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_gpucoexist.kernellog.records import Record
    from pytest_gpucoexist.kernellog.rule import Rule

__all__ = ["LogFinding", "classify"]

_ANCHORS = Anchors(RULES)

# "gpud[123]: …", "systemd[1]: …": a program that tells what a driver printed is not the driver.
_PROGRAM = re.compile(r"[\w.@/+()-]+\[\d+\]: ")
_OF_PROGRAMS_TOO = ("user.", "mod.", "sys.")

_VENDOR = re.compile(r"\b(?:(nvidia|NVRM|nouveau)|(amdgpu|kfd|radeon)|(i915|xe)\b)")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFinding:
    """A line that matters.

    `line` is as it was given; `number` counts from 1. `pci_address` is as sysfs writes it, or None where neither the
    line nor those it belongs to name a device. `vendor` is nvidia, amd, intel or any. `xid` is the code of an Xid, or
    of the Xid that a line refers to.
    """

    line: str
    number: int
    rule: str
    severity: Severity
    vendor: str
    pci_address: str | None
    xid: int | None
    pid: int | None
    process: str | None
    meaning: str
    action: str
    time_s: float | None
    wall_s: float | None


def classify(
    records: Sequence[Record],
    *,
    since_s: float | None = None,
    functions: Iterable[str] = (),
    uuids: Mapping[str, str] | None = None,
) -> tuple[LogFinding, ...]:
    """Return the findings in the order of the records; a line of no rule gives none.

    `since_s`: where the session began on the boot clock. A record from before it is judged as "earlier this boot"; with
    None, and for a record without a boot clock, all is judged as if it just happened. `functions`: the PCI addresses
    that exist here, to which a line without a function digit or of a sibling function is mapped. `uuids`: PCI addresses
    by GPU UUID, for lines that name nothing else.
    """
    messages = [record.message for record in records]
    possible = _ANCHORS.candidates(messages)
    if not possible:
        return ()
    context = Context(records, frozenset(functions), dict(uuids or {}))
    findings: list[LogFinding] = []
    for index, positions in possible.items():
        for position in positions:
            rule = RULES[position]
            match = rule.search(messages[index])
            if match is not None and (rule.id.startswith(_OF_PROGRAMS_TOO) or not _PROGRAM.match(messages[index])):
                findings.append(_finding(rule, match, index, context, since_s))
                break
    return tuple(findings)


def _finding(rule: Rule, match: re.Match[str], index: int, context: Context, since_s: float | None) -> LogFinding:
    record = context.records[index]
    groups = match.groupdict()
    address = address_in(record.message, groups) or normal_address(record.device or "") or context.address(rule, index)
    if address is not None:
        address = known_function(address, context.functions)
    in_session = since_s is None or record.time_s is None or record.time_s > since_s
    xid = groups.get("xid")
    number = int(xid) if xid is not None and len(xid) < 10 else None
    meaning, action = rule.meaning, rule.action
    severity: Severity
    if rule.id == "nv.xid" and number is not None:
        policy = xid_policy(number)
        severity, meaning, action = (
            policy.severity(record.message, in_session=in_session),
            policy.meaning,
            policy.action,
        )
    elif rule.severity == "by-code":
        severity = "fail" if groups.get("fatality") == "Fatal" and in_session else "warn"
    else:
        severity = rule.severity if in_session or rule.earlier is None else rule.earlier
    if severity == "fail":
        severity = context.harmless(rule, match, index, address) or severity
        if number == 154 and not in_session and not context.is_last_xid(index, "154"):
            severity = "info"  # superseded by a later recommendation
    pid = (groups.get("pid") or "").strip("'\" ")
    name = (groups.get("name") or groups.get("comm") or "").strip("'\" ")
    return LogFinding(
        line=record.raw or record.message,
        number=record.number,
        rule=rule.id,
        severity=severity,
        vendor=_vendor(rule, record.message),
        pci_address=address,
        xid=number,
        pid=int(pid) if pid.isdecimal() and len(pid) < 10 else None,
        process=name if name and not name.startswith("<") else None,
        meaning=meaning,
        action=action,
        time_s=record.time_s,
        wall_s=record.wall_s,
    )


def _vendor(rule: Rule, message: str) -> str:
    if rule.vendor != "any":
        return rule.vendor
    match = _VENDOR.search(message)
    if match is None:
        return "any"
    return "nvidia" if match[1] else "amd" if match[2] else "intel"
