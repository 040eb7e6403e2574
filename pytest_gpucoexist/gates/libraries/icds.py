"""Manifests of OpenCL, Vulkan, EGL and GLX that point nowhere, or that collide."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.findings import Finding, passed, skipped, unknown, warned
from pytest_gpucoexist.gates.libraries.manifests import Manifest, broken, manifests
from pytest_gpucoexist.gates.libraries.search import find_library, library_folders
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.verdicts import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_gpucoexist.gates.subject import Subject

__all__ = ["egl_vendor", "glx_vendor", "opencl_icd", "vulkan_icd"]

_REINSTALL = "Install the package that the library belongs to again, or remove the manifest that a removed one left."
_VARIABLES = {
    "opencl": ("OCL_ICD_VENDORS",),
    "vulkan": ("VK_DRIVER_FILES", "VK_ICD_FILENAMES", "VK_ADD_DRIVER_FILES"),
    "egl": ("__EGL_VENDOR_LIBRARY_FILENAMES", "__EGL_VENDOR_LIBRARY_DIRS"),
}


@gate(
    "lib.opencl_icd",
    group="libraries",
    title="OpenCL drivers",
    reads="/etc/OpenCL/vendors/*.icd (or OCL_ICD_VENDORS), and whether the libraries that they name exist",
    criterion="every manifest leads to a library, and no GPU has two drivers",
    why="A manifest that leads nowhere hides a platform without a word; two drivers for AMD list every GPU twice or"
    " crash in each other's LLVM.",
    action=_REINSTALL,
    source="ROCm/legacy-rocm-build#710; ROCm/clr#155; pocl/pocl#474",
)
def opencl_icd(subject: Subject) -> Iterator[Finding]:
    """Judge OpenCL's manifests."""
    problems = [*_broken(subject, "opencl"), *_twice(subject, "opencl"), *_amd_twice(subject)]
    yield from problems
    yield from _summary(subject, "opencl", problems)


@gate(
    "lib.vulkan_icd",
    group="libraries",
    title="Vulkan drivers",
    reads="vulkan/icd.d/*.json in the loader's folders (or VK_DRIVER_FILES, VK_ICD_FILENAMES), and their libraries",
    criterion="every manifest leads to a library, and no library is named twice",
    why="A manifest that leads nowhere hides a GPU from Vulkan; one that is there twice shows the GPU twice.",
    action=_REINSTALL,
    source="KhronosGroup/Vulkan-Loader LoaderDriverInterface.md; what nvidia-bug-report.sh collects",
    severity="info",
)
def vulkan_icd(subject: Subject) -> Iterator[Finding]:
    """Judge Vulkan's manifests."""
    problems = [*_broken(subject, "vulkan"), *_twice(subject, "vulkan")]
    yield from problems
    yield from _summary(subject, "vulkan", problems)


@gate(
    "lib.egl_vendor",
    group="libraries",
    title="EGL vendors",
    reads="glvnd/egl_vendor.d/*.json (or __EGL_VENDOR_LIBRARY_FILENAMES), and the libraries that they name",
    criterion="every manifest leads to a library",
    why="EGL offers no device of a vendor whose library is not there, and takes the next one by file name.",
    action=_REINSTALL,
    source="NVIDIA/libglvnd src/EGL/icd_enumeration.md",
    severity="info",
)
def egl_vendor(subject: Subject) -> Iterator[Finding]:
    """Judge EGL's manifests. A library that is named twice is loaded once, so that is no problem here."""
    problems = [*_broken(subject, "egl")]
    yield from problems
    yield from _summary(subject, "egl", problems)


