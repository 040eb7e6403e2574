"""What the lines around a line add to it: the device that it does not name, and whether it came right later."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytest_gpucoexist.kernellog.places import address_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pytest_gpucoexist.kernellog.records import Record
    from pytest_gpucoexist.kernellog.rule import Rule
    from pytest_gpucoexist.model.verdicts import Severity

__all__ = ["Context"]

# A message of several lines is one printk, so a second is plenty; a firmware's error record has some thirty lines.
_SECONDS_AROUND = 1.0
_LINES_AROUND = 6
_LINES_OF_A_RECORD = 40

_UUID = re.compile(r"\bGPU-[0-9a-f]{8}-[0-9a-f-]{27}\b")
_MAPPED = re.compile(r"GPU at (?:PCI:)?([0-9a-fA-F:.]+): (GPU-[0-9a-f-]{36})\b")
_BAR = re.compile(r"\bBAR (\d+)")

# How NVIDIA's messages of several lines begin (or, of BARs, go on) with the GPU's address.
_NAMES_ALL = re.compile(r"NVRM: (?:The NVIDIA GPU|BAR\d+ is) ")

_APEI_BLOCK = re.compile(r"\{\d+\}\[Hardware Error\]:")
_APEI_DEVICE = re.compile(r"\bdevice_id: ")
# What is said beside a hang, a failed start or a fault; a healthy card beside a sick one says none of it.
_TROUBLE = re.compile(r"reset|IP State|coredump|timeout|[Ff]ail|fault|FAULT|lost|[Ff]atal|finishing device|wedged|HANG")
_DRIVERS = {"amd": r"amdgpu", "intel": r"(?:i915|xe)"}

_NO_NAMES: Mapping[str, str | None] = {}


class Context:
    """A log, the PCI functions that exist on its machine, and the PCI addresses of GPU UUIDs."""

    def __init__(self, records: Sequence[Record], functions: frozenset[str], uuids: Mapping[str, str]) -> None:
        """Keep them; what is derived from the whole log is derived once, when a line first needs it."""
        self.records = records
        self.functions = functions
        self._uuids = uuids
        self._mapped: dict[str, str] | None = None
        self._with: dict[str, list[tuple[int, str]]] = {}
        self._last: dict[tuple[str, str], int] = {}

    def address(self, rule: Rule, index: int) -> str | None:
        """Find the device of a line that names none: by UUID, else in the other lines of the same story."""
        message = self.records[index].message
        uuid = _UUID.search(message)
        if uuid is not None:
            return self._uuids.get(uuid[0]) or self._printed_uuids().get(uuid[0])
        if rule.id == "sys.apei_pcie":
            return self._of_firmware_record(index)
        if message.startswith("NVRM") and rule.severity != "info":
            return self._of_same_message(index)
        if rule.vendor in _DRIVERS and rule.severity != "info":
            return self._of_driver_near(rule.vendor, index)
        return None

    def _printed_uuids(self) -> dict[str, str]:
        """Read the lines "NVRM: GPU at PCI:0000:9b:00: GPU-…" that the driver prints before its first Xid."""
        if self._mapped is None:
            self._mapped = {}
            for record in self.records:
                match = _MAPPED.search(record.message)
                address = None if match is None else address_in(record.message, {"bdf": match[1]})
                if match is not None and address is not None:
                    self._mapped[match[2]] = address
        return self._mapped

    def _of_same_message(self, index: int) -> str | None:
        """Take the GPU that the nearest line of the message names; among others of that second, a single one."""
        for other in [*self._near(index, -1, "NVRM: "), *self._near(index, 1, "NVRM: ")]:
            if _NAMES_ALL.match(other.message):  # whatever other drivers said in between
                address = address_in(other.message, _NO_NAMES)
                if address is not None:
                    return address
        beside = [*self._near(index, -1, "NVRM: ", stop=True), *self._near(index, 1, "NVRM: ", stop=True)]
        return _single(other for other in beside if _stamped(other))

    def _of_driver_near(self, vendor: str, index: int) -> str | None:
        """Take the device whose trouble the driver tells of around a `[drm:…]` line, when it is a single one."""
        if not _stamped(self.records[index]):
            return None
        prefix = re.compile(_DRIVERS[vendor] + r" [0-9a-f]{4,8}:")
        near = [*self._near(index, -1), *self._near(index, 1)]
        return _single(other for other in near if prefix.match(other.message) and _TROUBLE.search(other.message))

    def _near(self, index: int, step: int, prefix: str = "", *, stop: bool = False) -> Iterator[Record]:
        """Go up or down from a line over those that start so, of its level and within a second.

        Other lines count as steps and are passed over, or end the way (`stop`).
        """
        here = self.records[index]
        for place in range(index + step, index + step * (_LINES_AROUND + 1), step):
            if not 0 <= place < len(self.records):
                return
            other = self.records[place]
            if _apart(here, other):
                return
            if other.message.startswith(prefix) and (not prefix or other.level == here.level):
                yield other
            elif stop:
                return

    def _of_firmware_record(self, index: int) -> str | None:
        """Take the `device_id` of the block of lines that share a number: "{1}[Hardware Error]:"."""
        block = _APEI_BLOCK.match(self.records[index].message)
        if block is None:
            return None
        for record in self.records[index + 1 : index + _LINES_OF_A_RECORD]:
            if record.message.startswith(block[0]) and _APEI_DEVICE.search(record.message):
                return address_in(record.message, _NO_NAMES)
        return None

    def is_last_xid(self, index: int, number: str) -> bool:
        """Tell whether no later line of the log has this code for this device."""
        here = self.records[index].message
        device = here[here.find("(") : here.find(")")]
        later = re.compile(rf"{re.escape(device)}\): {number},")
        return not self._later(index, f"): {number},", later)

    def harmless(self, rule: Rule, match: re.Match[str], index: int, address: str | None) -> Severity | None:
        """Return the lower severity of a failure that did no harm, or None."""
        if rule.id == "pci.bar_mem":
            return self._window(match, index, address)
        if rule.id == "fw.missing" and self._driver_came_up(match, index, address):
            return "warn"
        if rule.id == "pci.d3cold" and address is not None and match[0].startswith("not ready"):
            woke = re.compile(rf"{re.escape(address)}: ready \d+ms after")
            return "warn" if self._later(index, ": ready ", woke) else None
        if rule.id == "pci.d3cold" and re.search(r"power state(?: from D0|, currently in D0)", match.string):
            return "warn"  # it stays awake
        return None

    def _window(self, match: re.Match[str], index: int, address: str | None) -> Severity | None:
        bar = _BAR.search(match[0])
        number = -1 if bar is None else int(bar[1])
        if 6 <= number <= 12:
            return "info"  # 6 is the option ROM, 7 to 12 are virtual functions' windows (kernels before 6.9)
        if match["dev"].strip() not in {"pci", "pcieport"} or address is None or address[-1] in "123":
            return "warn"  # a driver tried to enlarge it and keeps the small one; or a card's audio, USB, …
        assigned = re.compile(rf"{re.escape(address)}: BAR {number}(?:: assigned \[mem| \[mem [^\]]*\]: assigned)")
        return "warn" if self._later(index, f"{address}: BAR ", assigned) else None

    def _driver_came_up(self, match: re.Match[str], index: int, address: str | None) -> bool:
        """Tell whether the driver registered its device in spite of the file: some are optional, or tried first."""
        driver = match["fw"].partition("/")[0]
        up = re.compile(rf"Initialized {driver} .*\bfor {re.escape(address or '')}")
        return self._later(index, f" for {address or ''}", up)

    def _later(self, index: int, text: str, pattern: re.Pattern[str]) -> bool:
        """Search the lines after one that contain a text; which is the last of them is found out once per log."""
        if text not in self._with:
            messages = ((place, record.message) for place, record in enumerate(self.records))
            self._with[text] = [(place, message) for place, message in messages if text in message]
        key = text, pattern.pattern
        if key not in self._last:
            found = (place for place, message in reversed(self._with[text]) if pattern.search(message))
            self._last[key] = next(found, -1)
        return self._last[key] > index


def _stamped(record: Record) -> bool:
    return record.time_s is not None or record.wall_s is not None


def _apart(one: Record, other: Record) -> bool:
    for first, second in ((one.time_s, other.time_s), (one.wall_s, other.wall_s)):
        if first is not None and second is not None:
            return abs(first - second) > _SECONDS_AROUND
    return False


def _single(records: Iterator[Record]) -> str | None:
    found = {address_in(record.message, _NO_NAMES) for record in records} - {None}
    return found.pop() if len(found) == 1 else None
