"""Read every form in which people save a kernel log.

`/dev/kmsg` records; `dmesg` with and without time stamps, `-x`, `-T`, `-H`, `--time-format iso`, coloured, `--json`;
the console's `<6>[    1.234]`; `journalctl`'s short forms and `-o json`; classic syslog and RFC 5424 files. A line is
read by the first form that fits it, so a file may mix them. Whatever fits none is a message as it stands.

Forms: Documentation/ABI/testing/dev-kmsg and kernel/printk/printk.c (Linux), dmesg(1) (util-linux), journalctl(1),
systemd.journal-fields(7), RFC 3164 and RFC 5424.
"""

from __future__ import annotations

import re

from pytest_gpucoexist.kernellog.objects import read_json
from pytest_gpucoexist.kernellog.records import Record
from pytest_gpucoexist.kernellog.stamps import LEVELS, after_host, relative_stamp, wall_clock

__all__ = ["parse_log"]

# "6,339,5140900,-;message", with "caller=T123" or more fields that newer kernels may add before the semicolon.
_KMSG = re.compile(r"(\d{1,5}),(\d{1,19}),(-?\d{1,19}),[^;]{0,80};(.*)", re.DOTALL)
_HEX = re.compile(r"(?:\\x[0-9a-fA-F]{2})+")
_DEVICE = re.compile(r"\s+DEVICE=\+pci:(\S+)")
_FIELD = re.compile(r"\s+[A-Z_]+=\S*")

# Colours and other terminal sequences of dmesg -H, --color and journalctl; OSC 8 links end with BEL or ESC \.
_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[()][0-9A-B])")

# printk's own stamp, with the thread or processor that CONFIG_PRINTK_CALLER adds: "[    1.234567][  T123] ".
_PRINTK = re.compile(r"\s*\[\s*(\d{1,10}\.\d{1,9})\](?:\s?\[\s*[TC]\d+\])?\s?")
# The further lines of a message in dmesg's and journalctl's output: no stamp, but as far in as the first one's text.
_INDENTED = re.compile(r"[ \t]{8,}(?!\[)\S")
_CALLER = re.compile(r"\[\s*[TC]\d+\]\s?")
_PRIORITY = re.compile(r"<(\d{1,3})>")
_LEVEL_NAME = re.compile(
    r"(?:kern|user|mail|daemon|auth|syslog|lpr|news|uucp|cron|authpriv|ftp|local[0-7])\s*"
    r":\s*(emerg|alert|crit|err|warn|notice|info|debug)\s*:\s"
)


def parse_log(text: str) -> tuple[Record, ...]:
    """Return the records of a log in the order in which they stand there; never raises, whatever the text is."""
    whole = read_json(text)
    if whole is not None:
        return whole
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    return tuple(_records(text))


def _records(text: str) -> list[Record]:
    records: list[Record] = []
    kmsg = 0  # how many of the last records came from one /dev/kmsg record, whose " KEY=value" lines may follow
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.rstrip("\r\0")
        first = line[:1]
        if first.isdigit():
            match = _KMSG.match(line)
            if match is not None:
                before = len(records)
                _add_kmsg(records, number, line, match)
                kmsg = len(records) - before
                continue
        elif kmsg and first == " " and _FIELD.fullmatch(line):
            device = _DEVICE.fullmatch(line)
            if device is not None:
                records[-kmsg:] = [record._replace(device=device[1]) for record in records[-kmsg:]]
            continue
        kmsg = 0
        if not line or line.isspace():
            continue
        if first.isspace() and records and _INDENTED.match(line):
            records.append(records[-1]._replace(number=number, message=line.strip(), raw=line))
        else:
            _add_line(records, number, line)
    return records


def _add_kmsg(records: list[Record], number: int, line: str, match: re.Match[str]) -> None:
    r"""Read one record of /dev/kmsg; its message escapes control characters and bytes above 127 as `\x0a`."""
    level, sequence, time_us, message = match.groups()
    if "\\x" in message:
        message = _HEX.sub(_unescaped, message)
    for part in _parts(message):
        records.append(Record(number, part, int(time_us) / 1e6, None, int(level) & 7, int(sequence), line))


def _unescaped(match: re.Match[str]) -> str:
    return bytes.fromhex(match[0].replace("\\x", "")).decode("utf-8", "replace")


def _parts(message: str) -> list[str]:
    if "#012" in message:
        message = message.replace("#012", "\n")
    if "\n" not in message:
        return [message]
    return [part for part in message.split("\n") if part.strip()] or [""]


def _add_line(records: list[Record], number: int, line: str) -> None:
    rest, level = line, None
    if line[0] == "{":
        entries = read_json(line)
        if entries is not None:
            records.extend(entry._replace(number=number, raw=line) for entry in entries)
            return
    if line[0] == "<":
        match = _PRIORITY.match(line)
        if match is not None:
            rest, level = line[match.end() :], int(match[1]) & 7
    elif ":" in line[:24]:
        match = _LEVEL_NAME.match(line)
        if match is not None:
            rest, level = line[match.end() :], LEVELS[match[1]]
    time_s: float | None = None
    wall_s: float | None = None
    stamp = _PRINTK.match(rest)
    if stamp is not None:
        time_s = float(stamp[1])
        rest = rest[stamp.end() :]
        rest = after_host(rest) if rest[:1].isalnum() else rest
    else:
        relative = relative_stamp(rest)
        if relative is not None:
            time_s, rest = relative
        else:
            wall_s, rest = wall_clock(rest)
        inner = _PRINTK.match(rest)  # a syslog daemon keeps the kernel's own stamp when it is printed
        if inner is not None:
            time_s, rest = float(inner[1]), rest[inner.end() :]
        elif rest[:1] == "[":
            caller = _CALLER.match(rest)
            rest = rest[caller.end() :] if caller is not None else rest
    for part in _parts(rest):
        records.append(Record(number, part, time_s, wall_s, level, None, line))
