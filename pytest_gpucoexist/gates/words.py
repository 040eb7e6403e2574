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
