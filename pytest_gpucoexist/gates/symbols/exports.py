"""Names that two different libraries export."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.findings import Finding, passed, skipped, unknown, warned
from pytest_gpucoexist.gates.libraries.content import different
from pytest_gpucoexist.gates.libraries.families import family_of
from pytest_gpucoexist.gates.libraries.maps import mapped
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.gates.symbols.elf import Elf, prefix_of
from pytest_gpucoexist.gates.symbols.loading import elf_of, loading_plan
from pytest_gpucoexist.model.verdicts import Evidence
from pytest_gpucoexist.probes.reader import Bad

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject

__all__ = ["symbols"]

_SHOWN = 3
# AMD ships its two SMI libraries in one folder; that both can be found there loads neither.
_SHIPPED_TOGETHER = {"AMD SMI", "ROCm SMI"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Library:
    path: str
    family: str
    elf: Elf
    mapped: bool
    packages: tuple[str, ...] = ()


@gate(
    "lib.symbols",
    group="libraries",
    title="Exported names have one owner",
    reads="dynamic symbols of the GPU runtimes that are mapped here, or that packages in sys.path would load",
    criterion="no two different runtimes export the same nccl*, rsmi_*, amdsmi_*, hip*, hsa_*, ggml_* or LLVM* names",
    why="The first library that is loaded globally answers for both: calls meant for one vendor's library, or one"
    " version of it, end in the other.",
    action="Load the two in separate processes, or with RTLD_LOCAL. Nothing is wrong until both are loaded in one.",
    source="pytorch/pytorch#42517; ROCm/mori#414; pytorch/pytorch#186516; ggml-org/llama.cpp#11506; pocl/pocl#474",
    level="standard",
)
def symbols(subject: Subject) -> Iterator[Finding]:
    """Warn of names with two owners. Copies of one runtime are the business of other gates."""
    libraries, problems = _gathered(subject)
    wrong = False
    for first, second in combinations(libraries, 2):
        if first.family == second.family or (first.elf.machine, first.elf.bits) != (
            second.elf.machine,
            second.elf.bits,
        ):
            continue
        if first.elf.versioned and second.elf.versioned:
            continue  # the loader keeps versions of a name apart
        shared = sorted(first.elf.exports & second.elf.exports)
        if shared:
            wrong = True
            yield _told(first, second, shared)
    for path, why in problems.items():
        yield unknown(f"{path}: {why}", Evidence(source=path, found=why, expected="an ELF file"))
    if loading_plan(subject).unfinished:
        yield unknown("there are more libraries than can be read in the time that gates have")
    elif not libraries and not problems:
        yield skipped("no GPU runtime is mapped, and no package in sys.path would load one")
    elif not wrong and not problems:
        yield passed(
            f"{len(libraries)} runtimes, and no name has two owners",
            *(Evidence(source=each.path, found=f"{len(each.elf.exports)} names of GPU runtimes") for each in libraries),
        )


def _told(first: _Library, second: _Library, shared: list[str]) -> Finding:
    groups = ", ".join(dict.fromkeys(group for name in shared if (group := prefix_of(name)) is not None))
    where = (
        "both are mapped in this process"
        if first.mapped and second.mapped
        else f"{' and '.join(dict.fromkeys((_who(first), _who(second))))} would bring them"
    )
    names = f"{len(shared)} {groups} name{'s' * (len(shared) != 1)}"
    return warned(
        f"{first.family} and {second.family} both export {names} ({', '.join(shared[:_SHOWN])} …); {where}",
        *(
            Evidence(source=each.path, found=f"{len(each.elf.exports)} names", expected="none that another one has")
            for each in (first, second)
        ),
    )


def _who(library: _Library) -> str:
    return ", ".join(library.packages) or "this process"


def _gathered(subject: Subject) -> tuple[list[_Library], dict[str, str]]:
    """Return the runtimes that are mapped and that would be loaded, copies left out, and what could not be read."""
    found: dict[str, _Library] = {}
    plan = loading_plan(subject)
    problems = dict(plan.problems)
    for library in mapped(subject).libraries:
        family = family_of(library.path)
        if family is None or library.deleted:
            continue
        elf = elf_of(subject, library.path, exports=True)
        if isinstance(elf, Bad):
            problems[library.path] = elf.detail
        else:
            found[library.path] = _Library(path=library.path, family=family.name, elf=elf, mapped=True)
    offered = [each for each in plan.offered if each.family.name not in _SHIPPED_TOGETHER]
    for each in (*plan.loaded, *offered):
        before = found.get(each.path)
        packages = (*(before.packages if before else ()), each.package)
        found[each.path] = _Library(
            path=each.path,
            family=each.family.name,
            elf=each.elf,
            mapped=before is not None and before.mapped,
            packages=tuple(dict.fromkeys(packages)),
        )
    kept = different(subject, found)
    return [found[path] for path in kept], problems
