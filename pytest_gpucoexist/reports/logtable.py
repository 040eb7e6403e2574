"""What a saved kernel log says, for people: `gpucoexist doctor --kernel-log`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.reports.layout import bold
from pytest_gpucoexist.reports.screen import PLAIN, Screen
from pytest_gpucoexist.reports.verdicts import wrapped
from pytest_gpucoexist.reports.words import plural

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["log_text"]

_STATUS = {"fail": "FAIL", "warn": "WARN", "info": "INFO"}


def log_text(findings: Sequence[Mapping[str, Any]], screen: Screen = PLAIN, *, left_out: int = 0) -> str:
    """Write the findings of a log, the gravest first: rule, device, meaning, the line itself, what to do.

    Each finding has the keys of `--json`; equal ones are counted. Informative ones are only counted. `left_out` lines
    are like others in the list, of which there are thousands.
    """
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for finding in findings:
        key = tuple(finding[name] for name in ("severity", "rule", "pci_address", "xid", "meaning"))
        groups.setdefault(key, []).append(finding)
    lines: list[str] = []
    for severity in ("fail", "warn"):
        for key, group in groups.items():
            if key[0] == severity:
                lines += _group(group, screen)
    counts = {name: sum(finding["severity"] == name for finding in findings) for name in _STATUS}
    end = f"{plural(counts['fail'], 'failure')}, {plural(counts['warn'], 'warning')}, {counts['info']} informative"
    if left_out:
        end += f"; {left_out} more like those that came thousands of times"
    style = "bold red" if counts["fail"] else "bold yellow" if counts["warn"] else "bold green"
    return "\n".join([*lines, *([""] if lines else []), bold(end, screen, style)])


def _group(group: Sequence[Mapping[str, Any]], screen: Screen) -> list[str]:
    first = group[0]
    head = f"{_STATUS[first['severity']]:<7} {first['rule']}"
    if first["xid"] is not None:
        head += f" {first['xid']}"
    if first["pci_address"] is not None:
        head += f"  {first['pci_address']}"
    if len(group) > 1:
        head += f"  {len(group)} times"
    body = "        "
    lines = wrapped(head, screen, "", body)
    lines += wrapped(first["meaning"], screen, body, body)
    lines += wrapped(first["line"], screen, body + "- ", body + "  ", style="dim")
    if first["action"]:
        lines += wrapped(f"→ {first['action']}", screen, body, body + "  ")
    return lines
