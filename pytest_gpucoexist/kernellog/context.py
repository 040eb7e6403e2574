"""What the lines around a line add to it: the device that it does not name, and whether it came right later."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpucoexist.kernellog.places import address_in

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpucoexist.kernellog.records import Record
    from pytest_gpucoexist.kernellog.rule import Rule

__all__ = ["Context"]

# A message of several lines is one printk; what follows it later is another story.
_LINES_AROUND = 4
_SECONDS_AROUND = 1.0

_UUID = re.compile(r"\bGPU-[0-9a-f]{8}-[0-9a-f-]{27}\b")
_BAR = re.compile(r"\bBAR (\d+)")

_NO_NAMES: Mapping[str, str | None] = {}


@dataclass(frozen=True, slots=True, kw_only=False)
class Context:
    """A log, the PCI functions that exist on its machine, and the PCI addresses of GPU UUIDs."""

    records: Sequence[Record]
    functions: frozenset[str]
    uuids: Mapping[str, str]

    def address(self, rule: Rule, index: int) -> str | None:
        """Find the device of a line that names none: by UUID, else in the other lines of the same message.

        NVIDIA's messages of several lines name the GPU in the first: "NVRM: The NVIDIA GPU 0000:44:00.0".
        """
        uuid = _UUID.search(self.records[index].message)
        if uuid is not None and uuid[0] in self.uuids:
            return self.uuids[uuid[0]]
        if not self.records[index].message.startswith("NVRM: ") or rule.id == "nv.loaded":
            return None
        for other in (*self._same_message(index, -1), *self._same_message(index, 1)):
            address = address_in(other.message, _NO_NAMES)
            if address is not None:
                return address
        return None

    def _same_message(self, index: int, step: int) -> list[Record]:
        """Return the neighbours that start with `NVRM:` too, of the same level and within a second, nearest first."""
        here, found = self.records[index], []
        for place in range(index + step, index + step * (_LINES_AROUND + 1), step):
            if not 0 <= place < len(self.records):
                break
            other = self.records[place]
            if not other.message.startswith("NVRM: ") or other.level != here.level or _apart(here, other):
                break
            found.append(other)
        return found

    def made_good(self, rule: Rule, match: re.Match[str], index: int, address: str | None) -> bool:
        """Tell whether a failure did no harm, so that a warning is enough."""
        if rule.id == "pci.bar_mem":
            return self._window_is_spare(match, index, address)
        if rule.id == "fw.missing":
            return self._driver_came_up(match, index, address)
        return False

    def _window_is_spare(self, match: re.Match[str], index: int, address: str | None) -> bool:
        """A resize that a driver tried, a card's second functions, or a window that was assigned in a later attempt."""
        if match["dev"].strip() not in {"pci", "pcieport"}:
            return True
        if address is None:
            return False
        if address[-1] in "123":
            return True
        bar = _BAR.search(match[0])
        number = None if bar is None else bar[1]
        assigned = re.compile(rf"{re.escape(address)}: BAR {number}(?:: assigned \[mem| \[mem [^\]]*\]: assigned)")
        return any(assigned.search(record.message) for record in self.records[index + 1 :])

    def _driver_came_up(self, match: re.Match[str], index: int, address: str | None) -> bool:
        """Some files are optional or tried first under a newer name: the driver registers its device all the same."""
        driver = match["fw"].partition("/")[0]
        if driver not in {"amdgpu", "i915", "xe", "radeon"}:
            return False
        up = re.compile(rf"Initialized {driver} .*\bfor {re.escape(address or '')}")
        return any(up.search(record.message) for record in self.records[index + 1 :])


def _apart(one: Record, other: Record) -> bool:
    for first, second in ((one.time_s, other.time_s), (one.wall_s, other.wall_s)):
        if first is not None and second is not None:
            return abs(first - second) > _SECONDS_AROUND
    return False
