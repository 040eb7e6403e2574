"""Versions that must be one: the parts of the NVIDIA driver, what is loaded and what the disk would load next."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.asked import VENDOR_NAMES
from pytest_gpucoexist.gates.findings import Finding, failed, passed, skipped, unknown, warned
from pytest_gpucoexist.gates.kernel_module.dkms import dkms_modules
from pytest_gpucoexist.gates.kernel_module.ondisk import module_info
from pytest_gpucoexist.gates.kernel_module.state import module_state
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.verdicts import Evidence
from pytest_gpucoexist.probes.nvidia_driver import VERSION_FILE, parse_version
from pytest_gpucoexist.probes.reader import Bad, excerpt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject

__all__ = ["amd_disk_vs_loaded", "loaded_version", "minimum_version", "nvidia_disk_vs_loaded", "siblings"]

_PARTS = ("nvidia", "nvidia_uvm", "nvidia_modeset", "nvidia_drm", "nvidia_peermem")
_VERSION = re.compile(r"\d+(?:\.\d+)+", re.ASCII)
_SOURCE_VERSION = re.compile(r"[0-9A-F]{8,40}")


def loaded_version(subject: Subject) -> Evidence | Bad:
    """Return the version of the loaded nvidia module, as `found`; a Bad is `absent` where none is loaded.

    A tree that shows no modules at all tells nothing: then the Bad is `broken`.
    """
    text = subject.read("/sys/module/nvidia/version", 256)
    if text.text is not None:
        version = text.text.strip()
        if _VERSION.fullmatch(version):
            return Evidence(source=text.path, found=version)
        return Bad(f"{text.path} says {excerpt(version)}")
    told = subject.read(VERSION_FILE, 4096)
    if told.text is not None:
        parsed = parse_version(told.text)
        if parsed is None:
            return Bad(f"{VERSION_FILE} makes no sense: {excerpt(told.text)}")
        return Evidence(source=VERSION_FILE, found=parsed[0])
    if {text.status, told.status} == {"absent"} and not isinstance(module_state(subject, "nvidia"), Bad):
        return Bad(f"{text.path}: {text.detail}", "absent")
    return Bad(f"{text.path}: {text.detail}")


@gate(
    "drv.nv.siblings",
    group="driver",
    title="The parts of the NVIDIA kernel driver are of one version",
    reads="/proc/driver/nvidia/version and /sys/module/nvidia, nvidia_uvm, nvidia_modeset, nvidia_drm, nvidia_peermem",
    criterion="every loaded part states the same version",
    why="CUDA fails to initialise, or one part crashes another, when a part is left over from another release",
    action="rebuild the driver for the running kernel (DKMS, akmods) and reboot",
    source="void-linux/void-packages#4473",
    vendors=("nvidia",),
    severity="fail",
)
def siblings(subject: Subject) -> Iterator[Finding]:
    """Compare what each loaded part states."""
    found: list[Evidence] = []
    for name in _PARTS:
        text = subject.read(f"/sys/module/{name}/version", 256)
        if text.text is None:
            if text.status != "absent":
                yield unknown(f"the version of {name} is not known: {text.detail}")
                return
            continue
        version = text.text.strip()
        if not _VERSION.fullmatch(version):
            yield unknown(f"{text.path} says {excerpt(version)}, which is no version")
            return
        found.append(Evidence(source=text.path, found=version))
    told = parse_version(subject.read(VERSION_FILE, 4096).text or "")
    if told is not None:
        found.append(Evidence(source=VERSION_FILE, found=told[0]))
    versions = sorted({each.found for each in found})
    if not found:
        state = module_state(subject, "nvidia")
        if isinstance(state, Bad):
            yield unknown(f"whether the NVIDIA driver is loaded is not known: {state.detail}")
        else:
            yield skipped("the NVIDIA driver is not loaded, or states no version")
    elif len(versions) == 1:
        yield passed(f"{len(found)} source(s) say {versions[0]}", *found)
    else:
        words = ", ".join(f"{each.source.split('/')[3]} {each.found}" for each in found)
        yield failed(f"parts of the NVIDIA driver differ: {words}", *found, on=subject.functions("nvidia"))


@gate(
    "drv.nv.disk_vs_loaded",
    group="driver",
    title="The NVIDIA module on disk is the one that is loaded",
    reads="/sys/module/nvidia/version; the module's file for the running kernel, or what DKMS installed",
    criterion="both are of one version",
    why="after an update without a reboot the libraries are new and the module is old: the next program that starts "
    "gets `Driver/library version mismatch`",
    action="reboot before the tests, or unload and load the modules",
    source="NVIDIA/open-gpu-kernel-modules#829; stackhpc/ansible-slurm-appliance#287",
    vendors=("nvidia",),
)
def nvidia_disk_vs_loaded(subject: Subject) -> Iterator[Finding]:
    """Compare the loaded version with the file that the next load would take."""
    loaded = loaded_version(subject)
    if isinstance(loaded, Bad):
        if loaded.status == "absent":
            yield skipped("nvidia is not loaded")
        else:
            yield unknown(f"which nvidia is loaded is not known: {loaded.detail}")
        return
    disk = _nvidia_on_disk(subject)
    if isinstance(disk, Bad):
        yield _not_on_disk("nvidia", disk)
    elif disk.found == loaded.found:
        yield passed(f"{loaded.found} is loaded and on disk", loaded, disk)
    else:
        yield warned(
            f"nvidia {loaded.found} is loaded, and {disk.found} is on disk: the driver was updated without a reboot",
            Evidence(source=loaded.source, found=loaded.found, expected=disk.found),
            disk,
            on=subject.functions("nvidia"),
        )


def _nvidia_on_disk(subject: Subject) -> Evidence | Bad:
    info = module_info(subject, "nvidia")
    if not isinstance(info, Bad):
        version = info.version or ""
        if not _VERSION.fullmatch(version):
            return Bad(f"{info.path} states no version")
        return Evidence(source=info.source, found=version)
    known = dkms_modules(subject)
    if info.status == "unsupported" and not isinstance(known, Bad):
        for module in known:
            if module.module == "nvidia" and module.state == "installed" and _VERSION.fullmatch(module.version):
                return Evidence(source=module.path, found=module.version)
    return info


@gate(
    "drv.amd.disk_vs_loaded",
    group="driver",
    title="The amdgpu module on disk is the one that is loaded",
    reads="/sys/module/amdgpu/srcversion; the same of the module's file for the running kernel",
    criterion="both checksums of the module's sources are equal",
    why="after an update without a reboot, or with an initramfs that was not rebuilt, the old amdgpu runs under a new "
    "ROCm",
    action="rebuild the initramfs and reboot",
    source="amd/node-scraper plugins/inband/kernel_module",
    vendors=("amd",),
)
def amd_disk_vs_loaded(subject: Subject) -> Iterator[Finding]:
    """Compare the checksums that modpost wrote into the module."""
    text = subject.read("/sys/module/amdgpu/srcversion", 256)
    if text.text is None:
        state = module_state(subject, "amdgpu")
        if text.status == "absent" and state == "absent":
            yield skipped("amdgpu is not loaded")
        elif text.status == "absent" and not isinstance(state, Bad):
            yield skipped("amdgpu is built in, or this kernel's modules carry no checksum of their sources")
        else:
            yield unknown(f"which amdgpu is loaded is not known: {text.path}: {text.detail}")
        return
    loaded = text.text.strip()
    if not _SOURCE_VERSION.fullmatch(loaded):
        yield unknown(f"{text.path} says {excerpt(loaded)}, which is no checksum")
        return
    info = module_info(subject, "amdgpu")
    if isinstance(info, Bad):
        yield _not_on_disk("amdgpu", info)
        return
    disk = info.fields.get("srcversion", "")
    if not _SOURCE_VERSION.fullmatch(disk):
        yield unknown(f"{info.path} has no checksum of its sources")
        return
    evidence = Evidence(source=text.path, found=loaded, expected=disk), Evidence(source=info.source, found=disk)
    if disk == loaded:
        yield passed("the amdgpu on disk is the one that is loaded", *evidence)
    else:
        yield warned(
            f"another amdgpu is loaded than {info.path}: it was updated without a reboot, or the initramfs is older",
            *evidence,
            on=subject.functions("amd"),
        )


def _not_on_disk(name: str, why: Bad) -> Finding:
    if why.status == "unsupported":
        return skipped(why.detail)
    return unknown(f"the {name} on disk is not known: {why.detail}")


_LIMITS = {f"{vendor}_{part}": 0.0 for vendor in ("nvidia", "amd", "intel") for part in ("major", "minor")}


@gate(
    "drv.minimum_version",
    group="driver",
    title="The drivers are new enough",
    reads="the version of each vendor's kernel driver: its own, else the kernel's release",
    criterion="at least the version that `gpu_gate_limits` asks for, by its first two numbers; 0 asks for none",
    why="features and fixes that tests rely on came with a certain release",
    action="update the driver, or lower the limit",
    source="scitix/sichek components/nvidia/checker/check_software.go",
    limits=_LIMITS,
)
def minimum_version(subject: Subject) -> Iterator[Finding]:
    """Compare the first two numbers of each driver's version with the limits."""
    asked = False
    for vendor, name in VENDOR_NAMES.items():
        least = tuple(int(subject.limit("drv.minimum_version", f"{vendor}_{part}", 0.0)) for part in ("major", "minor"))
        gpus = subject.gpus(vendor)
        if least == (0, 0) or not gpus:
            continue
        asked = True
        for gpu in gpus:
            wanted = f"at least {least[0]}.{least[1]}"
            version = gpu.driver_version
            match = re.match(r"(\d{1,9})(?:\.(\d{1,9}))?", version or "", re.ASCII)
            if match is None:
                yield unknown(f"the version of the {name} driver is not known", on=[gpu])
                continue
            fact = gpu.facts.get("driver_version")
            evidence = Evidence(source=fact.source if fact is not None else "", found=str(version), expected=wanted)
            if (int(match[1]), int(match[2] or 0)) < least:
                yield warned(f"{gpu.driver} {version} is older than {least[0]}.{least[1]}", evidence, on=[gpu])
            else:
                yield passed(f"{gpu.driver} {version} is {wanted}", evidence, on=[gpu])
    if not asked:
        yield skipped("no minimum is set for the GPUs here")
