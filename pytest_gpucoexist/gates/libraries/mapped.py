"""Two copies of one runtime in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.findings import Finding, failed, passed, unknown, warned
from pytest_gpucoexist.gates.libraries.content import different
from pytest_gpucoexist.gates.libraries.maps import MAPS, Mapped, by_family, evidence_of, mapped
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.verdicts import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_gpucoexist.gates.subject import Subject

__all__ = ["duplicate_hip", "duplicate_smi", "nccl_and_rccl", "resolution_report"]

_PRELOAD = "reuse the copy that is loaded (RTLD_NOLOAD), or run one of the two packages in a process of its own"


@gate(
    "lib.amd.duplicate_hip",
    group="libraries",
    title="One HIP and one HSA runtime in this process",
    reads="/proc/self/maps: files of libamdhip64 and libhsa-runtime64, by device and inode",
    criterion="at most one file of each is mapped; files of the same content count once",
    why="Each copy has its own devices, streams and memory: with two, torch reports no GPU or HIP gives error 709 on"
    " every stream but the default one.",
    action="Let all packages of one environment use one ROCm; " + _PRELOAD + ".",
    source="ROCm/mori PR#402; pytorch/pytorch#152941",
    vendors=("amd",),
    severity="fail",
    blocking=True,
)
def duplicate_hip(subject: Subject) -> Iterator[Finding]:
    """Fail where two files of HIP or of HSA are mapped."""
    maps = mapped(subject)
    if maps.problem is not None:
        yield unknown(maps.problem, Evidence(source=MAPS, found=maps.problem))
        return
    groups = by_family(maps.libraries)
    copies = {name: groups[name][1] for name in ("HIP", "HSA") if name in groups}
    twice = [name for name, libraries in copies.items() if _differ(subject, libraries)]
    for name in twice:
        evidence = evidence_of(copies[name], f"one file of {name}")
        yield failed(f"two {name} runtimes are mapped in this process: {_paths(copies[name])}", *evidence)
    if not twice:
        libraries = [each for found in copies.values() for each in found]
        evidence = evidence_of(libraries, "one file of each") or (_none("libamdhip64 or libhsa-runtime64"),)
        same = " (several files of the same content)" if len(libraries) > len(copies) else ""
        yield passed(f"one copy each: {_paths(libraries)}{same}" if libraries else "neither is mapped yet", *evidence)


@gate(
    "lib.amd.duplicate_smi",
    group="libraries",
    title="One SMI library of AMD in this process",
    reads="/proc/self/maps: files of libamd_smi and librocm_smi64, by device and inode",
    criterion="one file of one of the two is mapped",
    why="Both export rsmi_* and the first one loaded answers for both: the other then counts no GPU.",
    action="Ask AMD SMI in a process of its own, as this plugin does, or before torch is imported.",
    source="ROCm/rocm-systems#7643; ROCm/rocm-systems#8768; pytorch/pytorch#186516",
    vendors=("amd",),
)
def duplicate_smi(subject: Subject) -> Iterator[Finding]:
    """Warn where two SMI libraries of AMD are mapped."""
    maps = mapped(subject)
    if maps.problem is not None:
        yield unknown(maps.problem, Evidence(source=MAPS, found=maps.problem))
        return
    groups = by_family(maps.libraries)
    libraries = [each for name in ("AMD SMI", "ROCm SMI") if name in groups for each in groups[name][1]]
    evidence = evidence_of(libraries, "one SMI library") or (_none("libamd_smi or librocm_smi64"),)
    if _differ(subject, libraries):
        yield warned(f"several SMI libraries of AMD are mapped in this process: {_paths(libraries)}", *evidence)
    else:
        yield passed(f"one is mapped: {_paths(libraries)}" if libraries else "none is mapped yet", *evidence)


@gate(
    "lib.mixed.nccl",
    group="libraries",
    title="NCCL and RCCL are not in one process",
    reads="/proc/self/maps: libnccl and librccl",
    criterion="not both are mapped",
    why="RCCL exports NCCL's names: where both are loaded globally, calls for one vendor's GPUs end in the other's"
    " library.",
    action="Use the two vendors' collectives in separate processes, or load both with RTLD_LOCAL.",
    source="pytorch/pytorch#42517; Azure/azurehpc-health-checks picks one of the two by vendor",
    vendors=("nvidia", "amd"),
)
def nccl_and_rccl(subject: Subject) -> Iterator[Finding]:
    """Warn where both are mapped."""
    maps = mapped(subject)
    if maps.problem is not None:
        yield unknown(maps.problem, Evidence(source=MAPS, found=maps.problem))
        return
    groups = by_family(maps.libraries)
    libraries = [each for name in ("NCCL", "RCCL") if name in groups for each in groups[name][1]]
    evidence = evidence_of(libraries, "NCCL or RCCL, not both") or (_none("libnccl or librccl"),)
    if "NCCL" in groups and "RCCL" in groups:
        yield warned(f"NCCL and RCCL are both mapped in this process: {_paths(libraries)}", *evidence)
    else:
        yield passed(f"only {_paths(libraries)}" if libraries else "neither is mapped yet", *evidence)


_JUDGED_ELSEWHERE = {"HIP", "HSA", "AMD SMI", "ROCm SMI"}


@gate(
    "lib.resolution_report",
    group="libraries",
    title="GPU libraries that are mapped in this process",
    reads="/proc/self/maps: libraries of GPU runtimes, with device and inode",
    criterion="one file of each runtime, and it is still the one on disk",
    why="Two copies of a runtime split its state; a library that was replaced under a running process no longer fits"
    " what is loaded next.",
    action="Find out which package brings the second copy (the paths say) and let both use one.",
    source="pytorch/pytorch#42517; intel/llvm and pocl#474; what torch's collect_env gathers",
)
def resolution_report(subject: Subject) -> Iterator[Finding]:
    """List them; warn of a runtime that is there twice, or deleted on disk."""
    maps = mapped(subject)
    if maps.problem is not None:
        yield unknown(maps.problem, Evidence(source=MAPS, found=maps.problem))
        return
    groups = by_family(maps.libraries)
    wrong = False
    for name, (family, libraries) in groups.items():
        gone = [each for each in libraries if each.deleted]
        if name not in _JUDGED_ELSEWHERE and _differ(subject, libraries):
            wrong = True
            evidence = evidence_of(libraries, f"one file of {name}")
            yield warned(f"two copies of {name} in this process {family.harm}: {_paths(libraries)}", *evidence)
        elif gone:
            wrong = True
            yield warned(
                f"{_paths(gone)} is mapped, and was replaced or removed on disk since",
                *evidence_of(gone, "the file that is on disk"),
                action="Start the run again, so that all of it uses the library that is installed now.",
            )
    if not wrong:
        every = [each for _, libraries in groups.values() for each in libraries]
        evidence = evidence_of(every, "one file of each runtime") or (_none("a GPU runtime"),)
        yield passed(f"{len(every)} mapped: {_paths(every)}" if every else "no GPU runtime is mapped yet", *evidence)


def _differ(subject: Subject, libraries: Sequence[Mapped]) -> bool:
    """Whether these are different libraries: neither one file nor copies of each other."""
    if len(libraries) < 2:
        return False
    return any(each.deleted for each in libraries) or len(different(subject, (each.path for each in libraries))) > 1


def _paths(libraries: Sequence[Mapped]) -> str:
    return ", ".join(each.path for each in libraries)


def _none(what: str) -> Evidence:
    return Evidence(source=MAPS, found=f"no file of {what}")
