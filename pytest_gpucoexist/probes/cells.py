"""From a helper's reply to readings.

A reply comes from another process, or from a recording that another release wrote: nothing about its shape is taken
for granted, and what does not fit becomes a `broken` fact that says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.model.machine import Conflict, GpuProcess, Runtime
from pytest_gpucoexist.model.readings import STATUSES, Observation, Reading, Status

if TYPE_CHECKING:
    from pytest_gpucoexist.host.base import Host

__all__ = ["Answer", "devices_of", "failed", "fault_of", "processes_of", "reading_of", "value_of"]


@dataclass(slots=True, kw_only=True)
class Answer:
    """What a library says, while it is being put together. `faults` are devices that it counts and cannot ask."""

    observations: list[Observation] = field(default_factory=list)
    conflicts: list[Conflict] = field(default_factory=list)
    runtimes: list[Runtime] = field(default_factory=list)
    faults: list[tuple[Status, str]] = field(default_factory=list)


def value_of(holder: object, name: str) -> Any:
    """Return the value of a cell, or None."""
    cell = holder.get(name) if isinstance(holder, Mapping) else None
    return cell.get("value") if isinstance(cell, Mapping) else None


def reading_of(
    field: str, holder: Mapping[str, Any], name: str, source: str, convert: Callable[[Any], Any] = lambda value: value
) -> Reading:
    """Turn the cell `name` into the Reading of a field. A value that `convert` cannot take is `broken`.

    `convert` returns None for "the library answered, and it has no such value".
    """
    cell = holder.get(name)
    if not isinstance(cell, Mapping) or ("value" not in cell and cell.get("status") not in STATUSES):
        return failed(field, source, "broken", f"the reply has no {name!r}")
    if "value" not in cell:
        return failed(field, source, cell["status"], str(cell.get("detail")))
    try:
        value = convert(cell["value"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        return failed(field, source, "broken", f"{name!r} was not understood: {cell['value']!r:.80} ({error})")
    if value is None:
        return failed(field, source, "unsupported", f"the library gives no {name}")
    return Reading(field=field, value=value, source=source)


def failed(field: str, source: str, status: Status, detail: str | None) -> Reading:
    """Return the Reading of a field that could not be read."""
    return Reading(field=field, value=None, source=source, status=status, detail=detail)


def devices_of(data: object) -> list[Mapping[str, Any]]:
    """Return the devices of a reply. Raises ValueError when it is no reply of these helpers."""
    devices = data.get("devices") if isinstance(data, Mapping) else None
    if not isinstance(devices, list) or not all(isinstance(device, Mapping) for device in devices):
        raise ValueError(f"the helper's reply was not understood: {data!r:.80}")
    return devices


def fault_of(device: Mapping[str, Any]) -> tuple[Status, str] | None:
    """Return why a whole device could not be asked, or None."""
    fault = device.get("fault")
    if not isinstance(fault, Mapping):
        return None
    status = fault.get("status")
    return (status if status in STATUSES else "broken"), str(fault.get("detail"))


def processes_of(host: Host, source: str, processes: list[Mapping[str, Any]]) -> tuple[GpuProcess, ...]:
    """Turn a library's list into GpuProcess, one for each PID; a PID that `/proc` does not show is not `visible`.

    In a container both libraries may give PIDs of the host's namespace.
    """
    found: dict[int, GpuProcess] = {}
    for process in processes:
        pid, memory = int(process["pid"]), process.get("memory")
        known = found.get(pid)
        sizes = [size for size in (memory, known.memory_bytes if known else None) if size is not None]
        found[pid] = GpuProcess(
            pid=pid,
            source=source,
            # A process with a compute and a graphics context is listed twice with the same memory.
            memory_bytes=max(sizes) if sizes else None,
            name=process.get("name") or _name_of(host, pid),
            visible=host.exists(f"/proc/{pid}"),
        )
    return tuple(found[pid] for pid in sorted(found))


def _name_of(host: Host, pid: int) -> str | None:
    try:
        return host.read_text(f"/proc/{pid}/comm") or None
    except OSError:
        return None
