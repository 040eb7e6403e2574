"""The values that marks take, checked one by one. Every error says what was found and what would be right."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal

from pytest_gpucoexist.errors import RequirementError
from pytest_gpucoexist.model.identity import VENDORS, Vendor
from pytest_gpucoexist.model.versions import Condition, parse_condition

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["KEYWORDS", "arch_vendor", "check_arguments", "format_bytes", "parse_memory"]

_UNITS = {
    "b": 1,
    **{f"{prefix}b": 1000**power for power, prefix in enumerate("kmgtp", 1)},
    **{f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgtp", 1)},
}
_MEMORY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*")
_CAPABILITY = re.compile(r"\s*(?:(?:[<>=!]=|[<>])\s*)?\d+(?:\.\d+)?\s*")


def parse_memory(value: object) -> int:
    """Bytes from a number of bytes or a text with a unit (`"6 GiB"`, `"500 MB"`). Raises RequirementError."""
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    if isinstance(value, str) and (match := _MEMORY.fullmatch(value)):
        factor = _UNITS.get(match[2].lower())
        if factor is not None and float(match[1]) > 0:
            return int(float(match[1]) * factor)
    raise RequirementError(
        f'memory={value!r} is no amount of memory; write bytes as a whole number or a text such as "6 GiB"'
    )


def format_bytes(count: int) -> str:
    """Write an amount in the largest binary unit that keeps it readable: `8 GiB`, `1.5 GiB`, `512 MiB`."""
    amount, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{amount:.1f}".removesuffix(".0") + f" {unit}"


def arch_vendor(pattern: str) -> Vendor | None:
    """Whose architecture a pattern speaks of: a compute capability is NVIDIA's, a gfx name AMD's.

    gfx90a answers a query for its capability with (9, 0): without the vendor such numbers mean nothing.
    """
    if pattern.lower().startswith("gfx"):
        return "amd"
    if all(_CAPABILITY.fullmatch(part) for part in pattern.split(",")):
        return "nvidia"
    return None


def _texts(name: str, value: object) -> tuple[str, ...]:
    values = value if isinstance(value, (tuple, list, set, frozenset)) else (value,)
    texts = tuple(sorted(values, key=str) if isinstance(values, (set, frozenset)) else values)
    for item in texts:
        if not isinstance(item, str) or not item.strip():
            raise RequirementError(f"{name}={value!r} must be a text or a sequence of texts")
    return texts


def _vendor(value: object) -> str | None:
    if value is None or value in VENDORS[:3]:
        return value
    raise RequirementError(f"vendor={value!r} is unknown; the vendors are {', '.join(map(repr, VENDORS[:3]))}")


def _vendors(value: object) -> tuple[str, ...]:
    texts = _texts("vendors", value)
    for item in texts:
        _vendor(item)
    if len(set(texts)) != len(texts) or len(texts) < 2:
        raise RequirementError(f"vendors={value!r} must name two or three different vendors")
    return texts


def _count(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    raise RequirementError(f"count={value!r} must be a whole number from 1")


def _arch(value: object) -> tuple[str, ...]:
    texts = _texts("arch", value)
    if len({arch_vendor(text) for text in texts}) > 1:
        raise RequirementError(f"arch={value!r} mixes architectures of several vendors")
    return tuple(text.strip() for text in texts)


def _flag(name: str) -> Callable[[object], bool]:
    def check(value: object) -> bool:
        if isinstance(value, bool):
            return value
        raise RequirementError(f"{name}={value!r} must be True or False")

    return check


def _conditions(what: Literal["runtime", "framework"]) -> Callable[[object], tuple[Condition, ...]]:
    def check(value: object) -> tuple[Condition, ...]:
        found = tuple(parse_condition(text, what=what) for text in _texts(what, value))
        if what == "framework" and any(condition.name is None for condition in found):
            raise RequirementError(f'framework={value!r} names no framework; write for example "torch>=2.4"')
        return found

    return check


def _driver(value: object) -> Condition:
    if not isinstance(value, str):
        raise RequirementError(f'driver={value!r} must be a text such as ">=535" or "nvidia>=535"')
    return parse_condition(value, what="driver")


_CHECKS: dict[str, Callable[[object], Any]] = {
    "vendor": _vendor,
    "vendors": _vendors,
    "count": _count,
    "memory": parse_memory,
    "arch": _arch,
    "driver": _driver,
    "runtime": _conditions("runtime"),
    "framework": _conditions("framework"),
    "features": lambda value: _texts("features", value),
    "exclusive": _flag("exclusive"),
    "same_node": _flag("same_node"),
}

_COMMON = tuple(name for name in _CHECKS if name not in {"vendor", "vendors"})

KEYWORDS: Mapping[str, tuple[str, ...]] = {
    "gpu": ("vendor", *_COMMON),
    "cuda": _COMMON,
    "rocm": _COMMON,
    "cross_vendor": ("vendors", *_COMMON),
}
"""The marks and the keywords that each of them takes."""

_NONE_IS_DEFAULT = {"vendor", "memory", "arch", "driver", "runtime", "framework"}


def check_arguments(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Check what was written in one mark and return the values parsed. Raises RequirementError."""
    valid = ", ".join(KEYWORDS[name])
    if args:
        given = ", ".join(map(repr, args))
        raise RequirementError(f"{name}({given}) takes keywords only, and these are: {valid}")
    values: dict[str, Any] = {}
    for key, value in kwargs.items():
        if key not in KEYWORDS[name]:
            raise RequirementError(f"{name}() has no keyword {key!r}; valid keywords: {valid}")
        if value is None and key in _NONE_IS_DEFAULT:
            values[key] = None
            continue
        try:
            values[key] = _CHECKS[key](value)
        except RequirementError as error:
            raise RequirementError(f"{name}(): {error}; valid keywords: {valid}") from None
    return values
