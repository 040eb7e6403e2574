"""One entry per trouble: repetitions folded, and follow-ups of an Xid left out.

`classify` keeps every line; a person wants to read each story once. Spans: amd/node-scraper folds events within 60 s;
the channels of dying programs are cleaned up (Xid 45) within seconds of the error that killed them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpucoexist.kernellog.classify import LogFinding

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Story", "grouped"]

_SAME_S = 60.0
_PARENT_S = 10.0

# "Ch 00000001 caused by previous Xid 149"
_CAUSE = re.compile(r"caused by previous Xid (\d+)")

# What the driver says besides Xid 79, of the same loss.
_OF_A_LOST_GPU = {"nv.fallen_off_bus", "nv.attach_sanity"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """The first line of a trouble, and how often it came (`count`) up to the last (`last_time_s`, boot clock)."""

    finding: LogFinding
    count: int
    last_time_s: float | None


def grouped(findings: Iterable[LogFinding]) -> tuple[Story, ...]:
    """Fold findings of the same rule, device, code and process within 60 s of the one before; keep their order.

    An Xid 45 goes where the Xid that it names as its cause, or any other Xid of the device up to 10 s before, is
    there; lines about a GPU that is gone go where its Xid 79 is. Without time stamps, order alone decides.
    """
    stories: list[Story] = []
    latest: dict[tuple[object, ...], int] = {}
    for finding in findings:
        if _follows(finding, stories):
            continue
        key = (finding.rule, finding.pci_address, finding.xid, finding.pid, finding.severity)
        place = latest.get(key)
        if place is not None and _within(stories[place].last_time_s, finding.time_s, _SAME_S):
            story = stories[place]
            last = story.last_time_s if finding.time_s is None else finding.time_s
            stories[place] = Story(finding=story.finding, count=story.count + 1, last_time_s=last)
            continue
        latest[key] = len(stories)
        stories.append(Story(finding=finding, count=1, last_time_s=finding.time_s))
    return tuple(stories)


def _follows(finding: LogFinding, stories: list[Story]) -> bool:
    if finding.rule == "nv.xid" and finding.xid == 45:
        cause = _CAUSE.search(finding.line)
        wanted = None if cause is None else int(cause[1])
        return any(_is_parent(story, finding, wanted) for story in stories)
    if finding.rule in _OF_A_LOST_GPU:
        return any(_is_parent(story, finding, 79) for story in stories)
    return False


def _is_parent(story: Story, finding: LogFinding, wanted: int | None) -> bool:
    first = story.finding
    if first.rule != "nv.xid" or first.pci_address != finding.pci_address:
        return False
    if wanted is not None:
        return first.xid == wanted
    return first.xid != 45 and _within(story.last_time_s, finding.time_s, _PARENT_S)


def _within(earlier: float | None, later: float | None, seconds: float) -> bool:
    return earlier is None or later is None or 0 <= later - earlier <= seconds
