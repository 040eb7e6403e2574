"""The judgement of a saved kernel log as `gpucoexist doctor --kernel-log` prints it."""

from __future__ import annotations

from typing import Any

from pytest_gpucoexist.kernellog.classify import LogFinding, classify
from pytest_gpucoexist.kernellog.parse import parse_log

__all__ = ["findings_in", "judge_text"]

_FIELDS = ("line", "rule", "severity", "vendor", "pci_address", "xid", "meaning", "action")


def findings_in(text: str) -> tuple[LogFinding, ...]:
    """Return what a saved log holds, judged as if it had just happened."""
    return classify(parse_log(text))


def judge_text(text: str) -> dict[str, list[dict[str, Any]]]:
    """Return the JSON object of a saved log: `{"findings": [{"line", "rule", "severity", …}, …]}`.

    `line` is as it was pasted, without its line end (of `dmesg --json`, the message). Never raises, whatever the text.
    """
    return {"findings": [{name: getattr(found, name) for name in _FIELDS} for found in findings_in(text)]}
