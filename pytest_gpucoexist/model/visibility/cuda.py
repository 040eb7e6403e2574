"""`CUDA_VISIBLE_DEVICES` as CUDA reads it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytest_gpucoexist.model.visibility.tokens import Selection, leading_integer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpucoexist.model.machine import Gpu
    from pytest_gpucoexist.model.visibility.order import Counted

__all__ = ["names_devices", "select_cuda"]

_PREFIXES = ("GPU-", "MIG-")
# Driver R450 named instances by their GPU: MIG-GPU-<uuid>/<GPU instance>/<compute instance>.
_OLD_MIG = re.compile(r"MIG-(GPU-[0-9a-fA-F-]+)/(\d+)/(\d+)")


def names_devices(value: str) -> bool:
    """Whether the list names devices by UUID instead of index."""
    return value.startswith(_PREFIXES)


def select_cuda(value: str, counted: Counted, gpus: Sequence[Gpu]) -> Selection:
    """Apply the list to CUDA's devices. `gpus` are all NVIDIA GPUs, to find the parent of a MIG instance.

    Empty is none. The first entry that names no device ends the list; an entry that comes twice makes it empty.
    """
    if names_devices(value):
        return _by_name(value, counted, gpus)
    indices: list[int] = []
    remark = _odd_entries(value)
    for entry in value.split(","):
        index = leading_integer(entry)
        if index in indices:
            return Selection(remark=f"index {index} comes twice, and CUDA then shows no device")
        if index < 0:
            break
        indices.append(index)
    devices: list[str] = []
    for index in indices:
        if index >= len(counted.places):
            remark = remark or f"index {index} is out of range (CUDA counts {len(counted.places)}) and ends the list"
            break
        devices += [gpu.key for gpu in counted.places[index]]
    if counted.doubt and devices and len(devices) < len(counted.keys):
        remark = "; ".join(filter(None, (remark, counted.doubt)))
    return Selection(devices=tuple(devices), remark=remark)


def _odd_entries(value: str) -> str | None:
    # torch imitates strtoul here; what the driver does with these is not documented.
    for entry in value.split(",") if value else ():
        if entry != entry.strip() or not re.fullmatch(r"-?\d+", entry.strip(), re.ASCII):
            return f"what CUDA makes of the entry {entry!r} is not documented"
    return None


def _by_name(value: str, counted: Counted, gpus: Sequence[Gpu]) -> Selection:
    prefix = value[:4]
    devices: list[str] = []
    seen: set[str] = set()
    entries: list[str] = []
    for entry in value.split(","):
        if entry in entries:
            return Selection(remark=f"{entry} comes twice, and CUDA then shows no device")
        if not entry.startswith(prefix):
            break
        entries.append(entry)
    remark = None
    for entry in entries:
        found = _named(entry, counted, gpus)
        if len(found) != 1:
            what = "names no NVIDIA GPU here" if not found else f"fits {len(found)} GPUs"
            remark = f"{entry} {what} and ends the list"
            break
        if found[0][0].key in seen:
            return Selection(remark=f"{entry} names a device a second time, and CUDA then shows none")
        seen.add(found[0][0].key)
        devices += [gpu.key for gpu in found[0]]
    if prefix == "MIG-" and len(devices) > 1:
        remark = remark or "one CUDA process sees one MIG instance: the first"
    return Selection(devices=tuple(devices), remark=remark)


def _named(entry: str, counted: Counted, gpus: Sequence[Gpu]) -> list[tuple[Gpu, ...]]:
    old = _OLD_MIG.fullmatch(entry)
    if old is not None:
        uuid, instance, compute = old.groups()
        parents = {gpu.pci_address for gpu in gpus if gpu.uuid == uuid}
        numbers = [instance, compute]
        instances = [gpu for place in counted.places for gpu in place if gpu.pci_address in parents]
        return [(gpu,) for gpu in instances if re.findall(r"\d+", gpu.partition or "") == numbers]
    if entry.startswith("MIG-"):
        instances = [gpu for place in counted.places for gpu in place if gpu.partition]
        return [(gpu,) for gpu in instances if (gpu.uuid or "").startswith(entry)]
    parents = {gpu.pci_address or gpu.key for gpu in gpus if (gpu.uuid or "").startswith(entry)}
    return [place for place in counted.places if (place[0].pci_address or place[0].key) in parents]
