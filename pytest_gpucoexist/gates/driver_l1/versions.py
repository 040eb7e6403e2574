"""Whether kernel module and libraries are of one release, and boards of one model have one VBIOS."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.gates.boards import Board, boards, no_reply
from pytest_gpucoexist.gates.driver_l1.answers import cause_of, driven
from pytest_gpucoexist.gates.findings import Finding, failed, passed, skipped, unknown, warned
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.gates.vendors import library_reply, vendor_reply
from pytest_gpucoexist.model.verdicts import Evidence
from pytest_gpucoexist.probes.cells import value_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.model.machine import Gpu

_MODULE = "/sys/module/nvidia/version"
_VERSION = re.compile(r"\d{2,4}\.\d{1,4}(?:\.\d{1,4})?")
_SUFFIX = re.compile(r"\.so\.(\d{2,4}\.\d{1,4}(?:\.\d{1,4})?)$")
_SYSTEM_DRIVER_MISMATCH = 803  # cuda.h


@gate(
    "drv.nv.version_match",
    group="driver",
    title="NVIDIA's kernel module and libraries are of one release",
    reads="/sys/module/nvidia/version; NVML's own version; the file that libcuda.so.1 really is; cuInit",
    criterion="all the same; libcuda from CUDA's forward-compatibility package aside",
    why="Libraries refuse a kernel module of another release: nothing runs until a reboot.",
    action="Reboot, or unload and load the nvidia modules, after the upgrade; in a container, restart it",
    source="tinygrad/open-gpu-kernel-modules#47; ublue-os/bazzite#2668; mej/nhc scripts/lbnl_nv.nhc",
    vendors=("nvidia",),
    level="standard",
    severity="fail",
    blocking=True,
)
def version_match(subject: Subject) -> Iterator[Finding]:
    """Compare what the libraries that were really loaded say with what the kernel says."""
    on = driven(subject, "nvidia")
    if not on:
        yield skipped("no NVIDIA GPU here is held by nvidia")
        return
    nvml, cuda = vendor_reply(subject, "nvidia"), library_reply(subject, "cuda")
    module = (subject.read(_MODULE).text or "").strip()
    versions = {source: version for source, version in _libraries(nvml.data, cuda.data) if version is not None}
    evidence = [
        Evidence(source=_MODULE, found=module or "not told"),
        *(Evidence(source=source, found=version, expected=module or None) for source, version in versions.items()),
    ]
    if cause_of(nvml) == "mismatch":
        found = Evidence(source="NVML: initialise", found=nvml.detail or "mismatch", expected="success")
        yield failed("NVIDIA's libraries are not of the release of the loaded kernel module", *evidence, found, on=on)
        return
    if value_of(cuda.data, "init") == _SYSTEM_DRIVER_MISMATCH:
        found = Evidence(source="cuInit", found="803 (system driver mismatch)", expected="0")
        yield failed("CUDA says that the loaded kernel module is of another release", *evidence, found, on=on)
        return
    if not _VERSION.fullmatch(module):
        absent = subject.read(_MODULE).status == "absent"
        why = "the kernel shows no version of nvidia (WSL, Jetson or a hidden /sys)"
        yield skipped(why, on=on) if absent else unknown(f"{_MODULE} makes no sense", *evidence, on=on)
        return
    other = {source: version for source, version in versions.items() if version != module}
    if other:
        words = "; ".join(f"{source} is {version}" for source, version in other.items())
        yield failed(f"the loaded kernel module is {module}, and {words}", *evidence, on=on)
    elif versions:
        yield passed(f"kernel module and libraries are {module}", *evidence, on=on)
    else:
        yield no_reply(nvml, "NVML", tuple(on))


def _libraries(nvml: Any, cuda: Any) -> Iterator[tuple[str, str | None]]:
    """Give the versions that libraries carry: NVML's own ("12.570.133.07"), and the names of the files."""
    own = value_of(nvml, "nvml_version")
    match = _VERSION.fullmatch(own.partition(".")[2]) if isinstance(own, str) else None
    yield "libnvidia-ml", match[0] if match else None
    client = nvml.get("client") if isinstance(nvml, dict) else None
    for name, path in (
        ("libnvidia-ml.so.1", client.get("library") if isinstance(client, dict) else None),
        ("libcuda.so.1", cuda.get("path") if isinstance(cuda, dict) else None),
    ):
        if isinstance(path, str) and "/compat/" not in path:
            suffix = _SUFFIX.search(path)
            yield f"{name} ({path})", suffix[1] if suffix else None
    told = value_of(nvml, "driver_version")
    yield "the driver, asked by NVML", told if isinstance(told, str) and _VERSION.fullmatch(told) else None


@gate(
    "drv.vbios_equal",
    group="driver",
    title="Boards of one model have one VBIOS",
    reads="the VBIOS version of boards with the same device and subsystem id",
    criterion="the same",
    why="Boards of one model that differ in speed or power limit often differ in this.",
    action="Flash the same VBIOS when their performance differs",
    source="Azure/azurehpc-health-checks customTests/azure_gpu_vbios.nhc",
    vendors=("nvidia", "amd"),
    level="standard",
    severity="info",
)
def vbios_equal(subject: Subject) -> Iterator[Finding]:
    """Compare boards that are the same product: of one maker, whose boards carry one VBIOS."""
    models: dict[tuple[str | None, str | None, str | None], list[Gpu]] = {}
    for gpu in subject.functions("nvidia", "amd"):
        models.setdefault((gpu.vendor_id, gpu.device_id, gpu.subsystem_id), []).append(gpu)
    several = [gpus for gpus in models.values() if len(gpus) > 1]
    if not several:
        yield skipped("no two boards here are of one model")
    told = _told_by_nvml(subject) if several else {}
    for gpus in several:
        versions = {gpu: gpu.vbios_version or told.get(gpu.pci_address) for gpu in gpus}
        known = {version for version in versions.values() if version is not None}
        evidence = Evidence(
            source="VBIOS version",
            found=", ".join(f"{gpu.pci_address} {version or 'not told'}" for gpu, version in versions.items()),
            expected="the same",
        )
        if len(known) > 1:
            yield warned(f"boards of one model have {len(known)} versions of the VBIOS", evidence, on=gpus)
        elif None in versions.values():
            yield unknown("the VBIOS of some boards could not be read", evidence, on=gpus)
        else:
            yield passed("boards of one model have one VBIOS", evidence, on=gpus)


def _told_by_nvml(subject: Subject) -> dict[str | None, str]:
    found: dict[str | None, str] = {}
    for board in boards(subject, "nvidia"):
        if isinstance(board, Board) and isinstance(version := value_of(board.cells, "vbios_version"), str):
            found[board.gpu.pci_address] = version
    return found
