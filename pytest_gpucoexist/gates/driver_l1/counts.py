"""Whether everybody counts the same GPUs: the bus, the kernel driver, its nodes and its libraries.

Only what is granted here is compared: a container that holds two of eight GPUs is healthy.
"""

from __future__ import annotations

import errno
import re
from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.boards import no_reply, other_driver
from pytest_gpucoexist.gates.driver_l1.answers import driven
from pytest_gpucoexist.gates.driver_l1.errors import silent
from pytest_gpucoexist.gates.findings import Finding, failed, passed, skipped, unknown, warned
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.gates.vendors import address_of, devices, library_reply, vendor_reply
from pytest_gpucoexist.model.identity import normal_pci_address
from pytest_gpucoexist.model.verdicts import Evidence
from pytest_gpucoexist.probes.cells import value_of
from pytest_gpucoexist.probes.pci import BUS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject

_PROC = "/proc/driver/nvidia/gpus"
_MINOR = re.compile(r"^Device Minor:\s*(\d{1,4})\s*$", re.MULTILINE)
_HIP_MASKS = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
_ZE_MASKS = ("ZE_AFFINITY_MASK", "ONEAPI_DEVICE_SELECTOR")


@gate(
    "drv.nv.count_match",
    group="driver",
    title="Bus, driver and NVML count the same NVIDIA GPUs",
    reads="PCI functions that nvidia holds and that are granted here; /proc/driver/nvidia/gpus; NVML; the right to open"
    " /dev/nvidiaN of a GPU that NVML leaves out",
    criterion="each of these GPUs is listed by the driver and by NVML, and none is gone from the bus",
    why="One that is missing is lost: work for it fails, and the indices of the others have moved.",
    action="Look for Xid 79 and RmInitAdapter in the kernel log; reboot",
    source="NVIDIA/DCGM nvvs/src/Software.cpp; NVIDIA/open-gpu-kernel-modules#1283",
    vendors=("nvidia",),
    level="standard",
    severity="fail",
    blocking=True,
)
def nvidia_count(subject: Subject) -> Iterator[Finding]:
    """Compare address by address, so that the GPU that is missing is named."""
    held = [gpu for gpu in subject.functions("nvidia") if other_driver(gpu) is None]
    gpus = {gpu.pci_address: gpu for gpu in held if gpu.pci_address is not None}
    if not gpus:
        yield skipped("no NVIDIA GPU here has a PCI function that nvidia holds")
        return
    for address in tuple(gpus):
        by_right = _left_out_by_right(subject, address)
        if by_right is not None:
            yield skipped(by_right, on=[gpus.pop(address)])
    if not gpus:
        return
    proc = {each for each in map(normal_pci_address, subject.names(_PROC)) if each is not None}
    reply = vendor_reply(subject, "nvidia")
    listed = {address_of(device) for device in devices(reply)}
    counted = {key for _, keys in silent(subject, reply) for key in keys}
    evidence = [
        Evidence(source="/sys/bus/pci/drivers/nvidia, granted here", found=", ".join(sorted(map(str, gpus)))),
        Evidence(source=_PROC, found=", ".join(sorted(proc)) or "not told"),
        Evidence(source="NVML", found=", ".join(sorted(filter(None, listed))) or f"{reply.status}: {reply.detail}"),
    ]
    gone = [each for each in sorted({*proc, *filter(None, listed)}) if not _on_the_bus(subject, each)]
    wrong = bool(gone)
    if gone:
        # No device of ours is left to be taken out, and the others answer.
        yield failed(f"{', '.join(gone)} is known to the driver and gone from the bus", *evidence, blocking=False)
    for address, gpu in gpus.items():
        on = [each for each in subject.gpus("nvidia") if each.pci_address == address]
        if proc and address not in proc:
            wrong = True
            yield failed("nvidia holds its PCI function and does not list it in /proc", *evidence, on=on)
        elif reply.status == "ok" and address not in listed and gpu.key not in counted:
            shut = _shut(subject, address)
            if shut is not None:
                yield skipped(f"NVML does not list it: {shut}", on=on)
                continue
            wrong = True
            yield failed("nvidia holds it and NVML does not list it", *evidence, on=on)
    if wrong:
        return
    if reply.status == "ok" or proc:
        among = "bus, driver and NVML" if reply.status == "ok" else "bus and driver"
        yield passed(f"{among} agree about {len(gpus)} GPUs", *evidence, on=gpus.values())
    else:
        yield no_reply(reply, "NVML", tuple(gpus.values()))


def _on_the_bus(subject: Subject, address: str) -> bool:
    return subject.host.exists(f"{BUS}/{address}") or not subject.host.exists(BUS)


def _left_out_by_right(subject: Subject, address: str) -> str | None:
    """Say why neither the driver nor NVML counts a function: a virtual one on its host, or one that was excluded."""
    if subject.host.exists(f"{BUS}/{address}/physfn"):
        return "a virtual function, which the host keeps for its virtual machines"
    information = subject.read(f"{_PROC}/{address}/information").text or ""
    if re.search(r"^GPU Excluded:\s*Yes", information, re.MULTILINE):
        return "it is excluded from use by the driver's parameter NVreg_ExcludedGpus"
    return None


