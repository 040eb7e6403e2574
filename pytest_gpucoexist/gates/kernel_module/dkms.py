"""What DKMS added, built and installed, from its folder of states; `dkms` itself is never run.

`/var/lib/dkms/MODULE/VERSION/` is there once a module was added, `VERSION/KERNEL/ARCH/module/` once it was built, and
`kernel-KERNEL-ARCH` links to the version that is installed (the functions `is_module_*` of dkms.in).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pytest_gpucoexist.gates.asked import VENDOR_NAMES
from pytest_gpucoexist.gates.findings import Finding, failed, passed, skipped, unknown, warned
from pytest_gpucoexist.gates.kernel_module.ondisk import release
from pytest_gpucoexist.gates.kernel_module.rules import in_container
from pytest_gpucoexist.gates.kernel_module.state import is_in, module_state
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.verdicts import Evidence, Fix
from pytest_gpucoexist.probes.reader import Bad

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject

__all__ = ["DkmsModule", "dkms_modules", "dkms_status"]

TREE = "/var/lib/dkms"
_STATES = ("installed", "built", "added")

# Packages of GPU drivers, and the module that each brings.
_PACKAGES = (
    (re.compile(r"nvidia([-_].*)?"), "nvidia", "nvidia"),
    (re.compile(r"amdgpu([-_].*)?"), "amd", "amdgpu"),
    (re.compile(r"(intel-)?i915([-_].*)?|intel-i915.*"), "intel", "i915"),
    (re.compile(r"(intel-)?xe([-_].*)?"), "intel", "xe"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DkmsModule:
    """One version of one package, and how far it came for the running kernel."""

    package: str
    version: str
    vendor: str
    module: str
    state: Literal["added", "built", "installed"]
    path: str


def dkms_modules(subject: Subject) -> list[DkmsModule] | Bad:
    """List the GPU drivers that DKMS knows here, with their states for the running kernel."""
    return subject.shared(("kernel_module", "dkms"), lambda: _read(subject))


def _read(subject: Subject) -> list[DkmsModule] | Bad:
    container = in_container(subject)
    if container is not None:
        return Bad(f"a container ({container}) does not hold the host's DKMS", "unsupported")
    if not subject.host.exists(TREE):
        return Bad(f"{TREE} is not here", "absent")
    kernel = release(subject)
    if kernel is None:
        return Bad("the running kernel's release is not known")
    found: list[DkmsModule] = []
    for package in subject.names(TREE):
        known = next(((vendor, module) for name, vendor, module in _PACKAGES if name.fullmatch(package)), None)
        if known is None:
            continue
        names = subject.names(f"{TREE}/{package}")
        installed = {_target(subject, package, name) for name in names if name.startswith(f"kernel-{kernel}-")}
        for version in names:
            folder = f"{TREE}/{package}/{version}"
            inside = subject.names(folder)
            if version.startswith("kernel-") or not inside:
                continue
            built = kernel in inside and any(
                subject.host.exists(f"{folder}/{kernel}/{arch}/module") for arch in subject.names(f"{folder}/{kernel}")
            )
            state: Literal["added", "built", "installed"] = "built" if built else "added"
            found.append(
                DkmsModule(
                    package=package,
                    version=version,
                    vendor=known[0],
                    module=known[1],
                    state="installed" if built and version in installed else state,
                    path=folder,
                )
            )
    return found


def _target(subject: Subject, package: str, name: str) -> str | None:
    """Return the version to which `kernel-KERNEL-ARCH` links."""
    try:
        return subject.host.read_link(f"{TREE}/{package}/{name}").rstrip("/").split("/")[-3]
    except (OSError, IndexError):
        return None


@gate(
    "kmod.dkms_status",
    group="kernel-module",
    title="DKMS built the GPU drivers for this kernel",
    reads="/var/lib/dkms: versions, builds for the running kernel, and the links of what is installed",
    criterion="each GPU driver that DKMS keeps is installed for the running kernel",
    why="a kernel update whose rebuild failed leaves the machine without the driver, at once or after the next boot",
    action="build it for the running kernel and read make.log where that fails",
    source="ROCm/legacy-rocm-build#6354 (ROCm and NVIDIA on one host); amd/node-scraper plugins/inband/dkms",
)
def dkms_status(subject: Subject) -> Iterator[Finding]:
    """Judge, for each package, the version that came furthest."""
    modules = dkms_modules(subject)
    if isinstance(modules, Bad):
        if modules.status in {"absent", "unsupported"}:
            yield skipped(f"no GPU driver by DKMS: {modules.detail}")
        else:
            yield unknown(modules.detail)
        return
    here = {gpu.vendor for gpu in subject.gpus()}
    best: dict[str, DkmsModule] = {}
    for module in modules:
        if module.vendor in here:
            known = best.get(module.package)
            if known is None or _STATES.index(module.state) < _STATES.index(known.state):
                best[module.package] = module
    if not best:
        yield skipped("DKMS keeps no driver of the GPUs here")
    for module in best.values():
        yield _judge(subject, module)


def _judge(subject: Subject, module: DkmsModule) -> Finding:
    kernel = release(subject)
    label = f"{module.package} {module.version}"
    evidence = Evidence(source=module.path, found=f"{module.state} for {kernel}", expected=f"installed for {kernel}")
    gpus = subject.functions(module.vendor)
    if module.state == "installed":
        return passed(f"DKMS installed {label} for this kernel", evidence, on=gpus)
    fix = (Fix(lines=(f"sudo dkms install {module.package}/{module.version} -k {kernel}",)),)
    words = f"DKMS has {label} {module.state}, but not installed, for the running kernel {kernel}"
    wanted = subject.wanted(module.vendor)
    state = module_state(subject, module.module)
    if state == "absent" and wanted is not None and module.module != "xe":
        reason = f"{words}, and {module.module} is not loaded, though {wanted}"
        return failed(reason, evidence, on=gpus, fix=fix)
    if is_in(state):
        words += f"; the {module.module} that is loaded comes from elsewhere, or its build is gone"
    elif not isinstance(state, Bad) and wanted is None:
        return skipped(f"{words}; nothing here asks for {VENDOR_NAMES[module.vendor]} GPUs", on=gpus)
    return warned(words, evidence, on=gpus, fix=fix)
