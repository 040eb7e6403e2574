"""From a file to a Reading: the text, or the reason why there is none.

A probe never looks at an exception and never invents a value. A file that cannot be read becomes a Reading with the
status of its errno; a text that makes no sense becomes `broken` and keeps the text, because the next person will
want to see it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.model.readings import Reading, Status, status_of_errno

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pytest_gpucoexist.host.base import Host

__all__ = ["Bad", "Text", "excerpt", "first_ok", "link_name", "names_in", "read", "read_text", "reason"]


@dataclass(frozen=True, slots=True)
class Bad:
    """What a parser returns in place of a value: why there is none."""

    detail: str
    status: Status = "broken"


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A file's text, or why it could not be read."""

    path: str
    text: str | None = None
    status: Status = "ok"
    detail: str | None = None

    def reading(self, field: str, parse: Callable[[str], Any]) -> Reading:
        """Turn the text into the Reading of a field. `parse` returns a value, or Bad; it must not raise."""
        if self.text is None:
            return Reading(field=field, value=None, source=self.path, status=self.status, detail=self.detail)
        value = parse(self.text)
        if isinstance(value, Bad):
            return Reading(field=field, value=None, source=self.path, status=value.status, detail=value.detail)
        return Reading(field=field, value=value, source=self.path)


def excerpt(text: str, limit: int = 60) -> str:
    """Quote a text for a fact's detail: printable, on one line, and short."""
    return ascii(text if len(text) <= limit else text[:limit] + "...")


def reason(error: OSError) -> str:
    """Say an OSError in words, without its path (the source has it)."""
    return os.strerror(error.errno) if error.errno else (str(error) or type(error).__name__)


def read_text(host: Host, path: str, limit: int = 65536) -> Text:
    """Read a file. Never raises OSError."""
    try:
        return Text(path=path, text=host.read_text(path, limit))
    except OSError as error:
        return Text(path=path, status=status_of_errno(error.errno), detail=reason(error))


def read(host: Host, field: str, path: str, parse: Callable[[str], Any]) -> Reading:
    """Read a file as the Reading of a field."""
    return read_text(host, path).reading(field, parse)


def names_in(host: Host, folder: str) -> list[str]:
    """List a folder that adds to what others tell; nothing where it cannot be listed."""
    try:
        return host.list_dir(folder)
    except OSError:
        return []


def link_name(host: Host, field: str, path: str, parse: Callable[[str], Any] = str) -> Reading:
    """Read the last part of a symbolic link's target: how sysfs names a driver, an IOMMU group, a subsystem."""
    try:
        target = host.read_link(path)
    except OSError as error:
        status = status_of_errno(error.errno)
        return Reading(field=field, value=None, source=path, status=status, detail=reason(error))
    name = target.rstrip("/").rpartition("/")[2]
    return Text(path=path, text=name).reading(field, parse if name else _empty_link)


def _empty_link(text: str) -> Bad:
    return Bad(f"a link without a target: {excerpt(text)}")


def first_ok(readings: Iterable[Reading]) -> Reading:
    """Return the first reading that has a value, else the first of all. Raises ValueError when there is none at all."""
    kept: Reading | None = None
    for reading in readings:
        if reading.status == "ok":
            return reading
        kept = kept or reading
    if kept is None:
        raise ValueError("no readings")
    return kept
