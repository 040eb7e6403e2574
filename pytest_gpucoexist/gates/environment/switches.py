"""Gates that record switches of copy engines, collectives and graphics, and find those that contradict each other."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.environment.variables import (
    COLLECTIVES,
    COPY_AMD,
    OFFLOAD,
    is_on,
    not_recorded,
    rows_of,
    set_among,
)
from pytest_gpucoexist.gates.findings import Finding, passed, warned
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.verdicts import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pytest_gpucoexist.gates.subject import Subject

__all__ = ["collectives", "copy_engines", "offload"]

_GFX = re.compile(r"\d{1,2}\.\d{1,2}\.\d{1,2}")
_LEVELS = {"LOC", "NVL", "PIX", "PXB", "PXN", "P2C", "PHB", "NODE", "SYS"}
_PRIME = re.compile(r"pci-([0-9a-f]{4})_([0-9a-f]{2})_([0-9a-f]{2})_([0-7])!?", re.IGNORECASE)
_GLX_VENDORS = {"nvidia": ("nvidia",), "mesa": ("amd", "intel", "nvidia", "other")}


@gate(
    "env.sdma",
    group="environment",
    vendors=("amd",),
    severity="info",
    title="ROCm copies as it does by default",
    reads=", ".join(COPY_AMD),
    criterion="HSA_ENABLE_SDMA is not 0; HSA_OVERRIDE_GFX_VERSION is major.minor.step, and one for all GPUs is right "
    "for all",
    why="without SDMA copies run in kernels and are slower by a third; an override that does not fit a second card "
    "makes its kernels crash",
    action="unset them; give an override to one GPU by its node: HSA_OVERRIDE_GFX_VERSION_1",
    source="ROCm documentation, ROCR environment variables; ROCm/TransferBench (executors)",
)
def copy_engines(subject: Subject) -> Iterator[Finding]:
    """Record the switches of ROCR and find what changes results."""
    wrong: list[tuple[str, str]] = []
    given = set_among(subject, COPY_AMD)
    if given.get("HSA_ENABLE_SDMA", "").strip() == "0":
        wrong.append(("HSA_ENABLE_SDMA", "HSA_ENABLE_SDMA=0: copies run in kernels, not on the copy engines"))
    version = given.get("HSA_OVERRIDE_GFX_VERSION", "")
    targets = sorted({gpu.arch for gpu in subject.gpus("amd") if gpu.arch})
    if version and not _GFX.fullmatch(version.strip()):
        wrong.append(("HSA_OVERRIDE_GFX_VERSION", f"HSA_OVERRIDE_GFX_VERSION={version} is not major.minor.step"))
    elif version and len(targets) > 1:
        listed = " and ".join(targets)
        wrong.append(("HSA_OVERRIDE_GFX_VERSION", f"HSA_OVERRIDE_GFX_VERSION={version} holds for {listed} alike"))
    yield from _record(subject, given, wrong, "no switch of ROCm's copies is set")


@gate(
    "env.p2p_switches",
    group="environment",
    vendors=("nvidia", "amd"),
    severity="info",
    title="Switches of NCCL and RCCL agree",
    reads=", ".join(COLLECTIVES),
    criterion="levels are words or numbers that NCCL knows, and none asks for what another switches off",
    why="NCCL ignores a level that it does not know, and with both peer access and shared memory off only the "
    "network is left",
    action="unset what is not meant; where a driver cannot do it, NCCL_PROTO=Simple is the usual need of RCCL on PCIe",
    source="NCCL user guide, environment variables; ROCm/ROCR-Runtime#355",
)
def collectives(subject: Subject) -> Iterator[Finding]:
    """Record the switches of both libraries, which read the same names."""
    wrong: list[tuple[str, str]] = []
    given = set_among(subject, COLLECTIVES)
    for name in ("NCCL_P2P_LEVEL", "NCCL_NET_GDR_LEVEL"):
        value = given.get(name, "").strip()
        if value and value.upper() not in _LEVELS and not (value.isdecimal() and len(value) < 3):
            wrong.append((name, f"{name}={value} is not a level that NCCL knows"))
    if is_on(given.get("NCCL_P2P_DISABLE")) and given.get("NCCL_P2P_LEVEL"):
        wrong.append(("NCCL_P2P_LEVEL", "NCCL_P2P_LEVEL is set, and NCCL_P2P_DISABLE switches peer access off"))
    if is_on(given.get("NCCL_P2P_DISABLE")) and is_on(given.get("NCCL_SHM_DISABLE")):
        wrong.append(
            ("NCCL_SHM_DISABLE", "peer access and shared memory are both switched off: only the network is left")
        )
    yield from _record(subject, given, wrong, "no switch of NCCL or RCCL is set")


@gate(
    "env.offload",
    group="environment",
    severity="info",
    title="Graphics goes to a GPU that is here",
    reads=", ".join(OFFLOAD),
    criterion="the GPU or the vendor that a variable names is here",
    why="tests of OpenGL, Vulkan and EGL run on the GPU that these name; where it is not here, on a software renderer",
    action="unset the variable, or name a GPU of this machine",
    source="Mesa documentation, DRI_PRIME; libglvnd, __GLX_VENDOR_LIBRARY_NAME",
)
def offload(subject: Subject) -> Iterator[Finding]:
    """Record what chooses the GPU of graphics."""
    wrong: list[tuple[str, str]] = []
    given = set_among(subject, OFFLOAD)
    vendors = {gpu.vendor for gpu in subject.machine.gpus if gpu.granted}
    match = _PRIME.fullmatch(given.get("DRI_PRIME", ""))
    if match is not None:
        address = "{}:{}:{}.{}".format(*(part.lower() for part in match.groups()))
        if subject.machine.gpu(address) is None:
            wrong.append(("DRI_PRIME", f"DRI_PRIME names {address}, and no GPU is there"))
    glx = given.get("__GLX_VENDOR_LIBRARY_NAME", "")
    if glx in _GLX_VENDORS and vendors and not vendors & {*_GLX_VENDORS[glx]}:
        wrong.append(
            ("__GLX_VENDOR_LIBRARY_NAME", f"__GLX_VENDOR_LIBRARY_NAME={glx}, and no GPU here has that library's driver")
        )
    if is_on(given.get("__NV_PRIME_RENDER_OFFLOAD")) and "nvidia" not in vendors:
        wrong.append(("__NV_PRIME_RENDER_OFFLOAD", "__NV_PRIME_RENDER_OFFLOAD is on, and no NVIDIA GPU is here"))
    yield from _record(subject, given, wrong, "no variable chooses the GPU of graphics")


def _record(
    subject: Subject, given: Mapping[str, str], wrong: Sequence[tuple[str, str]], nothing: str
) -> Iterator[Finding]:
    absent = not_recorded(subject)
    if absent is not None:
        yield absent
        return
    for name, reason in wrong:
        yield warned(reason, *rows_of({name: given[name]}))
    if not wrong:
        listed = ", ".join(f"{name}={value}" for name, value in given.items())
        rows = rows_of(given) or [
            Evidence(source="environment", found=f"{len(subject.host.environ)} variables, none of these")
        ]
        yield passed(f"recorded: {listed}" if given else nothing, *rows)
