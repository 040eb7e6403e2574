"""Small readings that the vendors' probes share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.model.readings import Reading
from pytest_gpucoexist.probes.parse import number
from pytest_gpucoexist.probes.reader import Bad, excerpt

if TYPE_CHECKING:
    from pytest_gpucoexist.host.base import Host

__all__ = ["byte_count", "hwmon_names", "kernel_release", "line", "text_or_none"]


def text_or_none(host: Host, path: str) -> str | None:
    """Read a text that only adds to others; None when it cannot be read or is empty."""
    try:
        return host.read_text(path).strip() or None
    except OSError:
        return None


def kernel_release(host: Host) -> str | None:
    """Return the kernel's release (`uname -r`), from `/proc/sys/kernel/osrelease` or `/proc/version`."""
    release = text_or_none(host, "/proc/sys/kernel/osrelease")
    if release is None:
        words = (text_or_none(host, "/proc/version") or "").split()
        release = words[2] if words[:2] == ["Linux", "version"] and len(words) > 2 else None
    return release


def hwmon_names(host: Host, path: str) -> list[Reading]:
    """Read the names of a function's hwmon devices. Their `name` is a constant of the driver and wakes nothing."""
    folder = f"{path}/hwmon"
    try:
        entries = host.list_dir(folder)
    except OSError:
        return []
    names = (text_or_none(host, f"{folder}/{entry}/name") for entry in entries if entry.startswith("hwmon"))
    found = tuple(name for name in names if name is not None)
    return [Reading(field="hwmon", value=found, source=folder)] if found else []


def line(text: str) -> str | Bad:
    """Read one printable line; an empty file is a driver that has nothing to say about this board."""
    text = text.strip()
    if not text:
        return Bad("empty", "unsupported")
    return text if text.isprintable() and len(text) <= 200 else Bad(f"not a line of text: {excerpt(text)}")


def byte_count(text: str) -> int | Bad:
    """Read a size of memory: at least one byte. Zero is a driver that has not sized it."""
    value = number(text)
    return Bad("0 bytes", "unsupported") if value == 0 else value
