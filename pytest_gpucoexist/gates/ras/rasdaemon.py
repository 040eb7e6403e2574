"""What rasdaemon has written down since boot, read from its database and not through its tools."""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.gates.findings import Finding, passed, skipped, unknown, warned
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.verdicts import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject

_PATH = "/var/lib/rasdaemon/ras-mc_event.db"
_MAX_BYTES = 32 * 2**20
_TABLES = {"mc_event": "err_type", "aer_event": "err_type", "mce_record": "error_msg"}
_CORRECTED = re.compile(r"corrected", re.IGNORECASE)
_UNCORRECTED = re.compile(r"uncorrect|fatal|deferred", re.IGNORECASE)
_STAMP = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d{4}")
_BOOT = re.compile(r"^btime (\d{9,11})$", re.MULTILINE)


@gate(
    "ras.host.rasdaemon",
    group="ras",
    title="Rasdaemon has recorded no error since boot",
    reads="/var/lib/rasdaemon/ras-mc_event.db: memory, PCIe and machine-check events later than btime of /proc/stat",
    criterion="none that is uncorrected; corrected ones are listed",
    why="It keeps what the kernel log has lost: errors of memory modules and of PCIe links by place.",
    action="ras-mc-ctl --errors names module and slot; replace or reseat it",
    source="mchehab/rasdaemon ras-record.c, ras-aer-handler.c; NixOS/infra#523",
    vendors=(),
    level="standard",
)
def rasdaemon(subject: Subject) -> Iterator[Finding]:
    """Count the events since boot by table and kind."""
    if not subject.host.exists(_PATH):
        yield skipped("rasdaemon keeps no records here")
        return
    boot = _BOOT.search(subject.read("/proc/stat", 2**20).text or "")
    if boot is None:
        yield unknown("the time of boot is not known: /proc/stat has no btime")
        return
    try:
        data = subject.host.read_bytes(_PATH, _MAX_BYTES)
        events = _events(data, int(boot[1]))
    except (OSError, ValueError) as error:
        yield unknown(f"rasdaemon's records could not be read: {error}")
        return
    bad = sum(count for (_, kind), count in events.items() if kind == "uncorrected")
    listed = ", ".join(f"{table} {kind}: {count}" for (table, kind), count in sorted(events.items()))
    evidence = Evidence(source=_PATH, found=listed or "no event since boot", expected="none uncorrected")
    if bad:
        yield warned(f"rasdaemon recorded {bad} uncorrected errors since boot", evidence)
    else:
        yield passed("rasdaemon recorded no uncorrected error since boot", evidence)


def _events(data: bytes, boot_s: int) -> dict[tuple[str, str], int]:
    """Count the events of a database since boot, by table and kind. Raises ValueError when it is none."""
    import sqlite3
    import tempfile

    handle, name = tempfile.mkstemp(suffix=".db")  # Python 3.10 has no way to open bytes
    try:
        with open(handle, "wb") as file:
            file.write(data)
        with contextlib.closing(sqlite3.connect(f"file:{name}?mode=ro&immutable=1", uri=True)) as database:
            return _counted(database, boot_s)
    except sqlite3.Error as error:
        raise ValueError(f"it is no database of SQLite: {error}") from error
    finally:
        os.unlink(name)


def _counted(database: Any, boot_s: int) -> dict[tuple[str, str], int]:
    from datetime import datetime

    events: dict[tuple[str, str], int] = {}
    known = {row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not known & set(_TABLES):
        raise ValueError(f"it has none of the tables {', '.join(_TABLES)}")
    for table, column in _TABLES.items():
        if table not in known:
            continue
        for stamp, words in database.execute(f"SELECT timestamp, {column} FROM {table}"):
            if not isinstance(stamp, str) or _STAMP.fullmatch(stamp) is None:
                continue
            try:
                when = datetime.strptime(stamp, "%Y-%m-%d %H:%M:%S %z").timestamp()
            except ValueError:
                continue
            if when < boot_s:
                continue
            text = str(words)
            kind = "uncorrected" if _UNCORRECTED.search(text) else "corrected" if _CORRECTED.search(text) else "other"
            events[table, kind] = events.get((table, kind), 0) + 1
    return events
