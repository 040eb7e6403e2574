"""Python packages that mix vendors: what pip put in one environment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.findings import Finding, passed, skipped, unknown, warned
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.verdicts import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.model.machine import Runtime

__all__ = ["packages", "torch_build"]

_NAMES = {"nvidia": "NVIDIA", "amd": "AMD", "intel": "Intel"}
_KINDS = {
    "duplicate_import": "one distribution for each import",
    "broken_install": "a package that can be imported",
    "broken_metadata": "metadata that can be understood",
}


@gate(
    "lib.packages",
    group="libraries",
    title="Packages do not overwrite each other",
    reads="names, RECORDs and top_level.txt of the distributions in sys.path",
    criterion="every import of a GPU package belongs to one distribution",
    why="pip lets the last one installed overwrite the first and `pip check` stays green: pynvml is then backed by AMD"
    " SMI, cupy is built for the other vendor.",
    action="Uninstall both distributions, then install the one that is wanted.",
    source="cupy documentation: installation, multiple CuPy packages; ROCm/hip-python hip-python-interop",
)
def packages(subject: Subject) -> Iterator[Finding]:
    """Turn what discovery found about the environment into verdicts."""
    found = [each for each in subject.machine.conflicts if each.kind in _KINDS]
    for conflict in found:
        evidence = [
            Evidence(source=str(name), found=str(claim), expected=_KINDS[conflict.kind])
            for name, claim in conflict.claims.items()
        ]
        yield warned(conflict.message, *evidence)
    if found:
        return
    folders = [path for path in subject.host.python_path if path and subject.names(path.rstrip("/"))]
    frameworks = [each for each in subject.machine.runtimes if each.kind == "framework"]
    if not subject.host.python_path:
        yield skipped("no sys.path was recorded")
    elif not folders:
        yield unknown("no folder of sys.path can be listed", Evidence(source="sys.path", found="nothing"))
    else:
        named = ", ".join(_label(each) for each in frameworks) or "no GPU framework"
        yield passed(f"{named}: no import has two owners", *(Evidence(source=path, found="listed") for path in folders))


@gate(
    "lib.torch_build",
    group="libraries",
    title="Frameworks are built for the GPUs that are here",
    reads="version files and names of torch, cupy, jax, triton, tensorrt and onnxruntime in sys.path",
    criterion="a vendor that is asked for, or whose runtime is installed, has a build for it wherever there is a build",
    why="A wheel for another vendor, or for the CPU, finds no GPU: its tests are skipped or fail in an odd place.",
    action="Install the wheel for this vendor; for two vendors use two environments.",
    source="torch.utils.collect_env; ggml-org/llama.cpp#11506",
)
def torch_build(subject: Subject) -> Iterator[Finding]:
    """Warn where a framework was built for a vendor that is not here, and not for the one that is wanted."""
    frameworks = [each for each in subject.machine.runtimes if each.kind == "framework"]
    if not frameworks:
        yield skipped("no GPU framework is installed in sys.path")
        return
    here = {gpu.vendor for gpu in subject.gpus()}
    # An integrated GPU beside the usual CUDA wheel is nobody's problem, unless somebody asked for it.
    asked = {vendor for vendor in here if _asked(subject, vendor)}
    discrete = {gpu.vendor for gpu in subject.gpus() if gpu.kind == "discrete"}
    wanted = asked | {vendor for vendor in discrete if subject.wanted(vendor) is not None}
    wrong = False
    for framework in frameworks:
        evidence = Evidence(
            source=framework.source,
            found=f"{_label(framework)} for {_vendors(framework.vendors) or 'the CPU'}",
            expected=f"a build for {_vendors(sorted(wanted))}" if wanted else None,
        )
        missing = wanted - set(framework.vendors)
        if not wanted or missing != wanted or (framework.built_for is None and not framework.vendors):
            continue
        if framework.vendors or asked:
            wrong = True
            on = [gpu for gpu in subject.gpus() if gpu.vendor in wanted]
            flavour = framework.built_for or _vendors(framework.vendors)
            yield warned(
                f"{_label(framework)} is built for {flavour}, not for {_vendors(sorted(wanted))}", evidence, on=on
            )
    if not wrong:
        built = [
            f"{_label(each)} for {each.built_for or _vendors(each.vendors) or 'no known vendor'}" for each in frameworks
        ]
        sources = [Evidence(source=each.source, found=text) for each, text in zip(frameworks, built, strict=True)]
        yield passed("; ".join(built), *sources)


def _asked(subject: Subject, vendor: str) -> bool:
    names = {"nvidia": ("nvidia", "cuda"), "amd": ("amd", "rocm"), "intel": ("intel",)}.get(vendor, ())
    return vendor in subject.needed or any(subject.promised.get(name) for name in names)


def _label(runtime: Runtime) -> str:
    return f"{runtime.name} {runtime.version}" if runtime.version else runtime.name


def _vendors(vendors: tuple[str, ...] | list[str]) -> str:
    return ", ".join(_NAMES.get(vendor, vendor) for vendor in vendors)