@gate(
    "lib.glx_vendor",
    group="libraries",
    title="GLX vendors",
    reads="libGLX_*.so.0 in the loader's folders; __GLX_VENDOR_LIBRARY_NAME",
    criterion="every vendor library is there, and so is the one that the variable names",
    why="GLX loads libGLX_<vendor>.so.0 by name: where it is missing, OpenGL falls back to software or to nothing.",
    action="Install the vendor's OpenGL package again, or unset __GLX_VENDOR_LIBRARY_NAME.",
    source="NVIDIA/libglvnd README: vendor libraries of GLX",
    severity="info",
)
def glx_vendor(subject: Subject) -> Iterator[Finding]:
    """Judge the libraries of GLX, which has no manifests."""
    good: dict[str, str] = {}
    problems: list[Finding] = []
    for folder in library_folders(subject).folders:
        for name in subject.names(folder):
            if not name.startswith("libGLX_") or not re.fullmatch(r"libGLX_\w+\.so\.0", name) or name in good:
                continue
            path = f"{folder}/{name}"
            found = find_library(subject, path)
            if found.path is not None:
                good[name] = found.path
            elif found.missing:
                evidence = Evidence(source=path, found="a link that leads nowhere", expected="the vendor's library")
                problems.append(warned(f"{path} leads nowhere", evidence))
    named = subject.host.environ.get("__GLX_VENDOR_LIBRARY_NAME")
    if named:
        found = find_library(subject, f"libGLX_{named}.so.0")
        evidence = Evidence(source="__GLX_VENDOR_LIBRARY_NAME", found=named, expected=f"libGLX_{named}.so.0 exists")
        if found.missing:
            problems.append(warned(f"__GLX_VENDOR_LIBRARY_NAME={named}, and there is no libGLX_{named}.so.0", evidence))
    yield from problems
    if not problems and good:
        names = ", ".join(sorted(good))
        yield passed(f"{names} found", *(Evidence(source=path, found=name) for name, path in good.items()))
    elif not problems:
        yield skipped("no GLX vendor library is installed")


def _broken(subject: Subject, loader: str) -> Iterator[Finding]:
    """Tell manifests that cannot be used, and those whose library is not there."""
    for path, reason, readable in broken(subject, loader):
        evidence = Evidence(source=path, found=reason, expected="a manifest that names a library")
        if readable:
            yield warned(f"{path} cannot be used: {reason}", evidence)
        else:
            yield unknown(f"{path} cannot be read: {reason}", evidence)
    for each in manifests(subject, loader):
        if each.found.missing:
            yield warned(f"{each.path} names {each.library}, which is not there", each.evidence)
        elif each.found.path is None:
            yield unknown(f"{each.path} names {each.library}: {each.found.detail}", each.evidence)


def _twice(subject: Subject, loader: str) -> Iterator[Finding]:
    """Tell libraries that two manifests name."""
    leading: dict[str, list[Manifest]] = {}
    for each in manifests(subject, loader):
        if each.found.path is not None:
            leading.setdefault(each.found.path, []).append(each)
    for library, named in leading.items():
        if len(named) > 1:
            paths = " and ".join(each.path for each in named)
            yield warned(
                f"{paths} name the same library {library}",
                *(each.evidence for each in named),
                action="Remove all but one of these manifests: each shows the same GPUs again.",
            )


def _amd_twice(subject: Subject) -> Iterator[Finding]:
    """Tell two OpenCL drivers for AMD GPUs: two of ROCm's, or ROCm's beside Mesa's Clover."""
    if not subject.gpus("amd"):
        return
    rocm = {each.found.path: each for each in manifests(subject, "opencl") if each.found.path and _is_rocm(each)}
    clover = [each for each in manifests(subject, "opencl") if "MesaOpenCL" in each.library and each.found.path]
    amd = subject.gpus("amd")
    if len(rocm) > 1:
        yield warned(
            f"two OpenCL drivers of ROCm: {_libraries([*rocm.values()])}",
            *(each.evidence for each in rocm.values()),
            on=amd,
            action="Remove the manifest of the older ROCm: every AMD GPU is listed twice.",
        )
    elif rocm and clover:
        both = [*rocm.values(), *clover]
        yield warned(
            f"ROCm's and Mesa's OpenCL drivers are both loaded for AMD GPUs: {_libraries(both)}",
            *(each.evidence for each in both),
            on=amd,
            action="Remove mesa-opencl-icd, or set OCL_ICD_VENDORS to ROCm's manifest: the two have crashed together.",
        )


def _is_rocm(manifest: Manifest) -> bool:
    return "amdocl" in manifest.library


def _libraries(named: Sequence[Manifest]) -> str:
    return " and ".join(f"{each.library} ({each.path})" for each in named)


def _summary(subject: Subject, loader: str, problems: Sequence[Finding]) -> Iterator[Finding]:
    """Say what is there when nothing is wrong, and which variable decides it."""
    if problems:
        return
    found = manifests(subject, loader)
    variables = [
        f"{name}={subject.host.environ[name]}" for name in _VARIABLES[loader] if subject.host.environ.get(name)
    ]
    if not found:
        chosen = f" with {', '.join(variables)}" if variables else ""
        yield skipped(f"no driver for {loader} is installed{chosen}")
        return
    names = ", ".join(dict.fromkeys(each.path.rsplit("/", 1)[-1] for each in found))
    chosen = f", chosen by {', '.join(variables)}" if variables else ""
    yield passed(f"{names}: every library is there{chosen}", *(each.evidence for each in found))
