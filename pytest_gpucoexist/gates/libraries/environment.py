"""What environment variables put in front of the libraries that are installed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.findings import Finding, failed, passed, skipped, unknown, warned
from pytest_gpucoexist.gates.libraries.content import different
from pytest_gpucoexist.gates.libraries.families import Family, family_of
from pytest_gpucoexist.gates.libraries.maps import MAPS, mapped
from pytest_gpucoexist.gates.libraries.search import find_library, library_folders
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.verdicts import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject

__all__ = ["hip_platform", "ld_env", "libcuda_path"]


@gate(
    "lib.ld_env",
    group="libraries",
    title="Variables of the loader override no GPU library",
    reads="LD_PRELOAD, LD_LIBRARY_PATH, and the names in the folders that they give",
    criterion="LD_PRELOAD names no GPU library, LD_LIBRARY_PATH puts none before one that is installed",
    why="LD_LIBRARY_PATH wins over the RUNPATH of a wheel and over the system: a foreign comgr shows as"
    " hipErrorOutOfMemory, a foreign libcuda as a driver that does not fit.",
    action="Unset the variable, or take the folder out of it.",
    source="JuliaGPU/AMDGPU.jl#1062; ROCm/rocm-systems#8768",
)
def ld_env(subject: Subject) -> Iterator[Finding]:
    """Warn of GPU libraries that the two variables bring in place of others."""
    environ = subject.host.environ
    preload = [each for each in re.split(r"[\s:]+", environ.get("LD_PRELOAD", "")) if each]
    folders = [each.rstrip("/") for each in environ.get("LD_LIBRARY_PATH", "").split(":") if each.startswith("/")]
    if not environ:
        yield unknown("no environment was recorded")
        return
    if not preload and not folders:
        yield skipped("neither LD_PRELOAD nor LD_LIBRARY_PATH is set")
        return
    problems: list[Finding] = []
    for each in preload:
        if family_of(each) is not None:
            evidence = Evidence(source="LD_PRELOAD", found=each, expected="no GPU library")
            problems.append(warned(f"LD_PRELOAD loads {each} into every process", evidence))
    brought = []
    for folder in dict.fromkeys(folders):
        if "/compat" in folder:
            continue  # how NVIDIA's images bring a newer libcuda; lib.nv.libcuda_path judges it
        for family, path in _families_in(subject, folder):
            brought.append(path)
            other = _overridden(subject, family, path)
            if other is not None:
                evidence = Evidence(source="LD_LIBRARY_PATH", found=path, expected=other)
                problems.append(warned(f"LD_LIBRARY_PATH puts {path} before {other}", evidence))
    yield from problems
    if not problems:
        unread = [folder for folder in folders if not subject.names(folder) and subject.host.exists(folder)]
        sources = [
            Evidence(source=name, found=environ[name])
            for name in ("LD_PRELOAD", "LD_LIBRARY_PATH")
            if environ.get(name)
        ]
        if unread:
            yield unknown(f"{', '.join(unread)} of LD_LIBRARY_PATH cannot be listed, or is empty", *sources)
        elif brought:
            yield passed(f"only these come from LD_LIBRARY_PATH, and from nowhere else: {', '.join(brought)}", *sources)
        else:
            yield passed("no GPU library comes from them", *sources)


def _families_in(subject: Subject, folder: str) -> Iterator[tuple[Family, str]]:
    """Yield each family and major version in a folder once, under the name that programs ask for."""
    seen: dict[str, set[str]] = {}
    for name in sorted(subject.names(folder), key=lambda name: (not _major(name), name.count("."), name)):
        family = family_of(name)
        if family is None:
            continue
        majors = seen.setdefault(family.name, set())
        if _major(name) not in majors and (_major(name) or not majors):
            majors.add(_major(name))
            yield family, f"{folder}/{name}"


def _overridden(subject: Subject, family: Family, path: str) -> str | None:
    """Return a different file of the same family and major version that the loader would find after this one."""
    folder, _, name = path.rpartition("/")
    order = library_folders(subject).folders
    mine = find_library(subject, path).path
    for later in order[order.index(folder) + 1 :] if folder in order else ():
        for other in subject.names(later):
            if family_of(other) is family and _major(other) == _major(name):
                found = find_library(subject, f"{later}/{other}").path
                if found is not None and mine is not None and len(different(subject, (found, mine))) > 1:
                    return f"{later}/{other}"
    return None


def _major(name: str) -> str:
    return name.partition(".so")[2].lstrip(".").partition(".")[0]


@gate(
    "lib.hip_platform",
    group="libraries",
    title="HIP is built for AMD",
    reads="HIP_PLATFORM, and the HIP headers' packages in /var/lib/dpkg/info",
    criterion="HIP_PLATFORM is unset or amd; hip-runtime-nvidia is not installed beside hip-runtime-amd",
    why="HIP_PLATFORM=nvidia makes hipcc call nvcc: what is built then never touches the AMD GPU.",
    action="Unset HIP_PLATFORM; keep one of hip-runtime-amd and hip-runtime-nvidia.",
    source="ROCm/hip#3642",
    vendors=("amd",),
)
def hip_platform(subject: Subject) -> Iterator[Finding]:
    """Warn where HIP is meant for another vendor."""
    value = subject.host.environ.get("HIP_PLATFORM")
    packages = [each for each in _HIP_PACKAGES if subject.host.exists(f"/var/lib/dpkg/info/{each}.list")]
    evidence = [Evidence(source="HIP_PLATFORM", found=value if value is not None else "unset", expected="unset or amd")]
    if packages:
        evidence.append(Evidence(source="/var/lib/dpkg/info", found=", ".join(packages), expected="one of the two"))
    if not subject.host.environ and not packages:
        yield unknown("no environment was recorded", *evidence)
    elif value and value not in {"amd", "hcc"}:
        yield warned(f"HIP_PLATFORM={value}: hipcc builds for {value} on a machine with an AMD GPU", *evidence)
    elif len(packages) > 1:
        yield warned("hip-runtime-amd and hip-runtime-nvidia are both installed", *evidence)
    else:
        yield passed(f"HIP_PLATFORM is {value or 'unset'}", *evidence)


_HIP_PACKAGES = ("hip-runtime-amd", "hip-runtime-nvidia")
_SHIM = re.compile(r"zluda|/scale/|scale-lang", re.IGNORECASE)


@gate(
    "lib.nv.libcuda_path",
    group="libraries",
    title="libcuda is the driver's",
    reads="/proc/self/maps and the loader's folders: libcuda.so.1, links followed",
    criterion="neither a toolkit's stub nor a translation layer; a compat library only on a data centre GPU",
    why="A stub answers every call with error 34; ZLUDA and SCALE bring another vendor's GPU under CUDA's name; forward"
    " compatibility gives error 804 on other cards.",
    action="Take the folder out of LD_LIBRARY_PATH, or put the driver's folder first.",
    source="docs.nvidia.com CUDA compatibility, CUDA stub library error 34; vosen/ZLUDA",
    vendors=("nvidia",),
    severity="fail",
)
def libcuda_path(subject: Subject) -> Iterator[Finding]:
    """Fail where a stub would answer for the driver."""
    maps = mapped(subject)
    places = [(each.path, f"{MAPS}: mapped") for each in maps.libraries if _is_libcuda(each.path)]
    if not places:
        found = find_library(subject, "libcuda.so.1")
        if found.path is None:
            problem = found.detail if not found.missing else "there is no libcuda.so.1"
            yield skipped(problem) if found.missing else unknown(f"libcuda.so.1: {problem}")
            return
        places = [(found.path, "the loader's folders: libcuda.so.1")]
    for path, source in places:
        evidence = Evidence(source=source, found=path, expected="the driver's libcuda")
        if "/stubs/" in path:
            reason = f"libcuda.so.1 is the stub {path}: every CUDA call gives error 34"
            wanted = subject.wanted("nvidia") is not None or source.startswith(MAPS)
            yield failed(reason, evidence) if wanted else warned(reason, evidence)
        elif _SHIM.search(path):
            yield warned(f"libcuda.so.1 is a translation layer: {path}", evidence)
        elif "/compat/" in path and any("GeForce" in (gpu.name or "") for gpu in subject.gpus("nvidia")):
            yield warned(
                f"libcuda.so.1 is the forward-compatibility library {path}, which GeForce cards refuse (error 804)",
                evidence,
            )
        else:
            kind = " (forward compatibility)" if "/compat/" in path else ""
            yield passed(f"libcuda.so.1 is {path}{kind}", evidence)


def _is_libcuda(path: str) -> bool:
    family = family_of(path)
    return family is not None and family.name == "CUDA driver"
