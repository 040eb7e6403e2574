"""From all readings of one device to a Gpu whose every field says where it came from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.model.identity import vendor_of
from pytest_gpucoexist.model.machine import Conflict, Gpu, Link
from pytest_gpucoexist.model.readings import Fact, Reading
from pytest_gpucoexist.probes.fields import choose, disagreement
from pytest_gpucoexist.probes.kinds import kind_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

__all__ = ["build_gpu"]

_FIELDS = (
    *("vendor_id", "device_id", "class_id", "subsystem_id", "name", "uuid", "numa_node", "local_cpulist"),
    *("driver", "driver_version", "memory_total_bytes", "memory_free_bytes", "arch", "upstream", "upstream_links"),
    *("drm", "bars", "iommu_group", "runtime_status", "boot_vga", "vbios_version", "hwmon", "kfd", "processes"),
)
_LINK = tuple(f"link.{name}" for name in ("current_speed_gtps", "current_width", "max_speed_gtps", "max_width"))
_EMPTY = {"upstream_links": (), "hwmon": ()}
_NOT_SAID = Fact(source="", status="absent", detail="no source here tells it")


def build_gpu(
    key: str,
    readings: Sequence[Reading],
    *,
    pci_address: str | None,
    partition: str | None,
    kfd_cpu_nodes: Collection[int] = (),
) -> tuple[Gpu, list[Conflict]]:
    """Choose a value for every field, most trusted reading first, and keep what the others said.

    The Gpu has an empty `id`: numbers are given when all devices are known.
    """
    by_field: dict[str, list[Reading]] = {}
    for reading in readings:
        by_field.setdefault(reading.field, []).append(reading)
    chosen = {field: choose(group) for field, group in by_field.items()}
    values: dict[str, Any] = {field: chosen[field].value for field in _FIELDS if field in chosen}
    facts = {field: reading.fact for field, reading in chosen.items()}
    values["pci_address"] = pci_address
    facts.update(_identity_facts(readings, pci_address, partition))

    vendor = vendor_of(values.get("vendor_id"))
    if values.get("vendor_id") is None and "vendor" in chosen:
        vendor = chosen["vendor"].value or "other"
    else:
        facts["vendor"] = facts.get("vendor_id", _NOT_SAID)
    values["vendor"] = vendor

    kfd = values.get("kfd")
    told_kind = chosen["kind"] if "kind" in chosen and chosen["kind"].status == "ok" else None
    kind = kind_of(values, told_kind, kfd is not None and kfd.node in kfd_cpu_nodes)
    facts["kind"] = kind.fact
    values["kind"] = kind.value

    link = {field.removeprefix("link."): chosen[field].value for field in _LINK if field in chosen}
    told = [chosen[field] for field in _LINK if field in chosen]
    facts["link"] = choose(told).fact if told else _NOT_SAID
    for field in (*_FIELDS, *_LINK):
        facts.setdefault(field, _NOT_SAID)
    values.update({field: empty for field, empty in _EMPTY.items() if values.get(field) is None})
    gpu = Gpu(
        id="",
        partition=partition,
        link=Link(**link),
        features=_features(chosen),
        facts={field: facts[field] for field in sorted(facts)},
        **values,
    )
    return gpu, _conflicts(key, by_field, gpu)


def _features(chosen: Mapping[str, Reading]) -> dict[str, bool]:
    """Keep the features that a source knows about, yes or no; `facts` says why another is unknown."""
    return {
        field.removeprefix("features."): bool(reading.value)
        for field, reading in sorted(chosen.items())
        if field.startswith("features.") and reading.status == "ok"
    }


def _identity_facts(readings: Sequence[Reading], pci_address: str | None, partition: str | None) -> dict[str, Fact]:
    source = readings[0].source if readings else ""
    facts = {"pci_address": Fact(source=source)}
    if pci_address is None:
        facts["pci_address"] = Fact(source=source, status="absent", detail="no PCI address is told for this device")
    facts["partition"] = Fact(source=source)
    if partition is None:
        facts["partition"] = Fact(source=source, status="unsupported", detail="the whole device")
    return facts


def _conflicts(key: str, by_field: Mapping[str, list[Reading]], gpu: Gpu) -> list[Conflict]:
    conflicts = []
    for field, group in by_field.items():
        if field == "memory_total_bytes" and gpu.kind == "integrated":
            # An APU's drivers mean different things: the carve-out, or all that it may use of the system's memory.
            continue
        conflict = disagreement(key, group)
        if conflict is not None:
            conflicts.append(conflict)
    for reading in by_field.get("vendor", ()):
        if reading.value not in {None, "other", gpu.vendor}:
            source = gpu.facts["vendor_id"].source
            message = f"vendor of {key}: {source} says {gpu.vendor}, {reading.source} says {reading.value}"
            claims = {source: gpu.vendor, reading.source: reading.value}
            conflicts.append(Conflict(subject=key, kind="vendor", message=message, claims=claims))
    return conflicts
