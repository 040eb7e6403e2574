"""How often an error came in the worst minute."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpucoexist.kernellog.classify import LogFinding

__all__ = ["most_per_minute"]

_WINDOW_S = 60.0
# drivers/pci/pcie/aer.c prints for one error: that a message was received, then what it was; firmware-first systems
# (ghes) print several lines with a prefix.
_FORMS = (re.compile(r"\breceived\b"), re.compile(r"PCIe Bus Error"), re.compile(r"aer_layer"))


def most_per_minute(lines: Sequence[tuple[LogFinding, str]]) -> int:
    """Return the largest number of errors within a minute. Without times all count as of one minute.

    One error prints lines of several forms: the most frequent form tells how many errors there were.
    """
    times: list[list[float]] = [[] for _ in _FORMS]
    for line, message in lines:
        for form, found in zip(_FORMS, times, strict=False):
            if form.search(message) is not None:
                found.append(line.time_s if line.time_s is not None else -1.0)
    return max(map(_most, times))


def _most(times: list[float]) -> int:
    times = sorted(times)
    start = most = 0
    for index, time in enumerate(times):
        while time - times[start] >= _WINDOW_S:
            start += 1
        most = max(most, index - start + 1)
    return most
