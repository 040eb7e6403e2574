"""What of a kernel's log a record may hold: lines about GPUs, buses, memory and crashes, without the names of programs.

The rest of a log tells about its owner: devices that were plugged in, networks, file systems, users' commands.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["BOOT_PARAMETERS", "LOG_FILES", "SERIAL", "telling_lines", "without_programs"]

LOG_FILES = re.compile(
    r"/gpucoexist/kernel\.log|/(?:sys/fs|var/lib/systemd)/pstore/.+|/var/crash/.+|/var/log/(?:dmesg|kern\.log)"
    r"|(?:/extra)?/dmesg(?:-x)?(?:\.txt|\.log)?"
)
"""Files that hold a kernel's log: the record's own, dumps of a boot that crashed, what distributions write."""

_TELLING = re.compile(
    r"NVRM|nvidia|nouveau|\bnova|amdgpu|radeon|kfd|\bi915|\bxe\b|\bdrm\b|\[drm|\bfb\d|fbcon|framebuffer|Console:"
    r"|\bpci|\d{4}:[0-9a-f]{2}:[0-9a-f]{2}\.\d|AER:|DPC:|EDR:|DMAR|AMD-Vi|iommu|swiotlb|BAR \d|[Ss]lot\("
    r"|Linux version|ommand line:|Previous system reset|version magic|version of symbol|Unknown symbol|PKCS#7"
    r"|was rejected|verification failed|BUG:|Oops|Kernel [Pp]anic|kernel BUG|RIP:|Call Trace|\+0x[0-9a-f]+/0x"
    r"|general protection|soft lockup|blocked for more|Hardware Error|BERT:|EDAC|mce:|Machine check"
    r"|^(?:Panic|Oops|Emergency|Shutdown|Unknown)#\d|[Oo]ut of memory|oom-kill|segfault at|RT throttling|[Pp]oison"
    r"|Modules linked in",
)
_OTHERS = re.compile(
    r"\b(?:input: |hid-|usb \d|usb\d|Bluetooth|audit[:(]|systemd|SRC=|nfs: |CIFS|wlan|wlp|SerialNumber)"
    r"|kernel command line parameters"
)
_RECORD = re.compile(r"(?:<(?P<raw>\d{1,4})>|(?P<kmsg>\d{1,4}),\d+,-?\d+,)")
_KERNEL = 8
"""Priorities from here on are of programs that write into the kernel's log (facility above `kern`)."""

SERIAL = re.compile(r"(?:Board Serial Number|Serial[ ]?Number|serial): *(\S+)")
BOOT_PARAMETERS = re.compile(r"(?<=ommand line: )[^\n]*")

_CRASHED = (
    r"(?m)(^(?:<\d+>)?(?:\[ *\d+\.\d+\] ?|\d+,\d+,\d+,[^;]*;|.*kernel: (?:\[ *\d+\.\d+\] ?)?)(?:traps: )?)"
    r"([^\s\[]+)(?=\[\d+\]:? (?:segfault|general protection|trap))"
)
# How kernel and drivers name a program: each has the text before it and its name.
_PROGRAMS = tuple(
    map(
        re.compile,
        (
            r"(\bNVRM: .*?\bname=)([^,\s<][^,]*)",
            r"(\bComm: )(\S+)",
            r"(\b[Pp]rocess )(\S+)(?= pid \d)",
            r"(\bthread )(\S+)(?= pid \d)",
            r"(\bINFO: task )(\S+)(?=:\d+ blocked)",
            r"(\bKilled process \d+ \()([^)]+)",
            r"(\btask=)([^,]+)(?=,pid=)",
            r"(stuck for \d+s! \[)([^\]]+)(?=:\d+\])",
            _CRASHED,
            r"( in )(\S+)(?= \[\d+\])",
        ),
    )
)


def telling_lines(text: str) -> str:
    """Return the lines that a record holds; a record of `/dev/kmsg` keeps the device that follows it."""
    kept: list[str] = []
    keep = False
    for line in text.split("\n"):
        if not (line.startswith(" ") and "=" in line and line.lstrip()[:4].isupper()):
            match = _RECORD.match(line)
            priority = int(match["raw"] or match["kmsg"]) if match is not None else 0
            keep = priority < _KERNEL and _TELLING.search(line) is not None and _OTHERS.search(line) is None
        if keep:
            kept.append(line)
    return "\n".join(kept) + "\n" if kept else ""


def without_programs(text: str, rename: Callable[[str], str]) -> str:
    """Replace the names of the programs that the kernel names."""
    for pattern in _PROGRAMS:
        text = pattern.sub(lambda match: match[1] + rename(match[2]), text)
    return text
