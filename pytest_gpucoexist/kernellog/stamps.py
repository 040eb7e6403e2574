"""The time stamps and host names that dmesg, journalctl and syslog daemons put before a kernel message."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from functools import lru_cache

__all__ = ["LEVELS", "after_host", "relative_stamp", "wall_clock"]

LEVELS = {"emerg": 0, "alert": 1, "crit": 2, "err": 3, "warn": 4, "notice": 5, "info": 6, "debug": 7}

_MONTHS = {
    name: number
    for number, name in enumerate("Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(), 1)  # noqa: SIM905
}

# "[    1.234567 <    0.000012>] " of dmesg -d and journalctl -o short-delta.
_DELTA = re.compile(r"\s*\[\s*(\d{1,10}\.\d{1,9})\s+<\s*[+-]?\d+\.\d+\s*>\]\s?")
# "[  +0.000012] " of dmesg -e and -H: since the line before, so no place in time.
_SINCE_LINE_BEFORE = re.compile(r"\s*\[\s*\+\d+\.\d+\]\s?")

# "[Sun Feb 23 16:24:18 2025] " of dmesg -T, in any language and also with -d; "[Nov30 08:11] " of dmesg -H.
_CTIME = re.compile(
    r"\s*\[(?:\w{2,4}\.? )?(?P<month>[^\W\d_]{3,4})\.? ?(?P<day>\d{1,2}) (?P<hour>\d\d):(?P<minute>\d\d)"
    r"(?::(?P<second>\d\d)"
    r"(?: (?P<year>\d{4}))?)?(?:\s+<[^>]*>)?\]\s?"
)
_ISO = re.compile(
    r"(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)[T ](?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)"
    r"(?:[.,](?P<fraction>\d{1,9}))?(?: ?(?P<zone>Z|UTC|[+-]\d\d:?\d\d|[A-Z]{3,5}\b))?\s+"
)
# journalctl names months in the reader's language: "mar 06 …", "jan. 29 …", "11月 15 …".
_SYSLOG = re.compile(
    r"(?:[A-Z][a-z]{2} )?(?P<month>[^\W\d_]{3,5}|\d{1,2}(?=[月월]))[.月월]?\s+(?P<day>\d{1,2}) "
    r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?:\.(?P<fraction>\d{1,9}))?(?: (?P<year>\d{4}))?\s+"
)
_UNIX = re.compile(r"(\d{9,10}\.\d{1,9})\s+")
_FRACTION = re.compile(r"(?<=:\d\d)[.,](\d{1,9})")
_LONGEST_HEAD = 100  # stamp, host and "kernel:"
_WEEKDAY = re.compile(r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun),?\s+(?=\d{4}-)")

# "1 " is the version of RFC 5424; process, message id and structured data follow the host and the program.
_RFC5424 = re.compile(r"\S+\s+kernel\s+\S+\s+\S+\s+(?:-|(?:\[[^\]]*\])+)\s?(?:\ufeff)?")
_KERNEL = re.compile(r"(?:\S+\s+)?(?:[a-z0-9]+\.(?:emerg|alert|crit|err|warn|warning|notice|info|debug)\s+)?kernel:\s?")
# Without "kernel:" and without a host a driver's own words come first: "NVRM: …", "kfd kfd: …", "EDAC MC0: …".
_HOST = re.compile(r"(?!kfd |EDAC |NVRM )\S*[^\s:]\s+(?=[\w.@/+\-]+(?:\[\d+\])?:\s)")


def relative_stamp(text: str) -> tuple[float | None, str] | None:
    """Return the seconds since boot (None when the stamp counts from the line before) and what follows the stamp."""
    if "[" not in text[:4]:
        return None
    match = _DELTA.match(text)
    if match is not None:
        return float(match[1]), after_host(text[match.end() :])
    match = _SINCE_LINE_BEFORE.match(text)
    return None if match is None else (None, text[match.end() :])


def wall_clock(text: str) -> tuple[float | None, str]:
    """Return the time of a stamp that is a date, and the message behind stamp, host and `kernel:`."""
    # Many lines begin with the same stamp and host, which are read once.
    if text[:1] == "[":
        head, end, message = text.partition("] ")
    elif text[19:20] == ",":  # dmesg --time-format iso
        head, end, message = text.partition(" ")
    else:
        head, end, message = text.partition(" kernel: ")
    if end and len(head) < _LONGEST_HEAD:
        fraction = _FRACTION.search(head)
        if fraction is None:
            wall_s = _of_head(head + end)
        else:
            wall_s = _of_head(head[: fraction.start()] + head[fraction.end() :] + end)
            wall_s = None if wall_s is None else wall_s + float(f"0.{fraction[1]}")
        if wall_s is not None and (end == " kernel: " or "kernel" not in message[:80]):
            return wall_s, message
    return _dated(text)


@lru_cache(maxsize=1024)
def _of_head(text: str) -> float | None:
    """Return the time of a text that is a stamp, a host and `kernel:` from start to end, else None."""
    wall_s, rest = _dated(text)
    return None if rest else wall_s


def _dated(text: str) -> tuple[float | None, str]:
    first = text[:1]
    if "月" in text[:4] or "월" in text[:4]:
        match = _SYSLOG.match(text.lstrip())
        if match is not None:
            return _epoch(match), _without_tag(match.string[match.end() :])
    elif first == "[" or first.isspace():
        match = _CTIME.match(text)
        if match is not None:
            return _epoch(match), after_host(text[match.end() :])
    elif first.isdigit():
        return _numeric(text)
    elif first.isalpha():
        day = _WEEKDAY.match(text)
        if day is not None:
            return _numeric(text[day.end() :])
        match = _SYSLOG.match(text)
        if match is not None:
            return _epoch(match), _without_tag(text[match.end() :])
    return None, after_host(text)


def _numeric(text: str) -> tuple[float | None, str]:
    start = 2 if text.startswith("1 ") else 0  # RFC 5424's version
    match = _ISO.match(text, start)
    if match is not None:
        rest = text[match.end() :]
        # dmesg writes a comma before the fraction and no host
        return _epoch(match), after_host(rest) if "," in match[0] else _without_tag(rest)
    match = _UNIX.match(text)
    if match is not None:
        return float(match[1]), _without_tag(text[match.end() :])
    return None, after_host(text)


def after_host(text: str) -> str:
    """Cut `host kernel: ` off, or `kernel: `; leave everything else alone, because dmesg prints no host."""
    if "kernel" not in text[:80]:
        return text
    match = _KERNEL.match(text)
    return text if match is None else text[match.end() :]


def _without_tag(text: str) -> str:
    rest = after_host(text)
    if rest is not text:
        return rest
    match = _RFC5424.match(text) or _HOST.match(text)
    return text if match is None else text[match.end() :]


def _epoch(match: re.Match[str]) -> float | None:
    parts = match.groupdict()
    midnight = _midnight(parts["year"] or "1970", parts["month"], parts["day"], parts.get("zone"))
    hour, minute, second = int(parts["hour"]), int(parts["minute"]), int(parts["second"] or 0)
    if midnight is None or hour > 23 or minute > 59 or second > 60:
        return None
    return midnight + hour * 3600 + minute * 60 + second + float(f"0.{parts.get('fraction') or 0}")


@lru_cache(maxsize=256)
def _midnight(year: str, month: str, day: str, zone: str | None) -> float | None:
    # a month of another language counts as January: differences within a day remain
    number = int(month) if month.isdecimal() else _MONTHS.get(month[:3].capitalize(), 1)
    try:
        return datetime(int(year), number, int(day), tzinfo=_zone(zone)).timestamp()
    except (ValueError, OverflowError):
        return None


def _zone(text: str | None) -> timezone:
    """Read `+01:00` or `+0100`; every other zone counts as UTC. Raises ValueError for a day or more."""
    if text is None or text[0] not in "+-":
        return timezone.utc
    offset = timedelta(hours=int(text[1:3]), minutes=int(text[-2:]))
    return timezone(-offset if text[0] == "-" else offset)
