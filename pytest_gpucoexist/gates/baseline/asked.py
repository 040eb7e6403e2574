"""What vendor libraries say about the fields of a baseline, for levels that ask them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.gates.vendors import device_cells, vendor_reply
from pytest_gpucoexist.probes.cells import value_of
from pytest_gpucoexist.probes.vendor import HELPERS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucoexist.gates.baseline.record import Baseline, BaselineGpu
    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.model.machine import Gpu

__all__ = ["with_libraries"]


def with_libraries(subject: Subject, baseline: Baseline) -> Baseline:
    """Add what NVML and AMD SMI say, in their own words, to what files say."""
    functions = {gpu.pci_address or gpu.key: gpu for gpu in subject.functions("nvidia", "amd")}
    return replace(baseline, gpus=tuple(_asked(subject, each, functions.get(each.key)) for each in baseline.gpus))


def _asked(subject: Subject, entry: BaselineGpu, gpu: Gpu | None) -> BaselineGpu:
    if gpu is None or gpu.partition is not None:
        return entry
    reply, source = vendor_reply(subject, gpu.vendor), HELPERS[gpu.vendor]
    told = _told(device_cells(reply, gpu), reply.data)
    seen = {name: {**entry.seen.get(name, {}), source: value} for name, value in told.items()}
    return replace(entry, seen={**entry.seen, **seen})


def _told(cells: Mapping[str, Any] | None, data: object) -> dict[str, str]:
    """Read the cells as `probes.vendor_nvidia` and `probes.vendor_amd` do."""
    memory = _part(cells, "memory", "total")
    found = {
        "uuid": value_of(cells, "uuid"),
        "memory_total_bytes": str(memory) if isinstance(memory, int) and memory else None,
        "vbios_version": value_of(cells, "vbios_version") or _part(cells, "vbios", "part_number", "version"),
        "driver_version": _part(cells, "driver", "version") or (value_of(data, "driver_version") if cells else None),
    }
    return {name: value for name, value in found.items() if isinstance(value, str) and value}


def _part(cells: Mapping[str, Any] | None, name: str, *parts: str) -> Any:
    value = value_of(cells, name)
    return next((value[part] for part in parts if value.get(part)), None) if isinstance(value, dict) else None