def _shut(subject: Subject, address: str) -> str | None:
    """Say that this process may not open the GPU's node: then NVML leaves it out by right."""
    match = _MINOR.search(subject.read(f"{_PROC}/{address}/information").text or "")
    if match is None:
        return None
    path = f"/dev/nvidia{match[1]}"
    try:
        subject.host.may_open(path, write=True)
    except OSError as error:
        if error.errno in {errno.EACCES, errno.EPERM}:
            return f"this process may not open {path}"
    return None


@gate(
    "drv.amd.count_match",
    group="driver",
    title="Bus, KFD, AMD SMI and HIP count the same AMD GPUs",
    reads="PCI functions that amdgpu holds; KFD's nodes; amdsmi_get_processor_handles; hipGetDeviceCount",
    criterion="AMD SMI lists each; HIP counts what KFD has, where no mask is set",
    why="None in AMD SMI beside GPUs in KFD is two copies of a library in one process, and no missing hardware.",
    action="Look at lib.amd.duplicate_smi; else at what the kernel log says of KFD",
    source="ROCm/rocm-systems#7643; pytorch/pytorch#186516; ROCm/legacy-rocm-build#1214",
    vendors=("amd",),
    level="standard",
    severity="fail",
)
def amd_count(subject: Subject) -> Iterator[Finding]:
    """Compare addresses with AMD SMI, and numbers with HIP. Old boards are not in KFD, and HIP's masks hide some."""
    gpus = {gpu.pci_address: gpu for gpu in driven(subject, "amd") if gpu.pci_address is not None}
    if not gpus:
        yield skipped("no AMD GPU here has a PCI function that amdgpu holds")
        return
    in_kfd = [gpu for gpu in driven(subject, "amd") if gpu.kfd is not None and gpu.usable.rocm]
    smi, hip = library_reply(subject, "amdsmi"), library_reply(subject, "hip")
    listed = {address_of(device) for device in devices(smi)}
    hip_part = hip.data.get("hip") if isinstance(hip.data, dict) else None
    hip_count = value_of(hip_part, "count")
    evidence = [
        Evidence(source="/sys/bus/pci/drivers/amdgpu, granted here", found=", ".join(sorted(map(str, gpus)))),
        Evidence(source="KFD, usable here", found=str(len(in_kfd))),
        Evidence(source="AMD SMI", found=", ".join(sorted(filter(None, listed))) or f"{smi.status}: {smi.detail}"),
        Evidence(source="HIP", found=str(hip_count) if hip_count is not None else f"{hip.status}: {hip.detail}"),
    ]
    masked = next((name for name in _HIP_MASKS if subject.host.environ.get(name) is not None), None)
    if smi.status == "ok":
        missing = [gpu for address, gpu in gpus.items() if not any(_same(address, each) for each in listed)]
        if missing and not listed and in_kfd:
            yield failed("AMD SMI lists no GPU, and KFD has some: two copies of a library?", *evidence, on=missing)
            return
        if missing:
            yield warned("amdgpu holds it and AMD SMI does not list it", *evidence, on=missing)
            return
    if isinstance(hip_count, int) and masked is None and hip_count != len(in_kfd):
        yield warned(f"HIP counts {hip_count} GPUs, and KFD has {len(in_kfd)} that are usable", *evidence)
    elif smi.status == "ok":
        yield passed(f"the sources that answer agree about {len(gpus)} GPUs", *evidence, on=gpus.values())
    else:
        yield no_reply(smi, "AMD SMI", tuple(gpus.values()))


def _same(address: str | None, listed: str | None) -> bool:
    """Whether AMD SMI's address is of this function; it numbers partitions as functions."""
    return address is not None and listed is not None and address[:-1] == listed[:-1]


@gate(
    "drv.intel.count_match",
    group="driver",
    title="Bus and Level Zero count the same Intel GPUs",
    reads="GPUs that i915 or xe hold; zeDeviceGet of all drivers, whole cards",
    criterion="the same number, where no mask is set",
    why="A GPU that Level Zero leaves out has no driver for its generation, or its render node cannot be opened.",
    action="Install intel-level-zero-gpu for this generation; join the group render",
    source="intel/xpumanager docs/sphinx/xpu-smi; pytorch/pytorch#197790",
    vendors=("intel",),
    level="standard",
    severity="fail",
)
def intel_count(subject: Subject) -> Iterator[Finding]:
    """Compare the numbers. More on the bus only warns: Level Zero leaves old generations out."""
    gpus = driven(subject, "intel")
    if not gpus:
        yield skipped("no Intel GPU here is held by i915 or xe")
        return
    reply = library_reply(subject, "levelzero")
    if reply.status != "ok":
        yield no_reply(reply, "Level Zero", tuple(gpus))
        return
    count = value_of(reply.data, "count")
    masked = next((name for name in _ZE_MASKS if subject.host.environ.get(name) is not None), None)
    evidence = Evidence(source="Level Zero: zeDeviceGet", found=str(count), expected=str(len(gpus)))
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        yield unknown("Level Zero does not tell how many GPUs there are", evidence, on=gpus)
    elif masked is not None:
        yield skipped(f"{masked} is set: Level Zero counts what it leaves", on=gpus)
    elif count != len(gpus):
        yield warned(f"Level Zero counts {count} GPUs, and {len(gpus)} are held by i915 or xe", evidence)
    else:
        yield passed(f"bus and Level Zero agree about {count} GPUs", evidence, on=gpus)
