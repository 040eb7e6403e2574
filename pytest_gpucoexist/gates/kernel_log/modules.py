"""Modules of GPU drivers that the kernel refused."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.kernel_log.evidence import log_evidence
from pytest_gpucoexist.gates.kernel_log.lines import judge_lines
from pytest_gpucoexist.gates.registry import gate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.findings import Finding
    from pytest_gpucoexist.gates.kernel_log.lines import Event
    from pytest_gpucoexist.gates.subject import Subject

__all__ = ["module"]

_MODULE = re.compile(
    r"(?<![\w.-])(nvidia(?:[_-](?:modeset|drm|uvm|peermem))?|amdgpu|amdkfd|amdttm|i915|xe)(?=[:'\" ,.]|$)"
)
_VENDORS = {"nvidia": "nvidia", "amd": "amd", "i915": "intel", "xe": "intel"}


@gate(
    "klog.module",
    group="kernel-log",
    title="The kernel took the GPU drivers' modules",
    reads="the kernel's log of this boot; /sys/module",
    criterion="no module of a GPU's driver that was refused for its signature, its kernel or its symbols, unless it is"
    " loaded now",
    why="without its module the GPU has no driver, or the one that is in the kernel takes it",
    action="Build the module for the running kernel (`dkms autoinstall`) and sign it.",
    source="negativo17/nvidia-driver#97; NVIDIA/open-gpu-kernel-modules#322",
    severity="fail",
)
def module(subject: Subject) -> Iterator[Finding]:
    """Judge refusals beside what is loaded now."""
    evidence = log_evidence(subject)
    loaded = set(subject.names("/sys/module"))

    def grade(event: Event) -> Event | None:
        named = _MODULE.search(evidence.message(event.line))
        if named is None:
            # The kernel does not always say whose signature it refused: it matters where a driver is missing.
            lacking = [
                gpu for gpu in subject.gpus("nvidia") if gpu.driver is None and subject.wanted("nvidia") is not None
            ]
            return event.about(tuple(lacking)).weakened() if lacking else event.graded(None)
        name = named[1].replace("-", "_")
        vendor = next(vendor for start, vendor in _VENDORS.items() if name.startswith(start))
        gpus = tuple(subject.gpus(vendor))
        if not gpus:
            return None
        event = event.about(gpus).noted(name)
        if name in loaded:
            return event.graded(None)
        return event if subject.wanted(vendor) is not None else event.weakened()

    yield from judge_lines(
        subject,
        ["mod.key_rejected", "mod.vermagic", "mod.symver"],
        what="refused module of a GPU's driver",
        grade=grade,
    )
