"""Names of devices from the system's own `pci.ids` (hwdata); the package ships none.

The file has 1.5 MB. It is searched as bytes for the few ids that are needed, not parsed: a vendor's line starts in the
first column, its devices' lines with one tab, their subsystems' with two.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytest_gpucoexist.model.readings import Observation, Reading

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpucoexist.host.base import Host
    from pytest_gpucoexist.probes.functions import PciFunction

__all__ = ["PATHS", "device_name", "observe"]

PATHS = ("/usr/share/hwdata/pci.ids", "/usr/share/misc/pci.ids")

_LIMIT = 16 << 20
_OUTSIDE = re.compile(rb"\n(?![\t#\n])")


def device_name(database: bytes, vendor_id: str, device_id: str) -> tuple[str | None, str | None]:
    """Return the names of vendor and device (ids as `0x10de`), each None when the file has no such line."""
    vendor, start = _line(database, b"\n" + vendor_id[2:].encode() + b"  ", 0, len(database))
    if vendor is None:
        return None, None
    end = _section_end(database, start)
    device, _ = _line(database, b"\n\t" + device_id[2:].encode() + b"  ", start, end)
    return vendor, device


def observe(host: Host, functions: Sequence[PciFunction]) -> list[Observation]:
    """Name each function whose ids are known."""
    named = [function for function in functions if function.vendor_id and function.device_id]
    if not named:
        return []
    path, database = _database(host)
    return [function.observation("pci.ids", [_name(path, database, function)]) for function in named]


def _database(host: Host) -> tuple[str, bytes | None]:
    for path in PATHS:
        try:
            return path, b"\n" + host.read_bytes(path, _LIMIT)
        except OSError:
            continue
    return PATHS[0], None


def _name(path: str, database: bytes | None, function: PciFunction) -> Reading:
    if database is None:
        detail = "no pci.ids: the package hwdata (or pci.ids) is not installed, or not recorded"
        return Reading(field="name", value=None, source=path, status="absent", detail=detail)
    vendor, device = device_name(database, function.vendor_id or "", function.device_id or "")
    if device is not None:
        return Reading(field="name", value=device, source=path, detail=vendor)
    missing = function.vendor_id if vendor is None else f"{vendor} {function.device_id}"
    return Reading(field="name", value=None, source=path, status="absent", detail=f"does not know {missing}")


def _line(database: bytes, prefix: bytes, start: int, end: int) -> tuple[str | None, int]:
    """Find a line by its start, which begins with the newline before it; return its rest and where it ends."""
    at = database.find(prefix, start, end)
    if at < 0:
        return None, start
    stop = database.find(b"\n", at + 1)
    stop = len(database) if stop < 0 else stop
    return database[at + len(prefix) : stop].decode("utf-8", "replace").strip(), stop


def _section_end(database: bytes, start: int) -> int:
    """Return where the lines of a vendor end: before the first that is neither indented, nor a comment, nor empty."""
    match = _OUTSIDE.search(database, start)
    return len(database) if match is None else match.start()
