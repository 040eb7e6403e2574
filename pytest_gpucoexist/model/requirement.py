"""What a test needs: the arguments of its marks, validated and combined."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from pytest_gpucoexist.errors import RequirementError
from pytest_gpucoexist.model.arguments import KEYWORDS, arch_vendor, check_arguments, format_bytes
from pytest_gpucoexist.model.identity import Vendor
from pytest_gpucoexist.model.versions import Condition

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["MARKS", "VENDOR_NAMES", "Need", "Requirement", "combine", "parse_mark", "restrict"]

MARKS: tuple[str, ...] = tuple(KEYWORDS)
VENDOR_NAMES: Mapping[str, str] = {"nvidia": "NVIDIA", "amd": "AMD", "intel": "Intel", "other": "other"}

Api = Literal["cuda", "rocm"]
_API_OF: Mapping[str, Api] = {"nvidia": "cuda", "amd": "rocm"}
_API_NAMES: Mapping[str, str] = {"cuda": "CUDA", "rocm": "ROCm"}
_VENDOR_OF_MARK: Mapping[str, Vendor] = {"cuda": "nvidia", "rocm": "amd"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """Devices of one kind that a test needs at the same time.

    `memory_bytes` is what the test will allocate on each. `arch` holds alternatives. `device` (a key or id) and
    `node` narrow the choice for tests that run once per device or per NUMA node. `mark` is the mark it came from.
    """

    vendor: Vendor | None = None
    api: Api | None = None
    count: int = 1
    memory_bytes: int | None = None
    arch: tuple[str, ...] = ()
    driver: Condition | None = None
    runtime: tuple[Condition, ...] = ()
    framework: tuple[Condition, ...] = ()
    features: tuple[str, ...] = ()
    exclusive: bool = False
    same_node: bool = False
    mark: str = "gpu"
    device: str | None = None
    node: int | None = None

    def describe(self) -> str:
        """Say it in words: `1 NVIDIA GPU with CUDA, ≥ 8 GiB`."""
        vendor = f"{VENDOR_NAMES[self.vendor]} " if self.vendor else ""
        text = f"{self.count} {vendor}GPU{'' if self.count == 1 else 's'}"
        stack = [_API_NAMES[self.api]] if self.api else []
        stack += [_runtime_name(condition, self.api) for condition in self.runtime]
        stack += map(str, self.framework)
        if stack:
            text += " with " + " and ".join(stack)
        parts = [text]
        if self.memory_bytes is not None:
            parts.append(f"≥ {format_bytes(self.memory_bytes)}")
        if self.arch:
            parts.append(" or ".join(_arch_name(pattern) for pattern in self.arch))
        if self.driver is not None:
            parts.append(f"driver {self.driver}")
        parts += self.features
        if self.exclusive:
            parts.append("exclusive")
        if self.same_node:
            parts.append("on one NUMA node")
        if self.device is not None:
            parts.append(f"namely {self.device}")
        if self.node is not None:
            parts.append(f"of NUMA node {self.node}")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Everything that one test needs, leased together; with `closest_pair`, the two with the shortest path between."""

    requirements: tuple[Requirement, ...]
    closest_pair: bool = False

    def describe(self) -> str:
        """Say it in words, the requirements joined by `and`."""
        return " and ".join(requirement.describe() for requirement in self.requirements)


def parse_mark(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Requirement, ...]:
    """Turn one mark into requirements; `cross_vendor` gives one for each vendor.

    Raises RequirementError, naming the valid keywords.
    """
    if name not in KEYWORDS:
        raise RequirementError(f"{name!r} is no mark of this plugin; these are: {', '.join(MARKS)}")
    return _build(name, check_arguments(name, args, kwargs))


