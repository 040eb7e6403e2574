"""Whether the ROCm libraries that are installed have kernels for the GPUs that are here."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.findings import Finding, passed, skipped, unknown, warned
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.verdicts import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pytest_gpucoexist.gates.subject import Subject

__all__ = ["gfx_arch", "gfx_of_override", "targets_in"]

_OVERRIDE = "HSA_OVERRIDE_GFX_VERSION"
# Kernels.so-000-gfx90a-xnack-.hsaco, TensileLibrary_lazy_gfx1100.dat, TensileLibrary_Type_…_gfx11-generic.co
_TARGET = re.compile(r"gfx(?:[0-9a-f]{3,5}(?![0-9a-f])|\d{1,2}(?:-\d)?-generic)")


@gate(
    "lib.gfx_arch",
    group="libraries",
    title="ROCm's libraries have kernels for these GPUs",
    reads="gfx target of each AMD GPU, file names of rocBLAS' kernels, HSA_OVERRIDE_GFX_VERSION",
    criterion="each target is among the kernels, or HSA_OVERRIDE_GFX_VERSION makes it one and all GPUs share a target",
    why="Without kernels for its target a GPU fails at the first matrix product; an override for one GPU breaks another"
    " of a different target.",
    action="Install a build for this target; where all GPUs share one, HSA_OVERRIDE_GFX_VERSION can name a near one.",
    source="ggml-org/llama.cpp#4030; ROCm/hip#3180",
    vendors=("amd",),
)
def gfx_arch(subject: Subject) -> Iterator[Finding]:
    """Compare the targets of the AMD GPUs with the kernels that are installed."""
    targets: dict[str, list[str]] = {}
    gpus = [gpu for gpu in subject.gpus("amd") if gpu.kfd is not None or gpu.arch is not None]
    for gpu in gpus:
        targets.setdefault(gpu.arch or "?", []).append(gpu.key)
    if not gpus:
        yield skipped("ROCm's kernel side lists no GPU")
        return
    override = subject.host.environ.get(_OVERRIDE)
    named = Evidence(source=_OVERRIDE, found=override or "unset", expected="unset where targets differ")
    if override:
        forced = gfx_of_override(override)
        if forced is None:
            yield warned(f"{_OVERRIDE}={override} is not of the form major.minor.step", named, on=gpus)
            return
        if len(targets) > 1:
            every = ", ".join(sorted(targets))
            yield warned(
                f"{_OVERRIDE}={override} makes GPUs of different targets ({every}) all {forced}", named, on=gpus
            )
            return
    libraries = _kernels(subject)
    if not libraries:
        yield skipped("no kernels of rocBLAS are installed to compare with")
        return
    for folder, known in libraries.items():
        for gpu in gpus:
            target = gfx_of_override(override) if override else gpu.arch
            evidence = Evidence(source=folder, found=", ".join(sorted(known)), expected=target or "the GPU's target")
            beside = gpu.kind == "integrated" and any(other.kind == "discrete" for other in gpus)
            if target is None:
                yield unknown("the GPU's target is not known", evidence, on=[gpu])
            elif target in known or _generic(target) & known:
                yield passed(f"{folder} has kernels for {target}", evidence, on=[gpu])
            elif beside:
                yield passed(
                    f"{folder} has none for the integrated {target}, which stands beside others", evidence, on=[gpu]
                )
            else:
                yield warned(f"{folder} has no kernels for {target}", evidence, on=[gpu])


def gfx_of_override(value: str) -> str | None:
    """Return the target that an override names (`10.3.0`: gfx1030; `9.0.10`: gfx90a), None when it names none."""
    match = re.fullmatch(r"(\d{1,2})\.(\d{1,2})\.(\d{1,2})", value.strip())
    if match is None:
        return None
    major, minor, step = (int(part) for part in match.groups())
    return f"gfx{major}{minor:x}{step:x}" if minor < 16 and step < 16 else None


def targets_in(names: list[str]) -> frozenset[str]:
    """Return the gfx targets that file names of kernels tell."""
    return frozenset(target for name in names for target in _TARGET.findall(name))


def _generic(target: str) -> frozenset[str]:
    """Return the generic targets that cover one: gfx1100 runs gfx11-generic (LLVM AMDGPUUsage)."""
    major = target[3:-2]
    minor = target[-2]
    return frozenset({f"gfx{major}-generic", f"gfx{major}-{minor}-generic"})


def _kernels(subject: Subject) -> Mapping[str, frozenset[str]]:
    """Return, for each ROCm that is installed, the targets for which rocBLAS has kernels."""
    folders: list[str] = []
    for runtime in subject.machine.runtimes:
        if runtime.path is None:
            continue
        torch = runtime.name == "torch" and "amd" in runtime.vendors
        if torch or (runtime.name == "rocm" and runtime.distribution is None):
            folders.append(f"{runtime.path}/lib/rocblas/library")
        elif runtime.name == "rocm":
            folders += [
                f"{runtime.path}/{name}/lib/rocblas/library"
                for name in subject.names(runtime.path)
                if name.startswith("_rocm_sdk_libraries")
            ]
    found = {folder: targets_in(subject.names(folder)) for folder in dict.fromkeys(folders)}
    return {folder: targets for folder, targets in found.items() if targets}
