"""Machines for the tests of visibility: only what masks look at."""

from __future__ import annotations

from pytest_gpucoexist.model.machine import Gpu, KfdNode, Machine

NVIDIA_UUIDS = ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "GPU-ec331ddc-12c5-4b42-9a8b-77a6e8d7b9d1")
AMD_UNIQUE = (0x12AB34CD56EF7890, 0xA1B2C3D4E5F60718)
MIG_UUIDS = ("MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f", "MIG-cba663e8-9bed-5b25-b243-5985ef7c9beb")


def nvidia(index: int, **changes: object) -> Gpu:
    values: dict[str, object] = {
        "id": f"nvidia{index}",
        "pci_address": f"0000:{0x41 + index:02x}:00.0",
        "vendor": "nvidia",
        "kind": "discrete",
        "device_id": "0x2684",
        "driver": "nvidia",
        "uuid": NVIDIA_UUIDS[index] if index < 2 else f"GPU-{index:08x}-0000-4000-8000-000000000000",
    }
    return Gpu(**{**values, **changes})  # type: ignore[arg-type]


def amd(index: int, unique_id: int | None = -1, **changes: object) -> Gpu:
    unique = (AMD_UNIQUE[index] if index < 2 else 0x100 + index) if unique_id == -1 else unique_id
    values: dict[str, object] = {
        "id": f"amd{index}",
        "pci_address": f"0000:{0x81 + index:02x}:00.0",
        "vendor": "amd",
        "kind": "discrete",
        "driver": "amdgpu",
        "kfd": KfdNode(node=index + 2, unique_id=unique),
    }
    return Gpu(**{**values, **changes})  # type: ignore[arg-type]


def intel(index: int, **changes: object) -> Gpu:
    values: dict[str, object] = {
        "id": f"intel{index}",
        "pci_address": f"0000:{0xC1 + index:02x}:00.0",
        "vendor": "intel",
        "kind": "discrete",
        "driver": "xe",
    }
    return Gpu(**{**values, **changes})  # type: ignore[arg-type]


def mig(parent: Gpu, index: int, uuid: str) -> Gpu:
    return nvidia(index, id=f"mig{index}", pci_address=parent.pci_address, partition=f"mig{index + 1}.0", uuid=uuid)


def machine(*gpus: Gpu) -> Machine:
    return Machine(name="test", gpus=gpus)


def two_of_each() -> Machine:
    return machine(*(make(index) for make in (nvidia, amd, intel) for index in (0, 1)))


def visible(found: Machine) -> list[str]:
    return [gpu.id for gpu in found.gpus if gpu.visible]
