"""Which amdgpu is loaded: the kernel's own, or the one of amdgpu-dkms with its own copies of ttm and more."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.findings import Finding, passed, skipped, unknown, warned
from pytest_gpucoexist.gates.kernel_module.advice import rebuild_initramfs
from pytest_gpucoexist.gates.kernel_module.ondisk import module_tree
from pytest_gpucoexist.gates.kernel_module.state import loaded_names
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.verdicts import Evidence
from pytest_gpucoexist.probes.reader import Bad

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject

__all__ = ["amd_origin"]

_OUTSIDE = re.compile(r"/(updates|extra|weak-updates)/")


@gate(
    "kmod.amd.origin",
    group="kernel-module",
    title="One amdgpu: the kernel's own or that of amdgpu-dkms",
    reads="/sys/module/amdgpu/taint, /proc/modules (amdkcl, amdttm, who uses ttm), amdgpu's file in modules.dep",
    criterion="the amdgpu that is loaded comes from where modprobe takes it; amdttm and radeon are not loaded together",
    why="ROCm releases are tested with one of the two; an initramfs with the other one makes the choice differ by boot",
    action="keep one of them; rebuild the initramfs and reboot",
    source="ROCm/legacy-rocm-build#1528; amd/node-scraper plugins/inband/kernel_module",
    vendors=("amd",),
    severity="info",
)
def amd_origin(subject: Subject) -> Iterator[Finding]:
    """Compare what is loaded with what the disk would load."""
    names = loaded_names(subject)
    if names is None:
        yield unknown(f"/proc/modules: {subject.read('/proc/modules', 1 << 20).detail}")
        return
    line = names.get("amdgpu")
    if line is None:
        yield skipped("amdgpu is not loaded as a module")
        return
    taint = (subject.read("/sys/module/amdgpu/taint", 64).text or "").strip()
    # A module's own taint also stands at the end of its line: "… Live 0x0000000000000000 (OE)".
    marks = taint or (match[1] if (match := re.search(r"\(([A-Z+-]+)\)\s*$", line)) else "")
    outside = "O" in marks or "amdkcl" in names
    loaded = "amdgpu-dkms or another build from outside" if outside else "the kernel's own amdgpu"
    evidence = [Evidence(source="/proc/modules", found=line.strip()[:120])]
    gpus = subject.functions("amd")
    if "amdttm" in names and "radeon" in names.get("ttm", ""):
        found = Evidence(source="/proc/modules", found=names["ttm"].strip()[:120], expected="radeon not loaded")
        yield warned("amdttm of amdgpu-dkms and radeon with the kernel's ttm are loaded together", found, on=gpus)
    tree = module_tree(subject)
    path = None if isinstance(tree, Bad) else tree.files.get("amdgpu")
    if path is None:
        yield passed(f"{loaded} is loaded", *evidence, on=gpus)
        return
    disk = _OUTSIDE.search(path) is not None
    evidence.append(Evidence(source="modules.dep", found=path))
    if disk != outside:
        yield warned(
            f"{loaded} is loaded, and modprobe would load {path}: an initramfs that was built before",
            *evidence,
            on=gpus,
            fix=(rebuild_initramfs(subject),),
        )
    else:
        yield passed(f"{loaded} is loaded", *evidence, on=gpus)
