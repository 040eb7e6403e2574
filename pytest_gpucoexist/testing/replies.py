"""What NVML and AMD SMI answer on a built machine, in the form of the helpers `nvml` and `amdsmi`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.host.base import HelperReply
from pytest_gpucoexist.testing.config import SPEED_CODES
from pytest_gpucoexist.testing.drivers import VBIOS
from pytest_gpucoexist.testing.health import amdsmi_health, nvml_health
from pytest_gpucoexist.testing.vendor_replies import AmdGpu, NvmlGpu, amdsmi_reply, nvml_reply

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpucoexist.testing.driven import DrivenGpu
    from pytest_gpucoexist.testing.parts import MachineParts

__all__ = ["amdsmi_answer", "nvml_answer", "runtime_answers"]

_NO_NVML = "libnvidia-ml.so.1: cannot open shared object file: No such file or directory"
_NVML_LOST = ("broken", "NVML: GPU is lost")
_AMD_LOST = {"status": "broken", "detail": "AMD SMI: AMDSMI_STATUS_IO - I/O Error"}
_ALL_BLOCKS = 0x3FFF
_MIG_CAPABLE = {"8.0", "9.0"}  # GA100 and GH100 (MIG User Guide, "Supported GPUs")


def nvml_answer(gpus: Sequence[DrivenGpu], parts: MachineParts) -> HelperReply:
    """Answer as NVML does: it counts the GPUs of its driver whose nodes this process may open."""
    driven = [gpu for gpu in gpus if gpu.part.driver == "nvidia"]
    if not driven:
        return HelperReply(status="absent", data={"cause": "no-library"}, detail=f"NVML is not installed: {_NO_NVML}")
    counted = [gpu for gpu in driven if not gpu.part.withheld and not gpu.part.denied]
    if not counted:
        detail = "NVML: no permission to talk to the nvidia driver"
        return HelperReply(status="denied", data={"cause": "denied"}, detail=detail)
    data = nvml_reply([_nvml_gpu(gpu) for gpu in counted], driver_version=parts.nvidia_driver)
    for gpu, device in zip(counted, data["devices"], strict=True):
        if device["fault"] is None:
            device["health"] = nvml_health(gpu.part.model, gpu.part.health)
    data["confidential_compute"] = {"status": "unsupported", "detail": "NVML: Not Supported"}
    return HelperReply(status="ok", data=data, duration_s=0.1)


def amdsmi_answer(gpus: Sequence[DrivenGpu], parts: MachineParts) -> HelperReply:
    """Answer as AMD SMI does: it counts the GPUs that amdgpu drives and that were granted."""
    driven = [gpu for gpu in gpus if gpu.part.driver == "amdgpu" and not gpu.part.withheld]
    if not driven:
        detail = "AMD SMI is installed, but the amdgpu driver is not loaded"
        return HelperReply(status="unsupported", data={"cause": "not-loaded"}, detail=detail)
    data = amdsmi_reply([_amd_gpu(gpu) for gpu in driven], driver_version=parts.kernel)
    for gpu, device in zip(driven, data["devices"], strict=True):
        device["health"] = amdsmi_health(gpu.part.model, gpu.part.health)
        if gpu.part.lost:
            _break(device)
    return HelperReply(status="ok", data=data, duration_s=0.1)


def runtime_answers(gpus: Sequence[DrivenGpu], parts: MachineParts) -> dict[str, HelperReply]:
    """Answer as the helpers `cuda`, `hip` and `levelzero` do, each where its driver has a GPU that was granted."""
    drivers = {"cuda": ("nvidia",), "hip": ("amdgpu",), "levelzero": ("i915", "xe")}
    answers = {}
    for helper, names in drivers.items():
        driven = [gpu for gpu in gpus if gpu.part.driver in names and not gpu.part.withheld and not gpu.part.denied]
        if not driven:
            answers[helper] = HelperReply(status="absent", data={"cause": "no-library"}, detail="not installed")
            continue
        init, count = {"value": 0}, {"value": len(driven)}
        in_kfd = sum(gpu.kfd_node is not None for gpu in driven)
        data: dict[str, dict[str, Any]] = {
            "cuda": {
                "library": "libcuda.so.1",
                "path": f"/usr/lib/x86_64-linux-gnu/libcuda.so.{parts.nvidia_driver}",
                "init": init,
                "driver_version": {"value": 12080},
                "count": count,
            },
            "hip": {
                "hsa": {"library": "libhsa-runtime64.so.1", "path": None, "init": init},
                "hip": {"library": "libamdhip64.so.6", "path": None, "init": init, "count": {"value": in_kfd}},
            },
            "levelzero": {
                "library": "libze_loader.so.1",
                "path": None,
                "init": init,
                "drivers": {"value": 1},
                "count": count,
                "memories": [[{"value": 1}] for _ in driven],
            },
        }
        answers[helper] = HelperReply(status="ok", data=data[helper], duration_s=0.1)
    return answers


def _nvml_gpu(gpu: DrivenGpu) -> NvmlGpu:
    model = gpu.part.model
    speed, width = gpu.part.link or (model.speed_gtps, model.width)
    bar = 1 << (model.memory_bytes - 1).bit_length() if model.large_bar else 256 * 2**20
    return NvmlGpu(
        pci_address=gpu.address,
        uuid=gpu.uuid,
        name=model.name,
        memory_total_bytes=model.memory_bytes,
        memory_used_bytes=gpu.part.memory_used_bytes,
        compute_capability=model.arch,
        minor=gpu.nvidia_minor or 0,
        device_id=model.device_id,
        subsystem_id=model.subsystem_id,
        vbios_version=VBIOS["nvidia"],
        bar1_total_bytes=bar,
        ecc=True if model.ecc else None,
        mig=bool(gpu.part.instances) if model.arch in _MIG_CAPABLE else None,
        instances=gpu.part.instances,
        memory_nodes=(gpu.part.numa_node,),
        pcie_generation=SPEED_CODES[speed],
        pcie_max_generation=SPEED_CODES[model.speed_gtps],
        pcie_width=width,
        pcie_max_width=model.width,
        persistence=False,
        processes=gpu.part.processes,
        fault=_NVML_LOST if gpu.part.lost else None,
    )


def _amd_gpu(gpu: DrivenGpu) -> AmdGpu:
    model = gpu.part.model
    speed, width = gpu.part.link or (model.speed_gtps, model.width)
    return AmdGpu(
        pci_address=gpu.address,
        uuid=gpu.uuid,
        name=model.name,
        target=model.arch,
        memory_total_bytes=model.memory_bytes,
        memory_used_bytes=gpu.part.memory_used_bytes,
        device_id=model.device_id,
        compute_units=model.compute_units,
        vbios_version=VBIOS["amdgpu"],
        vbios_part_number=VBIOS["amdgpu"],
        kfd_node=gpu.kfd_node,
        numa_node=gpu.part.numa_node,
        ecc_blocks=_ALL_BLOCKS if model.ecc else 0,
        pcie_mtps=round(speed * 1000),
        pcie_width=width,
        pcie_max_mtps=round(model.speed_gtps * 1000),
        pcie_max_width=model.width,
        processes=gpu.part.processes,
    )


def _break(device: dict[str, Any]) -> None:
    """Let everything but the address fail: AMD SMI still finds the folder in sysfs."""
    device["health"] = {name: dict(_AMD_LOST) for name in device["health"]}
    for name in device:
        if name not in {"index", "fault", "bdf", "health"}:
            device[name] = dict(_AMD_LOST)
