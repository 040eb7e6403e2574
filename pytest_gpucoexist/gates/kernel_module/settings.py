"""Whether a module's parameter that some line asks for is the one that is in force."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.kernel_module.advice import rebuild_initramfs
from pytest_gpucoexist.model.verdicts import Evidence

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucoexist.gates.kernel_module.rules import Setting
    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.model.verdicts import Fix

__all__ = ["Difference", "differences", "not_in_force", "same_setting"]

_YES, _NO = frozenset({"y", "yes", "1", "on", "true"}), frozenset({"n", "no", "0", "off", "false"})
_WORD = 1 << 32

Difference = tuple[str, Evidence]
"""Words for a person, and what was found where."""


def same_setting(asked: str, actual: str) -> bool:
    """Whether two spellings are one value: numbers in any base, 32 bits with or without sign, and booleans."""
    asked, actual = asked.strip().strip('"'), actual.strip().strip('"')
    if asked == actual:
        return True
    numbers = [_number(text) for text in (asked, actual)]
    if None not in numbers:
        return (numbers[0] or 0) % _WORD == (numbers[1] or 0) % _WORD
    pair = asked.lower(), actual.lower()
    return all(text in _YES for text in pair) or all(text in _NO for text in pair)


def _number(text: str) -> int | None:
    if len(text) > 20:
        return None
    try:
        # As kstrtoint with base 0: a leading zero is octal (NVreg_DeviceFileMode=0660), which Python does not take.
        return int(text, 8) if re.fullmatch(r"[+-]?0[0-7]+", text, re.ASCII) else int(text, 0)
    except ValueError:
        return None


def differences(asked: Mapping[str, Setting], actual: Mapping[str, str], source: str) -> list[Difference]:
    """Return the parameters that are asked for and have another value; what `actual` does not tell is left out."""
    return [
        (
            f"{name} is {actual[name]}, and {setting.where} asks for {setting.value}",
            Evidence(source=f"{source}: {name}", found=actual[name], expected=f"{setting.value} ({setting.where})"),
        )
        for name, setting in asked.items()
        if name in actual and not same_setting(setting.value, actual[name])
    ]


def not_in_force(subject: Subject) -> tuple[Fix, ...]:
    """Return what makes a line of modprobe.d count for a driver that the initramfs loads."""
    return (rebuild_initramfs(subject),)
