"""The judgement of a saved kernel log as `gpucoexist doctor --kernel-log` prints it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.kernellog.classify import LogFinding, classify
from pytest_gpucoexist.kernellog.parse import parse_log

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["exit_code", "findings_in", "judge_text", "table_rows"]

_FIELDS = ("line", "rule", "severity", "vendor", "pci_address", "xid", "meaning", "action")


def findings_in(text: str) -> tuple[LogFinding, ...]:
    """Return what a saved log holds, judged as if it had just happened."""
    return classify(parse_log(text))


def judge_text(text: str) -> dict[str, list[dict[str, Any]]]:
    """Return the JSON object of a saved log: `{"findings": [{"line", "rule", "severity", …}, …]}`."""
    return {"findings": [{name: getattr(found, name) for name in _FIELDS} for found in findings_in(text)]}


def exit_code(text: str, findings: Sequence[LogFinding]) -> int:
    """Return 1 when something failed, 2 when there was nothing to judge, else 0."""
    if not text.strip("\0 \t\r\n"):
        return 2
    return 1 if any(found.severity == "fail" for found in findings) else 0


def table_rows(findings: Sequence[LogFinding]) -> list[tuple[str, str, str, str, str]]:
    """Return rows of severity, device, rule, meaning with action, and the line, in the order of the log."""
    return [
        (
            found.severity,
            found.pci_address or "",
            found.rule if found.rule != "nv.xid" else f"nv.xid {found.xid}",
            f"{found.meaning}: {found.action}" if found.action else found.meaning,
            found.line,
        )
        for found in findings
    ]
