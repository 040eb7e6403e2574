"""Keeps who had which device when, as the workers tell it, and makes the timeline of a run of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpucoexist.model.timeline import DeviceTime, Held, Timeline, Waited

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_gpucoexist.placement.engine.values import Wait

__all__ = ["Hold", "timeline_of"]

_SHOWN_WAITS = 100
"""Waits that a timeline keeps, the longest: of 20,000 tests nobody reads all, and a report shall not double."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """A test that had devices; times are of the controller's clock. `memory_bytes` are shares by key."""

    test: int
    worker: str
    start_s: float
    end_s: float
    keys: tuple[str, ...]
    memory_bytes: Mapping[str, int]


def timeline_of(
    holds: Sequence[Hold], waits: Iterable[Wait], ids: Sequence[str], devices: Iterable[str]
) -> Timeline | None:
    """Return the timeline of a run; None when no device was given. `devices` are all that the plan knew."""
    if not holds:
        return None
    begin_s = min(hold.start_s for hold in holds)
    by_device: dict[str, list[Held]] = {key: [] for key in devices}
    for hold in holds:
        for key in hold.keys:
            held = Held(
                nodeid=ids[hold.test],
                worker=hold.worker,
                start_s=_rounded(hold.start_s - begin_s),
                end_s=_rounded(hold.end_s - begin_s),
                memory_bytes=hold.memory_bytes.get(key),
            )
            by_device.setdefault(key, []).append(held)
    longest = sorted(waits, key=lambda wait: wait.since_s - wait.until_s)[:_SHOWN_WAITS]
    return Timeline(
        length_s=_rounded(max(hold.end_s for hold in holds) - begin_s),
        workers=len({hold.worker for hold in holds}),
        devices=tuple(
            DeviceTime(
                key=key, busy_s=_rounded(_covered(held)), held=tuple(sorted(held, key=lambda each: each.start_s))
            )
            for key, held in by_device.items()
        ),
        waits=tuple(
            Waited(
                nodeid=ids[wait.test],
                since_s=_rounded(max(0.0, wait.since_s - begin_s)),
                until_s=_rounded(max(0.0, wait.until_s - begin_s)),
                holders=tuple(dict.fromkeys(ids[test] for _, test in wait.holders)),
            )
            for wait in longest
        ),
    )


def _covered(held: Iterable[Held]) -> float:
    """Seconds in which at least one of them lasts."""
    total = reached = 0.0
    for each in sorted(held, key=lambda each: each.start_s):
        total += max(0.0, each.end_s - max(reached, each.start_s))
        reached = max(reached, each.end_s)
    return total


def _rounded(seconds: float) -> float:
    return round(seconds, 6)
