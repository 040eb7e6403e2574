"""What one runtime makes of one visibility list, and the number parsers of C that the runtimes use.

Sources of the rules, by runtime: CUDA's programming guide and torch's imitation of it (`torch/cuda/__init__.py`),
ROCR's `amd_filter_device.cpp`, clr's `rocdevice.cpp`, NEO's `execution_environment.cpp`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Selection", "leading_integer", "whole_integer"]

_WHOLE = re.compile(r"\s*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The devices that a list leaves, in the runtime's order.

    `remark` says where reading stopped early or what is not documented; `throws` that the runtime fails to start.
    """

    devices: tuple[str, ...] = ()
    remark: str | None = None
    throws: bool = False


def leading_integer(text: str) -> int:
    """Read the decimal number that `text` starts with, else -1, as CUDA does (`1gpu2` is 1, `0x1` is 0).

    White space around is ignored. torch calls this `_strtoul`.
    """
    match = re.match(r"[+-]?\d+", text.strip(), re.ASCII)
    return int(match.group()) if match else -1


def whole_integer(text: str) -> tuple[int, str] | None:
    """Read a number as `strtol(text, &end, 0)` does: decimal, 0-octal or 0x-hexadecimal.

    Returns the number and what follows it, or None when there is no number at all. `08` is 0 followed by `8`.
    """
    match = _WHOLE.match(text)
    if match is None:
        return None
    sign, digits = match.groups()
    if digits[:2].lower() == "0x":
        number = int(digits, 16)
    elif digits.startswith("0"):
        number = int(digits, 8)
    else:
        number = int(digits)
    return (-number if sign == "-" else number), text[match.end() :]
