"""The ini keys of gates: which to ignore and why, their numbers, what an unread gate comes to."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytest_gpucoexist.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pytest

    from pytest_gpucoexist.gates.registry import Gate

__all__ = ["check_keys", "ignored", "limits_of", "matching_nothing", "unknown_fails"]


def check_keys(config: pytest.Config) -> None:
    """Check the form of the ini keys, for a controller of pytest-xdist: there it would fail every test, and no run.

    Raises UserError.
    """
    ignored(config.getini("gpu_gates_ignore"))
    for line in config.getini("gpu_gate_limits"):
        _limit(line)
    unknown_fails(config)


_IGNORE = re.compile(r"\s*(?P<pattern>[^\s:]+)\s*:\s*(?P<reason>\S.*?)\s*")
_LIMIT = re.compile(r"\s*(?P<gate>[a-z0-9_.]+)\.(?P<name>[a-z0-9_]+)\s*=\s*(?P<number>\S+)\s*")


def ignored(lines: Sequence[str]) -> dict[str, str]:
    """Return the reason for each pattern of `gpu_gates_ignore`. Raises UserError."""
    found = {}
    for line in lines:
        match = _IGNORE.fullmatch(line)
        if match is None:
            raise UserError(
                f"gpu_gates_ignore: {line.strip()!r} is not GATE: REASON, such as "
                "'pcie.width: the riser has eight lanes'; the reason is shown wherever the gate would have spoken"
            )
        found[match["pattern"]] = match["reason"]
    return found


def matching_nothing(ignore: Iterable[str], gates: Iterable[Gate]) -> list[str]:
    """Return the patterns that no gate matches, of any level."""
    if not ignore:
        return []
    from fnmatch import fnmatchcase

    ids = {gate.id for gate in gates} | _later_gates()
    return [pattern for pattern in ignore if not any(fnmatchcase(each, pattern) for each in ids)]


def limits_of(lines: Sequence[str], gates: dict[str, Gate]) -> dict[str, dict[str, float]]:
    """Return the numbers of `gpu_gate_limits` by gate and limit. Raises UserError."""
    found: dict[str, dict[str, float]] = {}
    for line in lines:
        name, limit, number = _limit(line)
        gate = gates.get(name)
        if gate is None:
            if name in _later_gates():
                continue
            raise UserError(f"gpu_gate_limits: there is no gate {name!r}; see gpucoexist doctor --list")
        if limit not in gate.limits:
            good = ", ".join(sorted(gate.limits)) or "none"
            raise UserError(f"gpu_gate_limits: {gate.id} has no limit {limit!r}; it has: {good}")
        found.setdefault(gate.id, {})[limit] = number
    return found


def _limit(line: str) -> tuple[str, str, float]:
    match = _LIMIT.fullmatch(line)
    number = _number(match["number"]) if match is not None else None
    if match is None or number is None:
        raise UserError(f"gpu_gate_limits: {line.strip()!r} is not GATE.LIMIT = NUMBER, such as dev.nofile.base = 1024")
    return match["gate"], match["name"], number


def _later_gates() -> set[str]:
    from pytest_gpucoexist.gates.catalogue import all_gates

    return {gate.id for gate in all_gates()}


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if abs(number) < float("inf") else None


def unknown_fails(config: pytest.Config) -> bool:
    """Whether `gpu_gate_unknown` says `fail`. Raises UserError."""
    value = config.getini("gpu_gate_unknown") or "warn"
    if value not in {"warn", "fail"}:
        raise UserError(f"gpu_gate_unknown: {value!r} is not one of warn, fail")
    return bool(value == "fail")
