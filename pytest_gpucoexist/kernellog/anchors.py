"""Find the few lines of a log that a rule could match, without trying the rules on each line.

`str.find` over the whole log at once costs some 0.3 ms per text and 20,000 lines; a regular expression per line and rule
would cost seconds. The rules promise that a line they match contains one of their anchors.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpucoexist.kernellog.rule import Rule

__all__ = ["Anchors"]

# Rare texts that several anchors contain: one look for each of these finds the lines of all of them.
_SHARED = (
    "GPU", "failed", "reset", "rror", "robe", "emory", "SMU", "PSP", "AER", "DPC", "BAR ", "odule", "nable to", "MES",
    "ueue", "BUG", "NVML", "wedged", "BERT", "Correct", "ower state", "detected ", "timeout", " CTF", "protection",
)  # fmt: skip


class Anchors:
    """The anchors of some rules, arranged for looking."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        """Arrange them once; the rules do not change."""
        self._rules = rules
        self._looked_for: dict[str, list[int]] = {}
        for position, rule in enumerate(rules):
            texts = {rule.within} if rule.within else {_shared(anchor) for anchor in rule.anchors}
            for text in texts:
                self._looked_for.setdefault(text, []).append(position)

    def candidates(self, messages: Sequence[str]) -> dict[int, list[int]]:
        """Return, per index of a message, the positions of the rules that may match it, both in order."""
        text = "\n".join(messages)
        starts: list[int] = []
        found: dict[int, set[int]] = {}
        for looked_for, positions in self._looked_for.items():
            at = text.find(looked_for)
            while at >= 0:
                starts = starts or [0, *accumulate(len(message) + 1 for message in messages)]
                index = bisect_right(starts, at) - 1
                found.setdefault(index, set()).update(positions)
                at = text.find(looked_for, starts[index + 1])
        return {index: near for index in sorted(found) if (near := self._near(messages[index], found[index]))}

    def _near(self, message: str, positions: set[int]) -> list[int]:
        rules = self._rules
        return [place for place in sorted(positions) if any(anchor in message for anchor in rules[place].anchors)]


def _shared(anchor: str) -> str:
    return next((text for text in _SHARED if text in anchor), anchor)
