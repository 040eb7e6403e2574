"""The judgement of a saved kernel log as `gpucoexist doctor --kernel-log` prints it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.kernellog.classify import LogFinding, classify
from pytest_gpucoexist.kernellog.parse import parse_log
from pytest_gpucoexist.kernellog.sieve import blocks_of, sifted

if TYPE_CHECKING:
    from typing import BinaryIO

__all__ = ["findings_in", "judge_file", "judge_text"]

_WHOLE = 16 << 20
"""Bytes of a log that is held in memory as a whole: more than a kernel's buffer and a journal's boot have."""

_FIELDS = ("line", "rule", "severity", "vendor", "pci_address", "xid", "meaning", "action")


def findings_in(text: str) -> tuple[LogFinding, ...]:
    """Return what a saved log holds, judged as if it had just happened."""
    return classify(parse_log(text))


def judge_text(text: str) -> dict[str, list[dict[str, Any]]]:
    """Return the JSON object of a saved log: `{"findings": [{"line", "rule", "severity", …}, …]}`.

    `line` is as it was pasted, without its line end (of `dmesg --json`, the message). Never raises, whatever the text.
    """
    return {"findings": _listed(findings_in(text))}


def judge_file(file: BinaryIO) -> dict[str, Any] | None:
    """Return what `judge_text` does, of a file of any size; None when it is blank.

    Bytes that are no UTF-8 are kept as what they stand for. `left_out` counts the lines of a large log that are like
    thousands of others in the list. Raises OSError.
    """
    head = file.read(_WHOLE)
    more = file.read(1)
    if not more:
        return judge_text(head.decode("utf-8", "replace")) if head.strip() else None
    kept = sifted(blocks_of(file, head + more))
    judged: dict[str, Any] = {"findings": _listed(classify(kept.records))}
    return {**judged, "left_out": kept.left_out} if kept.left_out else judged


def _listed(findings: tuple[LogFinding, ...]) -> list[dict[str, Any]]:
    return [{name: getattr(found, name) for name in _FIELDS} for found in findings]
