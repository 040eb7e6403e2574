"""Runtimes that two packages of one environment would bring twice into a process."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.findings import Finding, passed, skipped, unknown, warned
from pytest_gpucoexist.gates.libraries.content import different
from pytest_gpucoexist.gates.libraries.families import family_of
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.gates.symbols.loading import Loaded, Missing, loading_plan
from pytest_gpucoexist.model.verdicts import Evidence

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.gates.symbols.loading import Plan

__all__ = ["versions", "would_load"]

_SEPARATE = (
    "Install builds for one release that share their libraries, or import the packages in separate processes. Nothing"
    " is wrong until both are loaded in one."
)
# auditwheel renames its copies so that they cannot meet: libcudart-9335f6a2.so.12.
_PRIVATE = re.compile(r"-[0-9a-f]{8}\.so")
_SHARES_CONTEXT = {"CUDA runtime", "NVRTC"}
_FIRST = {"HIP", "HSA", "CUDA runtime"}
# The driver's libraries keep one soname through all releases.
_OF_THE_DRIVER = {"CUDA driver", "NVML"}


@gate(
    "lib.would_load",
    group="libraries",
    title="All packages would load the same runtimes",
    reads="libraries of the packages in sys.path: DT_NEEDED, DT_RPATH and DT_RUNPATH, followed through LD_LIBRARY_PATH"
    " and the loader's folders",
    criterion="for each runtime (HIP, HSA, comgr, CUDA, NCCL, SMI, LLVM …) one file, or files of the same content",
    why="Two copies of a runtime in one process split its state: which import comes first then decides what works.",
    action=_SEPARATE,
    source="pytorch/pytorch#152941; ROCm/mori PR#402; JuliaGPU/AMDGPU.jl#1062; pytorch/pytorch#186516",
    level="standard",
)
def would_load(subject: Subject) -> Iterator[Finding]:
    """Warn of runtimes that two packages would load from different files."""
    plan = loading_plan(subject)
    problems = [finding for group in _by_family(plan.loaded) for finding in _conflict(subject, group)]
    yield from problems
    yield from _rest(plan, problems, "one file of each runtime")


def _by_family(loaded: Iterable[Loaded]) -> list[list[Loaded]]:
    groups: dict[tuple[str, str, int], list[Loaded]] = {}
    for each in loaded:
        # A library for another architecture is no copy of this one.
        groups.setdefault((each.family.name, each.elf.machine, each.elf.bits), []).append(each)
    return list(groups.values())


def _conflict(subject: Subject, group: Sequence[Loaded]) -> Iterator[Finding]:
    paths = different(subject, (each.path for each in group))
    family = group[0].family
    if len(paths) < 2:
        return
    if family.name in _SHARES_CONTEXT and sum(_PRIVATE.search(path) is None for path in paths) < 2:
        return
    brought = {path: sorted({each.package for each in group if each.path == path}) for path in paths}
    words = " and ".join(f"{path} (for {', '.join(packages)})" for path, packages in brought.items())
    yield warned(
        f"{len(paths)} copies of {family.name} would be loaded: {words}; in one process they {family.harm}",
        *(evidence for each in group if each.path in paths for evidence in _evidence(each)),
    )


def _evidence(each: Loaded) -> Iterator[Evidence]:
    by = f"needed by {each.by}" if each.by else "brought by the package"
    build = f", build id {each.elf.build_id[:16]}" if each.elf.build_id else ""
    yield Evidence(
        source=each.path,
        found=f"{each.elf.soname or 'no soname'}{build}, {by}",
        expected=f"one file of {each.family.name}",
    )


def _rest(plan: Plan, problems: Sequence[Finding], good: str) -> Iterator[Finding]:
    """Say what could not be judged, and pass where all was."""
    for path, why in plan.problems.items():
        yield unknown(f"{path}: {why}", Evidence(source=path, found=why, expected="an ELF file"))
    if plan.unfinished:
        yield unknown("there are more libraries than can be read in the time that gates have")
    elif not plan.packages:
        yield skipped("no package in sys.path brings or asks for a GPU runtime")
    elif not problems and not plan.problems:
        names = ", ".join(each.name for each in plan.packages)
        seen = tuple(dict.fromkeys(evidence for each in plan.loaded for evidence in _evidence(each)))
        own = tuple(
            Evidence(source=path, found="no runtime needed") for each in plan.packages for path in each.asking[:1]
        )
        yield passed(f"{names}: {good}", *(seen or own))


@gate(
    "lib.versions",
    group="libraries",
    title="Runtimes have the versions that packages need",
    reads="DT_NEEDED of the packages in sys.path and DT_SONAME of what they would load",
    criterion="every runtime that is needed is there, and a file's name and its soname agree",
    why="A package for another major version cannot be imported; a file under a wrong name brings functions that do not"
    " fit.",
    action="Install the package for the version that is here, or that version of the runtime.",
    source="cupy documentation: ImportError libamdhip64.so.7; amdsmi AttributeError: undefined symbol",
    level="standard",
)
def versions(subject: Subject) -> Iterator[Finding]:
    """Warn of runtimes that are missing, or not what their name says."""
    plan = loading_plan(subject)
    problems: list[Finding] = []
    here = {gpu.vendor for gpu in subject.gpus()}
    for each in plan.missing:
        if not _matters(each, here):
            continue
        others = f"; there is {', '.join(each.others)}" if each.others else ""
        evidence = Evidence(source=each.by, found=f"needs {each.name}", expected="a library that can be found")
        problems.append(warned(f"{each.package} needs {each.name}, which is nowhere{others}", evidence))
    for loaded in plan.loaded:
        named, told = _major(loaded.path.rsplit("/", 1)[-1]), _major(loaded.elf.soname or "")
        if loaded.family.name not in _OF_THE_DRIVER and named and told and named != told:
            evidence = Evidence(source=loaded.path, found=f"soname {loaded.elf.soname}", expected=f"version {named}")
            problems.append(warned(f"{loaded.path} is named version {named} and is {loaded.elf.soname}", evidence))
    yield from problems
    yield from _rest(plan, problems, "the runtimes have the versions that are needed")


def _matters(missing: Missing, here: Collection[str]) -> bool:
    """Whether something is wrong: another version is here, or the package cannot be imported for a GPU that is.

    Other runtimes are optional: CuPy without NCCL is healthy. Of the driver's libraries other gates speak.
    """
    family = family_of(missing.name)
    if family is None or family.name in _OF_THE_DRIVER:
        return False
    return bool(missing.others) or (family.name in _FIRST and family.vendor in here)


def _major(name: str) -> str:
    return name.partition(".so.")[2].partition(".")[0]
