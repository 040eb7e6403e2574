"""Where a kernel's log can be read: `/dev/kmsg`, journald, or a file that lies in a recorded tree.

Reading `/dev/kmsg` takes nothing away from other readers, starts no program and touches no device: each `read` gives
one record (Documentation/ABI/testing/dev-kmsg).
"""

from __future__ import annotations

import errno
import json
import os
import re
import time
from collections import deque
from typing import TYPE_CHECKING, Protocol

from pytest_gpucoexist.host.base import KernelLog
from pytest_gpucoexist.model.readings import status_of_errno

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpucoexist.host.base import Completed, Host, Node

__all__ = ["KEPT_LOG", "KMSG", "journal_log", "local_kernel_log", "log_in_tree", "read_kmsg"]

KMSG = "/dev/kmsg"
KEPT_LOG = "/gpucoexist/kernel.log"
"""The text of a recorded log, in the record."""

JOURNAL = (
    *("journalctl", "--dmesg", "--boot", "--reverse", "--no-pager", "--output=json"),
    "--output-fields=MESSAGE,PRIORITY,_SOURCE_MONOTONIC_TIMESTAMP",
)
_JOURNAL_S = 3.0

_KMSG_DEVICE = (1, 11)  # Documentation/admin-guide/devices.txt
_RECORD_BYTES = 2**14  # the kernel refuses to put a record (at most 8 KiB) into a buffer that is too small for it
_LIMIT_BYTES = 8 * 2**20
_LIMIT_RECORDS = 200_000
"""A kernel that logs faster than it is read would never come to an end."""

_FILES = (
    *("/var/log/dmesg", "/var/log/kern.log", "/dmesg", "/dmesg.txt", "/dmesg.log"),
    *("/extra/dmesg-x.txt", "/extra/dmesg.txt"),
)
"""Where distributions keep the log, and where people put it who record a machine."""
_FIRST_LINE = re.compile(r"^[^\n]*\bLinux version \d+\.", re.MULTILINE)


class _Machine(Protocol):
    """What is asked of this machine beside its log."""

    def read_text(self, path: str, limit: int = 65536) -> str: ...

    def stat(self, path: str) -> Node: ...

    def run(self, argv: Sequence[str], *, timeout_s: float = 5.0) -> Completed: ...


def local_kernel_log(machine: _Machine, *, allow_programs: bool) -> KernelLog:
    """Return the log of this machine from the first source that has one, else the reasons of all."""
    log = _from_kmsg(machine)
    whole = log.status == "ok" and log.complete and not log.lost
    if whole or not allow_programs:
        return log
    journal = journal_log(machine)
    if journal.status == "ok" and (log.status != "ok" or journal.complete):
        return journal
    if log.status == "ok":
        return log
    return KernelLog(
        status=log.status, source=f"{KMSG}, journald", detail=f"{log.detail}; journalctl: {journal.detail}"
    )


def read_kmsg(
    path: str = KMSG,
    *,
    read: Callable[[int, int], bytes] = os.read,
    limit_bytes: int = _LIMIT_BYTES,
    limit_records: int = _LIMIT_RECORDS,
) -> KernelLog:
    """Read every record there is. Raises OSError when the device cannot be opened.

    EPIPE says that records were overwritten before they were read: reading goes on behind the gap, and the sequence
    numbers tell how many are missing. Beyond `limit_bytes` the oldest are dropped, as the kernel's own buffer does.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    records: deque[bytes] = deque()
    size = lost = 0
    first = last = None
    gap = False
    detail = None
    try:
        for _ in range(limit_records):
            try:
                record = read(handle, _RECORD_BYTES)
            except OSError as error:
                if error.errno == errno.EPIPE:
                    gap = True
                    continue
                if error.errno != errno.EAGAIN:
                    detail = f"reading stopped early: {os.strerror(error.errno or errno.EIO)}"
                break
            if not record:
                break
            number = _sequence(record)
            if number is not None:
                if gap:
                    lost += max(1, number - last - 1) if last is not None else 1
                    gap = False
                first = number if first is None else first
                last = number
            records.append(record)
            size += len(record)
            while size > limit_bytes:
                size -= len(records.popleft())
                first = _sequence(records[0]) if records else None
        else:
            detail = f"reading stopped after {limit_records} records"
    finally:
        os.close(handle)
    return KernelLog(
        status="ok",
        text=b"".join(record if record.endswith(b"\n") else record + b"\n" for record in records).decode(
            "utf-8", "replace"
        ),
        source=path,
        detail=detail,
        complete=first == 0 and not lost,
        first_sequence=first,
        lost=lost + gap,
        read_at_s=time.monotonic(),
    )


def journal_log(machine: _Machine) -> KernelLog:
    """Ask journald for the kernel's messages of this boot; they become lines as `dmesg --raw` prints them."""
    argv = JOURNAL
    try:
        done = machine.run(argv, timeout_s=_JOURNAL_S)
    except OSError as error:
        return KernelLog(
            status=status_of_errno(error.errno), source="journald", detail=os.strerror(error.errno or errno.EIO)
        )
    if done.timed_out:
        return KernelLog(status="broken", source="journald", detail=f"no answer within {_JOURNAL_S:g} s")
    lines = [line for entry in done.stdout.split(b"\n") for line in reversed(_journal_lines(entry))]
    if not lines:
        said = done.stderr.decode("utf-8", "replace")
        if "insufficient permissions" in said or "not seeing messages" in said:
            return KernelLog(
                status="denied",
                source="journald",
                detail="only members of the groups adm and systemd-journal see the kernel's messages",
            )
        return KernelLog(status="absent", source="journald", detail="it has no message of the kernel of this boot")
    text = "\n".join(reversed(lines)) + "\n"
    return KernelLog(
        status="ok",
        text=text,
        source="journald",
        complete=_FIRST_LINE.search(text) is not None,
        read_at_s=time.monotonic(),
    )


