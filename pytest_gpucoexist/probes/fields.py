"""Choosing between readings of one field, and telling when two of them disagree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.model.machine import Conflict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpucoexist.model.readings import Reading

__all__ = ["choose", "disagreement"]

# Where sources may differ without either being wrong: they change between two reads, are worded differently, or say
# different parts of the same thing.
_NOT_COMPARED = {
    "boot_vga",
    "drm",
    "hwmon",
    "kfd",
    "kind",
    "link.current_speed_gtps",
    "link.current_width",
    "local_cpulist",
    "memory_free_bytes",
    "name",
    "processes",
    "runtime_status",
    "upstream_links",
}

# Drivers set some memory aside, and libraries round to MiB.
_MEMORY_TOLERANCE = 0.02

_TELLING = {"broken": 0, "denied": 1, "unsupported": 2, "absent": 3}


def choose(readings: Sequence[Reading]) -> Reading:
    """Take the first that has a value; else the failure that says most (broken, denied, unsupported, absent)."""
    for reading in readings:
        if reading.status == "ok":
            return reading
    return min(readings, key=lambda reading: _TELLING[reading.status])


def disagreement(subject: str, readings: Sequence[Reading]) -> Conflict | None:
    """Return a conflict that keeps every claim when the values of one field are not all the same."""
    told = [reading for reading in readings if reading.status == "ok"]
    if len(told) < 2 or told[0].field in _NOT_COMPARED:
        return None
    if all(_same(told[0].field, told[0].value, other.value) for other in told[1:]):
        return None
    field = told[0].field
    claims = {reading.source: _plain(reading.value) for reading in told}
    listed = "; ".join(f"{source} says {value}" for source, value in claims.items())
    return Conflict(subject=subject, kind=field, message=f"{field} of {subject}: {listed}", claims=claims)


def _same(field: str, first: Any, second: Any) -> bool:
    if field == "memory_total_bytes":
        return bool(abs(first - second) <= _MEMORY_TOLERANCE * max(first, second))
    if isinstance(first, str) and isinstance(second, str):
        return first.lower() == second.lower()
    return bool(first == second)


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, (str, int, float, bool)) else str(value)
