"""Which GPUs each runtime counts when nothing is masked, and in which order.

A GPU that a runtime cannot count (another driver is bound, its nodes are not granted here) has no index there, and
no mask can hide it: why it cannot be used is another fact.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpucoexist.model.identity import Vendor, pci_sort_key
from pytest_gpucoexist.model.machine import Gpu, Machine

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Counted", "amd_uuid", "count_cuda", "count_level_zero", "count_rocm", "of_vendor"]

# Bound to one of these, the function never reaches the vendor's own runtime.
_FOREIGN_DRIVERS = frozenset(
    {"nouveau", "nova_core", "nova-core", "vfio-pci", "pci-stub", "xen-pciback", "nvidiafb", "radeon"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """A runtime's device list. Position is the index; `doubt` says why an index could mean another device.

    A place holds more than one GPU where a physical GPU is split into MIG instances.
    """

    places: tuple[tuple[Gpu, ...], ...]
    doubt: str | None = None

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """All devices, in order."""
        return tuple(gpu for place in self.places for gpu in place)

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of all devices, in order."""
        return tuple(gpu.key for gpu in self.gpus)


def of_vendor(machine: Machine, vendor: Vendor) -> tuple[Gpu, ...]:
    """Return the GPUs of a vendor on which something could run, in bus order."""
    return tuple(sorted((gpu for gpu in machine.gpus if gpu.vendor == vendor and gpu.is_compute), key=_bus_order))


def count_cuda(machine: Machine, environ: Mapping[str, str]) -> Counted:
    """Count NVIDIA GPUs as CUDA does: by `CUDA_DEVICE_ORDER`, MIG instances under their GPU.

    The default, FASTEST_FIRST, is a heuristic of the driver that no file tells: it cannot matter between equal
    models, and otherwise the guess (compute capability, then memory, then bus) is marked as a doubt.
    """
    places = _physical(_reachable(of_vendor(machine, "nvidia"), "nvidia"))
    if environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or _all_equal([place[0] for place in places]):
        return Counted(places=places)
    ranked = sorted(places, key=lambda place: _speed(place[0]))
    return Counted(
        places=tuple(ranked),
        doubt="CUDA_DEVICE_ORDER is not PCI_BUS_ID and the NVIDIA GPUs differ, so CUDA's own order is a guess",
    )


def count_rocm(machine: Machine) -> Counted:
    """Count AMD GPUs as ROCR does: in the order of KFD's nodes, those that this process may not open left out."""
    amd = [gpu for gpu in of_vendor(machine, "amd") if gpu.granted]
    nodes = sorted((gpu for gpu in amd if gpu.kfd is not None), key=_kfd_order)
    if nodes:
        return Counted(places=tuple((gpu,) for gpu in nodes))
    return Counted(places=tuple((gpu,) for gpu in _reachable(amd, "amdgpu")))


def count_level_zero(machine: Machine, environ: Mapping[str, str]) -> Counted:
    """Count Intel GPUs as NEO does: discrete ones first, unless `ZE_ENABLE_PCI_ID_DEVICE_ORDER` asks for bus order."""
    intel = _reachable(of_vendor(machine, "intel"), "i915", "xe")
    if environ.get("ZE_ENABLE_PCI_ID_DEVICE_ORDER", "0") in {"", "0"}:
        intel = tuple(sorted(intel, key=lambda gpu: gpu.kind == "integrated"))
    return Counted(places=tuple((gpu,) for gpu in intel))


def amd_uuid(gpu: Gpu) -> str:
    """Write the name that ROCR and HIP match: `GPU-` and KFD's `unique_id` in 16 lower-case digits, else `GPU-XX`."""
    unique = gpu.kfd.unique_id if gpu.kfd is not None else None
    if unique:
        return f"GPU-{unique:016x}"
    text = (gpu.uuid or "").lower().removeprefix("gpu-").removeprefix("0x")
    if 1 <= len(text) <= 16 and all(char in "0123456789abcdef" for char in text) and int(text, 16):
        return f"GPU-{int(text, 16):016x}"
    return "GPU-XX"


def _bus_order(gpu: Gpu) -> tuple[bool, tuple[int, ...], tuple[int, ...], str]:
    # What has no PCI function (WSL2, Jetson) comes after what has one.
    address: tuple[int, ...] = pci_sort_key(gpu.pci_address) if gpu.pci_address else ()
    part = tuple(int(number) for number in re.findall(r"\d+", gpu.partition or ""))
    return gpu.pci_address is None, address, part, gpu.partition or ""


def _kfd_order(gpu: Gpu) -> int:
    return gpu.kfd.node if gpu.kfd is not None else 0


def _reachable(gpus: Sequence[Gpu], *drivers: str) -> tuple[Gpu, ...]:
    granted = tuple(gpu for gpu in gpus if gpu.granted and gpu.driver not in _FOREIGN_DRIVERS)
    bound = tuple(gpu for gpu in granted if gpu.driver in drivers or gpu.pci_address is None)
    # A recorded tree may lack the links that name drivers: then every function counts.
    return bound or granted


def _physical(gpus: Sequence[Gpu]) -> tuple[tuple[Gpu, ...], ...]:
    places: dict[str, list[Gpu]] = {}
    for gpu in gpus:
        places.setdefault(gpu.pci_address or gpu.key, []).append(gpu)
    return tuple(tuple([gpu for gpu in place if gpu.partition] or place) for place in places.values())


def _all_equal(gpus: Sequence[Gpu]) -> bool:
    return len({(gpu.device_id, None if gpu.device_id else gpu.name) for gpu in gpus}) <= 1


def _speed(gpu: Gpu) -> tuple[float, int, object]:
    try:
        capability = float(gpu.arch or 0)
    except ValueError:
        capability = 0.0
    return -capability, -(gpu.memory_total_bytes or 0), _bus_order(gpu)