def log_in_tree(host: Host) -> KernelLog:
    """Return the log file of a recorded tree: the part that belongs to its last boot."""
    for path in _FILES:
        try:
            text = host.read_text(path, _LIMIT_BYTES)
        except OSError:
            continue
        if not text:
            continue
        starts = [match.start() for match in _FIRST_LINE.finditer(text)]
        if starts:
            text = text[starts[-1] :]
        return KernelLog(status="ok", text=text, source=path, complete=bool(starts))
    return KernelLog(status="absent", source="recording", detail="not recorded")


def _from_kmsg(machine: _Machine) -> KernelLog:
    try:
        node = machine.stat(KMSG)
        if (node.major, node.minor) != _KMSG_DEVICE:
            # Containers put other things there: `/dev/console` (whose input a reader would take), `/dev/null`, a FIFO.
            return KernelLog(status="absent", source=KMSG, detail=f"{KMSG} here is not the kernel's log device")
        return read_kmsg(KMSG)
    except OSError as error:
        return KernelLog(status=status_of_errno(error.errno), source=KMSG, detail=_why_not(machine, error))


def _why_not(machine: _Machine, error: OSError) -> str:
    if error.errno in {errno.EPERM, errno.EACCES}:
        try:
            restricted = machine.read_text("/proc/sys/kernel/dmesg_restrict").strip() == "1"
        except OSError:
            restricted = False
        if restricted:
            return f"{KMSG}: kernel.dmesg_restrict is 1, so only root (CAP_SYSLOG) may read the kernel's log"
        return f"{KMSG}: this user may not open it"
    if error.errno == errno.ENOENT:
        return f"there is no {KMSG} (containers usually have none)"
    return f"{KMSG}: {os.strerror(error.errno or errno.EIO)}"


def _sequence(record: bytes) -> int | None:
    """Return the number of a record: `level,sequence,time,flags;message`."""
    parts = record[:64].split(b",", 2)
    return int(parts[1]) if len(parts) == 3 and parts[1].isdigit() else None


def _journal_lines(entry: bytes) -> list[str]:
    """Make raw lines of one entry; its message may have several. A line that is no entry gives none."""
    try:
        fields = json.loads(entry) if entry.strip() else None
    except ValueError:  # the last one, cut off
        return []
    if not isinstance(fields, dict):
        return []
    message, level = fields.get("MESSAGE"), fields.get("PRIORITY")
    if isinstance(message, list):  # bytes, where it is not plain text
        try:
            message = bytes(message).decode("utf-8", "replace")
        except (TypeError, ValueError):
            return []
    if not isinstance(message, str):
        return []
    since = fields.get("_SOURCE_MONOTONIC_TIMESTAMP") or fields.get("__MONOTONIC_TIMESTAMP")
    stamp = ""
    if isinstance(since, str) and since.isdecimal() and len(since) < 20:
        seconds, micros = divmod(int(since), 1_000_000)
        stamp = f"[{seconds:5d}.{micros:06d}] "
    prefix = f"<{level}>" if isinstance(level, str) and level.isdecimal() else ""
    return [f"{prefix}{stamp}{line}" for line in message.splitlines() or [""]]