def combine(marks: Sequence[tuple[str, tuple[Any, ...], Mapping[str, Any]]], *, closest_pair: bool = False) -> Need:
    """Combine the marks of one test, the closest first.

    Of one name the closest wins, key by key. `gpu` without a vendor of its own, or with the same, gives the vendor
    marks beside it the arguments that they do not set themselves. Raises RequirementError.
    """
    by_name: dict[str, dict[str, Any]] = {}
    for name, args, kwargs in reversed(marks):
        if name not in KEYWORDS:
            raise RequirementError(f"{name!r} is no mark of this plugin; these are: {', '.join(MARKS)}")
        by_name.setdefault(name, {}).update(check_arguments(name, args, kwargs))
    vendor_marks = {mark: values for mark, values in by_name.items() if mark in _VENDOR_OF_MARK}
    general = by_name.get("gpu")
    cross = by_name.get("cross_vendor")
    by_vendor: dict[str, dict[str, Any]] = {}
    mark_of: dict[str, str] = {}
    if cross is not None:
        for vendor in cross.get("vendors", ("nvidia", "amd")):
            by_vendor[vendor] = {key: value for key, value in cross.items() if key != "vendors"}
            mark_of[vendor] = "cross_vendor"
    for mark, values in vendor_marks.items():
        vendor = _VENDOR_OF_MARK[mark]
        by_vendor[vendor] = {**by_vendor.get(vendor, {}), **values}
        mark_of.setdefault(vendor, mark)
    if general is not None:
        vendor = general.get("vendor")
        shared = {key: value for key, value in general.items() if key != "vendor"}
        if not by_vendor:
            return Need(requirements=_build("gpu", general), closest_pair=closest_pair)
        if vendor is None or vendor in by_vendor:
            for name in by_vendor if vendor is None else (vendor,):
                by_vendor[name] = {**shared, **by_vendor[name]}
        else:
            by_vendor[vendor] = shared
            mark_of[vendor] = "gpu"
    requirements = tuple(
        _requirement(mark_of[vendor], vendor, by_vendor[vendor])
        for vendor in sorted(by_vendor, key=["nvidia", "amd", "intel"].index)
    )
    return Need(requirements=requirements, closest_pair=closest_pair)


def restrict(
    need: Need,
    *,
    device: str | None = None,
    device_vendor: str | None = None,
    vendor: Vendor | None = None,
    node: int | None = None,
) -> Need:
    """Narrow a need to one device (key or id, with its vendor where that is known), to a vendor, or to a NUMA node.

    A device or vendor narrows one requirement, which then comes first: of several devices one is that device, and the
    others stay as they are. A node is for all of them.
    """
    rest = [replace(requirement, node=node) for requirement in need.requirements]
    wanted = vendor or device_vendor
    index = next((at for at, each in enumerate(rest) if wanted is None or each.vendor in {None, wanted}), None)
    if index is None and device is not None:
        index = 0  # no requirement is for such a device: the reason will say so
    if index is None or (device is None and vendor is None):
        return replace(need, requirements=tuple(rest))
    chosen = rest.pop(index)
    if vendor is not None and chosen.vendor is None:
        chosen = replace(chosen, vendor=vendor)
    if device is not None:
        if chosen.count > 1:
            rest.insert(0, replace(chosen, count=chosen.count - 1))
            chosen = replace(chosen, count=1)
        chosen = replace(chosen, device=device)
    return replace(need, requirements=(chosen, *rest))


def _build(name: str, values: Mapping[str, Any]) -> tuple[Requirement, ...]:
    if name == "cross_vendor":
        rest = {key: value for key, value in values.items() if key != "vendors"}
        vendors = values.get("vendors", ("nvidia", "amd"))
        return tuple(_requirement(name, vendor, rest) for vendor in vendors)
    rest = {key: value for key, value in values.items() if key != "vendor"}
    return (_requirement(name, _VENDOR_OF_MARK.get(name) or values.get("vendor"), rest),)


def _requirement(mark: str, vendor: str | None, values: Mapping[str, Any]) -> Requirement:
    arch = values.get("arch") or ()
    owner = arch_vendor(arch[0]) if arch else None
    if arch and vendor is None:
        # A compute capability or a gfx name says by itself whose devices are meant.
        if owner is None:
            raise RequirementError(
                f"{mark}(): arch={arch[0]!r} is neither a compute capability nor a gfx name: say the vendor too"
            )
        vendor = owner
    elif arch and vendor not in {"intel", owner}:
        form = 'a compute capability such as ">=8.0"' if vendor == "nvidia" else 'a gfx name such as "gfx90a"'
        raise RequirementError(f"{mark}(): arch={arch[0]!r} is not {form}, which is what {vendor} needs")
    uses_api = mark != "gpu" or values.get("runtime") or values.get("framework")
    return Requirement(
        vendor=vendor,  # type: ignore[arg-type]
        api=_API_OF.get(vendor or "") if uses_api else None,
        count=values.get("count", 1),
        memory_bytes=values.get("memory"),
        arch=arch,
        driver=values.get("driver"),
        runtime=values.get("runtime") or (),
        framework=values.get("framework") or (),
        features=values.get("features", ()),
        exclusive=values.get("exclusive", False),
        same_node=values.get("same_node", False),
        mark=mark,
    )


def _runtime_name(condition: Condition, api: Api | None) -> str:
    if condition.name is None:
        return f"{_API_NAMES[api] if api else 'runtime'} {condition.specifier}"
    return str(condition)


def _arch_name(pattern: str) -> str:
    return f"compute capability {pattern}" if arch_vendor(pattern) == "nvidia" else pattern
