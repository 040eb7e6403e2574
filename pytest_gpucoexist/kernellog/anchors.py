"""Find the few lines of a log that a rule could match, without trying the rules on each line.

A log repeats itself but for its numbers. So the digits are taken out and what is left is looked at once, all of it in
one text: `str.find` costs microseconds there, where a regular expression per line and rule would cost seconds. The
rules promise that a line they match, without its digits, contains one of their anchors.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpucoexist.kernellog.rule import Rule

__all__ = ["Anchors"]

_NO_DIGITS = dict.fromkeys(map(ord, "0123456789"))


class Anchors:
    """The anchors of some rules, arranged for looking."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        """Arrange them once; the rules do not change."""
        self._rules = rules
        self._looked_for: dict[str, list[int]] = {}
        for position, rule in enumerate(rules):
            for anchor in rule.anchors:
                self._looked_for.setdefault(anchor.translate(_NO_DIGITS), []).append(position)

    def candidates(self, messages: Sequence[str]) -> dict[int, list[int]]:
        """Return, per index of a message, the positions of the rules that may match it, both in order."""
        shapes = "\n".join(messages).translate(_NO_DIGITS).split("\n")
        if len(shapes) != len(messages):  # a message of several lines
            shapes = [message.translate(_NO_DIGITS).replace("\n", " ") for message in messages]
        possible = self._by_shape(list(dict.fromkeys(shapes)))
        return {index: possible[shape] for index, shape in enumerate(shapes) if shape in possible}

    def _by_shape(self, shapes: list[str]) -> dict[str, list[int]]:
        text = "\n".join(shapes)
        starts = [0, *accumulate(len(shape) + 1 for shape in shapes)]
        found: dict[int, set[int]] = {}
        for looked_for, positions in self._looked_for.items():
            at = text.find(looked_for)
            while at >= 0:
                index = bisect_right(starts, at) - 1
                found.setdefault(index, set()).update(positions)
                at = text.find(looked_for, starts[index + 1])
        return {shapes[index]: sorted(positions) for index, positions in found.items()}
