"""What speaks against a device, for one requirement. Nothing: it fits."""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Literal

from pytest_gpucoexist.model.arguments import arch_vendor, format_bytes
from pytest_gpucoexist.model.requirement import VENDOR_NAMES, Requirement
from pytest_gpucoexist.model.versions import Condition, satisfies

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.model.identity import Vendor
    from pytest_gpucoexist.model.machine import Gpu, Machine, Runtime

__all__ = ["Objection", "machine_objections", "objections"]

# Drivers that keep a function away from everybody else: nothing here can use the device.
_KEEPERS = {"vfio-pci", "pci-stub", "xen-pciback"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Objection:
    """One reason against a device. `masked` and `not_granted` are withheld, `unfit` is broken: neither is missing."""

    kind: Literal["unusable", "masked", "not_granted", "unfit"]
    text: str


def machine_objections(requirement: Requirement, machine: Machine) -> list[str]:
    """Say what the machine as a whole lacks: a framework not installed, a runtime that nobody finds."""
    lacks = []
    for kind, conditions in (("framework", requirement.framework), ("runtime", requirement.runtime)):
        for condition in conditions:
            if condition.name is None:
                continue
            found = _named(machine, condition.name)
            if not found:
                lacks.append(f"{condition.name} is not installed")
            elif not any(satisfies(runtime.version, condition.specifier) for runtime in found):
                versions = ", ".join(runtime.version or "unknown version" for runtime in found)
                lacks.append(f"found {condition.name} {versions}")
            elif kind == "framework" and not any(runtime.vendors for runtime in found):
                lacks.append(f"the {condition.name} installed is built for no GPU")
    return lacks


def objections(gpu: Gpu, requirement: Requirement, machine: Machine) -> tuple[Objection, ...]:
    """Judge one device of the right vendor."""
    against = [Objection(kind="unusable", text=text) for text in _identity(gpu, requirement)]
    if not gpu.fit:
        # What a broken device does not tell is no reason why it could not have served; what it tells, is.
        against += [Objection(kind="unusable", text=text) for text in _certain(gpu, requirement)]
        against.append(Objection(kind="unfit", text=_detail(gpu, "fit") or "unfit"))
        return tuple(against)
    if not gpu.granted:
        against.append(Objection(kind="not_granted", text=_detail(gpu, "granted") or "not granted here"))
    elif unusable := _unusable(gpu, requirement, machine):
        against.append(Objection(kind="unusable", text=unusable))
        # The rest is read through the driver that is not there: repeating it says nothing new.
        return tuple(against)
    against += [Objection(kind="unusable", text=text) for text in _conditions(gpu, requirement, machine)]
    if not gpu.visible:
        against.append(Objection(kind="masked", text=f"hidden by {_hiding(gpu, machine)}"))
    return tuple(against)


def _identity(gpu: Gpu, requirement: Requirement) -> Iterator[str]:
    if requirement.device is not None and requirement.device not in {gpu.key, gpu.id}:
        yield f"not {requirement.device}"
    if requirement.node is not None and gpu.numa_node != requirement.node:
        yield "on an unknown NUMA node" if gpu.numa_node is None else f"on NUMA node {gpu.numa_node}"


def _unusable(gpu: Gpu, requirement: Requirement, machine: Machine) -> str | None:
    """Whether no runtime can compute on it: through CUDA for NVIDIA, ROCm for AMD, any driver of its own for Intel."""
    if gpu.vendor == "nvidia":
        return None if gpu.usable.cuda else _why_unusable(gpu, "usable.cuda", "CUDA cannot use it")
    if gpu.vendor == "amd":
        return None if gpu.usable.rocm else _why_unusable(gpu, "usable.rocm", "ROCm cannot use it")
    if gpu.driver is None or gpu.driver in _KEEPERS:
        return _bound(gpu)
    if requirement.vendor is None and not any("intel" in each.vendors for each in machine.runtimes):
        return "no Level Zero or OpenCL runtime for it"
    return None


def _why_unusable(gpu: Gpu, field: str, otherwise: str) -> str:
    own = "nvidia" if gpu.vendor == "nvidia" else "amdgpu"
    if gpu.driver is None and gpu.pci_address is not None:
        fact = gpu.facts.get("driver")
        if fact is None or fact.status in {"ok", "absent"}:
            return "no driver bound"
    elif gpu.driver not in {None, own}:
        return _bound(gpu)
    return _detail(gpu, field) or otherwise


def _bound(gpu: Gpu) -> str:
    return "no driver bound" if gpu.driver is None else f"bound to {gpu.driver}"


def _certain(gpu: Gpu, requirement: Requirement) -> Iterator[str]:
    fact = gpu.facts.get("usable.cuda")
    if gpu.features.get("mig") and fact is not None and fact.status == "unsupported":
        yield fact.detail or "MIG is on"
    total, wanted = gpu.memory_total_bytes, requirement.memory_bytes
    if total is not None and wanted is not None and total < wanted:
        yield f"has {format_bytes(total)}"
    if requirement.arch and gpu.arch is not None and not any(_arch_fits(gpu.arch, each) for each in requirement.arch):
        yield f"is {gpu.arch}"
    for name in requirement.features:
        if gpu.features.get(name) is False:
            yield f"has no {name}"


def _conditions(gpu: Gpu, requirement: Requirement, machine: Machine) -> Iterator[str]:
    if requirement.memory_bytes is not None:
        if gpu.memory_total_bytes is None:
            yield f"memory {_unread(gpu, 'memory_total_bytes')}"
        elif gpu.memory_total_bytes < requirement.memory_bytes:
            yield f"has {format_bytes(gpu.memory_total_bytes)}"
    if requirement.arch:
        if gpu.arch is None:
            yield f"architecture {_unread(gpu, 'arch')}"
        elif not any(_arch_fits(gpu.arch, pattern) for pattern in requirement.arch):
            yield f"is {'compute capability ' if gpu.vendor == 'nvidia' else ''}{gpu.arch}"
    if requirement.driver is not None:
        yield from _driver(gpu, requirement.driver)
    for name in requirement.features:
        if name not in gpu.features:
            yield f"feature {name} {_unread(gpu, f'features.{name}')}"
        elif not gpu.features[name]:
            yield f"has no {name}"
    for condition in requirement.runtime:
        yield from _runtime(gpu, condition, machine)
    for condition in requirement.framework:
        built = [each for each in _named(machine, condition.name or "") if satisfies(each.version, condition.specifier)]
        if not any(gpu.vendor in each.vendors for each in built):
            builds = ", ".join(_built_for(each) for each in built)
            yield f"{condition.name} is built for {builds}"


def _driver(gpu: Gpu, condition: Condition) -> Iterator[str]:
    if condition.name is not None and condition.name != gpu.driver:
        yield _bound(gpu)
        return
    fits = satisfies(gpu.driver_version, condition.specifier)
    if fits is None:
        yield f"driver version {gpu.driver_version or _unread(gpu, 'driver_version')}"
    elif not fits:
        yield f"driver {gpu.driver_version}"


# Names under which probes report what `runtime=">=12.4"` means for a vendor.
_OWN_RUNTIMES = {"nvidia": ("cudart", "cuda"), "amd": ("rocm", "hip"), "intel": ("level-zero",)}


def _runtime(gpu: Gpu, condition: Condition, machine: Machine) -> Iterator[str]:
    if condition.name is not None:
        found = [each for each in _named(machine, condition.name) if not each.vendors or gpu.vendor in each.vendors]
        label = condition.name
    else:
        label = {"nvidia": "CUDA", "amd": "ROCm"}.get(gpu.vendor, "Level Zero")
        found = [each for name in _OWN_RUNTIMES.get(gpu.vendor, ()) for each in _named(machine, name)]
    if any(satisfies(each.version, condition.specifier) for each in found):
        return
    versions = ", ".join(dict.fromkeys(each.version or "of unknown version" for each in found))
    yield f"{label} {versions}" if found else f"no {label} runtime found"


def _named(machine: Machine, name: str) -> list[Runtime]:
    wanted = name.lower().replace("_", "-")
    return [each for each in machine.runtimes if each.name.lower().replace("_", "-") == wanted]


def _built_for(runtime: Runtime) -> str:
    return " and ".join(VENDOR_NAMES.get(vendor, vendor) for vendor in runtime.vendors) or "no GPU"


def _detail(gpu: Gpu, field: str) -> str | None:
    fact = gpu.facts.get(field)
    return fact.detail if fact is not None else None


def _unread(gpu: Gpu, field: str) -> str:
    fact = gpu.facts.get(field)
    if fact is None:
        return "could not be read"
    place = f" from {fact.source}" if fact.source else ""
    return f"could not be read{place}: {fact.detail or fact.status}"


# Which runtimes' variables can hide a device of a vendor.
_RUNTIMES_OF: dict[Vendor, re.Pattern[str]] = {
    "nvidia": re.compile("cuda|nvidia", re.IGNORECASE),
    "amd": re.compile("hip|roc|hsa|clr|amd", re.IGNORECASE),
    "intel": re.compile("ze|level|oneapi|sycl|intel", re.IGNORECASE),
}


def _hiding(gpu: Gpu, machine: Machine) -> str:
    pattern = _RUNTIMES_OF[gpu.vendor]
    hiding = [mask for mask in machine.masks if mask.devices is not None and gpu.key not in mask.devices]
    named = [mask for mask in hiding if pattern.search(mask.runtime)] or hiding
    texts = dict.fromkeys(f"{mask.variable}={mask.value}" for mask in named)
    return " and ".join(texts) or "a visibility variable"


_OPERATORS = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}
_COMPARISON = re.compile(r"\s*([<>=!]=|[<>])?\s*(\d+)(?:\.(\d+))?\s*")


def _arch_fits(arch: str, pattern: str) -> bool:
    """Compare a compute capability with a specifier, or a name with a glob."""
    if arch_vendor(pattern) != "nvidia":
        return fnmatchcase(arch.lower(), pattern.lower())
    own = _COMPARISON.fullmatch(arch)
    if own is None:
        return False
    capability = (int(own[2]), int(own[3] or 0))
    for part in pattern.split(","):
        comparison = _COMPARISON.fullmatch(part)
        if comparison is None:
            return False
        wanted = (int(comparison[2]), int(comparison[3] or 0))
        if not _OPERATORS[comparison[1] or "=="](capability, wanted):
            return False
    return True
