"""What a gate said, made safe: it quotes files and programs, and goes to terminals, XML and other processes."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_gpucoexist.gates.findings import Finding

__all__ = ["clean", "line", "lines"]

SENTENCE, QUOTED = 600, 4000
"""Characters kept of a reason, which every test that it takes down repeats; and of a quotation, such as a log."""

# Escape sequences would act on terminals, and the last two ranges turn the direction of text.
_WHITE = re.compile(r"[\t\n\u2028\u2029]+")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def clean(finding: Finding) -> Finding:
    """Return the finding with texts that are texts, printable, and not endless."""
    if _is_clean(finding):
        return finding
    return replace(
        finding,
        reason=line(finding.reason),
        devices=tuple(str(key) for key in finding.devices),
        evidence=tuple(
            replace(
                each,
                source=line(each.source),
                found=line(each.found, QUOTED),
                expected=None if each.expected is None else line(each.expected, QUOTED),
            )
            for each in finding.evidence
        ),
        action=None if finding.action is None else line(finding.action),
        fix=tuple(
            replace(
                each,
                path=None if each.path is None else line(each.path),
                lines=tuple(lines(one, SENTENCE) for one in each.lines),
            )
            for each in finding.fix
        ),
    )


def _is_clean(finding: Finding) -> bool:
    """Whether every text is as `line` would leave it, as nearly always: then nothing need be made anew."""
    if finding.fix or not _is_line(finding.reason, SENTENCE):
        return False
    if finding.action is not None and not _is_line(finding.action, SENTENCE):
        return False
    for each in finding.evidence:
        if not _is_line(each.source, SENTENCE) or not _is_line(each.found, QUOTED):
            return False
        if each.expected is not None and not _is_line(each.expected, QUOTED):
            return False
    return all(type(key) is str for key in finding.devices)


def _is_line(value: object, longest: int) -> bool:
    # A printable character is none that `lines` takes out, and of white space only the blank.
    return (
        type(value) is str
        and len(value) <= longest
        and value.isprintable()
        and "  " not in value
        and value[:1] != " " != value[-1:]
    )


def line(value: object, longest: int = SENTENCE) -> str:
    """Make one line of anything."""
    return _WHITE.sub(" ", lines(value, longest)).strip()


def lines(value: object, longest: int = QUOTED) -> str:
    """Make a text of anything: no control characters but tabs and line ends, nothing that UTF-8 cannot carry."""
    text = str(value)
    if len(text) > longest:
        text = f"{text[:longest]} … ({len(text) - longest:,} characters more)"
    text = _CONTROL.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
    return text.encode("utf-8", "replace").decode("utf-8")
