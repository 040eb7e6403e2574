"""Kernel logs that are JSON: `dmesg --json`, `journalctl -o json`, `json-pretty` and `json-seq`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.kernellog.records import Record
from pytest_gpucoexist.kernellog.stamps import LEVELS

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["read_json"]

_DECODER = json.JSONDecoder()
_BLANK = " \t\r\n\x1e\0"


def read_json(text: str) -> tuple[Record, ...] | None:
    """Return the records of a text that is JSON from start to end, or None when it is something else."""
    start = _next(text, 0)
    if text[start : start + 1] != "{":
        return None
    records: list[Record] = []
    line = 1 + text.count("\n", 0, start)
    while start < len(text):
        try:
            value, end = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            return None
        if not isinstance(value, dict):
            return None
        read = list(_from_object(value, line, text[start:end]))
        if not read and "__CURSOR" not in value:
            return None
        records += read
        following = _next(text, end)
        line += text.count("\n", start, following)
        start = following
    return tuple(records)


def _next(text: str, start: int) -> int:
    while start < len(text) and text[start] in _BLANK:
        start += 1
    return start


def _from_object(value: dict[str, Any], line: int, raw: str) -> Iterator[Record]:
    entries = value.get("dmesg")
    if isinstance(entries, list):
        for number, entry in enumerate(entries, line):
            if isinstance(entry, dict) and isinstance(entry.get("msg"), str):
                level, time_s = _level(entry.get("pri")), _number(entry.get("time"))
                for part in _lines(entry["msg"]):
                    yield Record(number, part, time_s, None, level, None, entry["msg"])
        return
    message = _message(value.get("MESSAGE"))
    if message is None:
        return
    boot_us = _number(value.get("_SOURCE_MONOTONIC_TIMESTAMP")) or _number(value.get("__MONOTONIC_TIMESTAMP"))
    real_us = _number(value.get("__REALTIME_TIMESTAMP"))
    time_s = None if boot_us is None else boot_us / 1e6
    wall_s = None if real_us is None else real_us / 1e6
    place = value.get("_KERNEL_DEVICE")
    device = place[5:] if isinstance(place, str) and place.startswith("+pci:") else None
    program = value.get("SYSLOG_IDENTIFIER")
    tag = ""
    if isinstance(program, str) and value.get("_TRANSPORT") != "kernel" != program:
        pid = value.get("_PID")
        tag = f"{program}[{pid}]: " if isinstance(pid, str) and pid.isdecimal() else f"{program}: "
    for part in _lines(message):
        yield Record(line, tag + part, time_s, wall_s, _level(value.get("PRIORITY")), None, raw, device)


def _lines(message: str) -> list[str]:
    return [part for part in message.splitlines() if part.strip()] or [""]


def _message(value: Any) -> str | None:
    """Read a MESSAGE: text, or a list of bytes where it is not UTF-8."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(type(item) is int and 0 <= item < 256 for item in value):
        return bytes(value).decode("utf-8", "replace")
    return None


def _level(value: Any) -> int | None:
    if isinstance(value, str) and value in LEVELS:
        return LEVELS[value]
    number = _number(value)
    return None if number is None or not 0 <= number < 1024 else int(number) & 7


def _number(value: Any) -> float | None:
    """Read a number, or its decimal text, of a size that a time has."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)) or len(str(value)) > 25:
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if 0 <= number < 1e18 else None
