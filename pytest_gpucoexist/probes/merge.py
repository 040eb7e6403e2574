"""Observations to GPUs: by PCI address plus partition, else by UUID.

The order of the observations is the order of trust: of two sources that tell a field, the first wins and what the
other said is kept in a Conflict. What one source alone names and cannot vouch for is a Conflict, not a device.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pytest_gpucoexist.model.identity import device_key, normal_pci_address, pci_sort_key
from pytest_gpucoexist.model.machine import Conflict, Gpu
from pytest_gpucoexist.model.readings import Observation, Reading
from pytest_gpucoexist.probes.build import build_gpu

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

__all__ = ["merge"]

# What a partition does not share with the function that it is part of.
_OWN = {"drm", "kfd", "memory_free_bytes", "memory_total_bytes", "processes", "uuid"}

# Probes that know only that there is a GPU: WSL2's /dev/dxg, a Jetson's. A library that names it takes its place.
_STAND_INS = {"dxg", "tegra"}


@dataclass(slots=True)
class _Device:
    """One device and what was observed about it, each with its rank of trust."""

    address: str | None
    partition: str | None
    uuid: str | None
    card: str | None
    probe: str
    observed: list[tuple[int, Reading]] = field(default_factory=list)

    @property
    def key(self) -> str:
        if self.address is None and self.uuid is None:
            return f"drm:{self.card}"
        return device_key(self.address, self.partition, self.uuid)

    def readings(self) -> list[Reading]:
        return [reading for _, reading in sorted(self.observed, key=lambda item: item[0])]

    def said(self, name: str) -> str | None:
        """Return the most trusted value of a field."""
        return next((item.value for item in self.readings() if item.field == name and item.status == "ok"), None)


def merge(
    observations: Sequence[Observation], kfd_cpu_nodes: Collection[int] = ()
) -> tuple[tuple[Gpu, ...], tuple[Conflict, ...]]:
    """Return the GPUs in PCI order, numbered per vendor, and what the sources disagree about."""
    conflicts: list[Conflict] = []
    devices = _group(observations, conflicts)
    _take_place(devices)
    _inherit(devices)
    gpus: list[Gpu] = []
    for device in sorted(devices.values(), key=_order):
        readings = device.readings()
        if device.uuid is not None and device.said("uuid") is None:
            readings.append(Reading(field="uuid", value=device.uuid, source=device.probe))
        gpu, disagreements = build_gpu(
            device.key,
            readings,
            pci_address=device.address,
            partition=device.partition,
            kfd_cpu_nodes=kfd_cpu_nodes,
        )
        gpus.append(gpu)
        conflicts += disagreements
    return _number(gpus), tuple(conflicts)


def _group(observations: Sequence[Observation], conflicts: list[Conflict]) -> dict[str, _Device]:
    """Bring the observations of one device together; those that no device answers to become conflicts."""
    items = [
        replace(item, pci_address=normal_pci_address(item.pci_address) if item.pci_address else None)
        for item in observations
    ]
    by_uuid = _by_uuid(items)
    devices: dict[str, _Device] = {}
    waiting: list[tuple[int, Observation, str]] = []
    for rank, item in enumerate(items):
        device = _Device(item.pci_address, item.partition, item.uuid, item.card, item.probe)
        if device.address is None and device.uuid is None and device.card is None:
            continue  # a library counts it and cannot say which it is
        key = by_uuid.get(device.uuid or "", device.key) if device.address is None else device.key
        if item.creates:
            devices.setdefault(key, device)
        waiting.append((rank, item, key))
    for rank, item, key in waiting:
        owners = [devices[key]] if key in devices else _partitions(devices, key)
        for owner in owners:
            owner.observed += [(rank, reading) for reading in item.readings]
        if not owners and any(reading.status == "ok" for reading in item.readings):
            message = f"{item.probe} names {key}, which PCI does not show"
            conflicts.append(
                Conflict(subject=key, kind="device", message=message, claims={item.probe: True, "pci": False})
            )
    return devices


def _by_uuid(items: Sequence[Observation]) -> dict[str, str]:
    """Map UUIDs to the keys of devices with an address, for sources that only know the UUID."""
    keys: dict[str, str] = {}
    for item in items:
        if item.pci_address is None:
            continue
        told = [reading.value for reading in item.readings if reading.field == "uuid" and reading.status == "ok"]
        for uuid in (item.uuid, *told):
            if uuid is not None:
                keys.setdefault(uuid, device_key(item.pci_address, item.partition, uuid))
    return keys


def _partitions(devices: Mapping[str, _Device], key: str) -> list[_Device]:
    """Find the partitions that stand for the function `key`, or the one partition that `key` names as a function.

    AMD's libraries number the partitions of a GPU as functions: 0000:05:00.3 is partition 3 of 0000:05:00.0.
    """
    parts = [device for device in devices.values() if device.address == key and device.partition is not None]
    named = devices.get(f"{key[:-1]}0/{key[-1]}")
    return parts or ([named] if named is not None else [])


def _take_place(devices: dict[str, _Device]) -> None:
    """Let the devices that a library names take the place of the stand-in for their vendor's GPU."""
    for key, device in list(devices.items()):
        if device.address is not None or device.probe not in _STAND_INS:
            continue
        vendor = device.said("vendor")
        named = [
            other
            for other in devices.values()
            if other.probe in {"nvml", "amdsmi"} and other.partition is None and other.said("vendor") == vendor
        ]
        for other in named:
            other.observed += [(rank, reading) for rank, reading in device.observed if reading.field != "uuid"]
        if named:
            del devices[key]


def _inherit(devices: dict[str, _Device]) -> None:
    """Give partitions what their function tells. A function whose KFD nodes are partitions is no device beside them."""
    for device in list(devices.values()):
        whole = devices.get(device.address or "")
        if device.partition is None or whole is None:
            continue
        # What a partition tells of itself (a MIG instance: its name, its peers) is not its GPU's.
        told = {reading.field for _, reading in device.observed if reading.status == "ok"}
        device.observed += [
            (rank, replace(reading, detail=reading.detail or f"of the whole function {whole.address}"))
            for rank, reading in whole.observed
            if (reading.field not in told and reading.field not in _OWN)
            # The card is the function's; of the render nodes, the first partition has the function's own.
            or (reading.field == "drm" and device.partition == "0")
        ]
    for device in list(devices.values()):
        if device.partition is not None and device.probe == "kfd":
            devices.pop(device.address or "", None)


def _order(device: _Device) -> tuple[object, ...]:
    """PCI order, then partitions by number; devices without an address come last."""
    if device.address is None:
        return 1, (0, 0, 0, 0), _natural(device.key)
    return 0, pci_sort_key(device.address), _natural(device.partition or "")


def _natural(text: str) -> tuple[tuple[int, int, str], ...]:
    parts: list[tuple[int, int, str]] = []
    digits = ""
    for char in [*text, ""]:
        if char.isdigit() and char.isascii():
            digits += char
            continue
        if digits:
            parts.append((0, int(digits), ""))
            digits = ""
        if char:
            parts.append((1, 0, char))
    return tuple(parts)


def _number(gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    counts: Counter[str] = Counter()
    numbered = []
    for gpu in gpus:
        numbered.append(replace(gpu, id=f"{gpu.vendor}{counts[gpu.vendor]}"))
        counts[gpu.vendor] += 1
    return tuple(numbered)
