"""What a run left: who held which device when. From it the span, the set-ups, and whether anybody was cheated."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

__all__ = ["Hold", "Run", "read_holds", "seconds_held", "wrong"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """From `begin` to `end` (seconds of CLOCK_MONOTONIC). `memory_gib` None: whole devices.

    `kind`: `test`, `module` (a model on its device), `setup` (a model being loaded), `process` (of one test).
    """

    kind: str
    who: str
    begin: float
    end: float
    devices: tuple[str, ...]
    memory_gib: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of a suite. Seconds: until the first grant, from there to the last release, from there to the end."""

    start_up_s: float
    span_s: float
    shut_down_s: float
    setups: int
    holds: tuple[Hold, ...]


def read_holds(folder: Path) -> tuple[Hold, ...]:
    """Read what all processes of a run wrote."""
    lines = [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]
    return tuple(
        Hold(kind=kind, who=who, begin=begin, end=end, devices=tuple(devices), memory_gib=memory)
        for kind, who, begin, end, devices, memory in lines
    )


def seconds_held(holds: Iterable[Hold]) -> dict[str, float]:
    """Return how long each test took, set-up and teardown included."""
    return {hold.who: hold.end - hold.begin for hold in holds if hold.kind == "test"}


def wrong(holds: tuple[Hold, ...], tests: Iterable[str], memory_gib: Mapping[str, float]) -> list[str]:
    """Say what a run did wrong: tests lost or run twice, and devices that had more than they can hold."""
    ran = Counter(hold.who for hold in holds if hold.kind == "test")
    found = [f"{test} ran {ran[test]} times" for test in tests if ran[test] != 1]
    changes: dict[str, list[tuple[float, int, float, str]]] = defaultdict(list)
    for hold in holds:
        for key in hold.devices if hold.kind in {"test", "module"} else ():
            size = memory_gib[key] if hold.memory_gib is None else hold.memory_gib
            changes[key] += [(hold.begin, 1, size, hold.who), (hold.end, 0, -size, hold.who)]
    for key, steps in changes.items():
        used = 0.0
        for moment, _, size, who in sorted(steps):
            used += size
            if used > memory_gib[key] + 1e-6:
                found.append(f"{key} had {used:g} of {memory_gib[key]:g} GiB at {moment:.3f} with {who}")
    return found
