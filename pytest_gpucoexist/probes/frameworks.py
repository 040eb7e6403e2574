"""Frameworks that can be imported, and the vendor each was built for, without importing any.

A ROCm build of torch answers to `torch.cuda` as well: only its `version.py` tells them apart.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from pytest_gpucoexist.model.machine import Conflict, Runtime
from pytest_gpucoexist.probes.ownership import OWNERS
from pytest_gpucoexist.probes.reader import names_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_gpucoexist.host.base import Host
    from pytest_gpucoexist.probes.distributions import Distribution, SitePackages

__all__ = ["find_frameworks"]

_ASSIGNMENT = re.compile(r"^(\w+)\s*(?::[^=\n]+)?=\s*(?:'([^'\n]*)'|\"([^\"\n]*)\")\s*$", re.MULTILINE)
_PROVIDERS = (
    ("cuda", "nvidia", "CUDA"),
    ("tensorrt", "nvidia", "TensorRT"),
    ("rocm", "amd", "ROCm"),
    ("migraphx", "amd", "MIGraphX"),
    ("openvino", "intel", "OpenVINO"),
)
_CUDA_TAG = re.compile(r"\+(?:.*[.])?cu(\d{2,3})(\d)\b")
_ROCM_TAG = re.compile(r"\+(?:.*[.])?rocm(\d[\d.]*)")


class _Built:
    """What the files of one package say: version, vendors, words."""

    __slots__ = ("built_for", "distribution", "vendors", "version")

    def __init__(self, version: str | None = None, vendors: tuple[str, ...] = (), built_for: str | None = None) -> None:
        self.version = version
        self.vendors = vendors
        self.built_for = built_for
        self.distribution: str | None = None


def find_frameworks(host: Host, site: SitePackages) -> tuple[list[Runtime], list[Conflict]]:
    """Find torch, cupy, jax, triton, tensorrt and onnxruntime. `vendors` is empty for a build without GPU support."""
    runtimes: list[Runtime] = []
    conflicts: list[Conflict] = []
    for name, judge in _JUDGES.items():
        path = site.locate(name)
        if path is None:
            conflicts += _leftovers(site, name)
            continue
        owners = [each for each in site.named(OWNERS[name]) if path.startswith(f"{each.folder}/")]
        try:
            built = judge(host, site, path, owners)
        except (OSError, ValueError, RecursionError) as error:
            conflicts.append(
                Conflict(
                    subject=name,
                    kind="broken_metadata",
                    message=f"{name} in {path} cannot be judged: {error}",
                    claims={path: str(error)},
                )
            )
            built = _Built()
        owner = next((each for each in owners if each.name == built.distribution), owners[0] if owners else None)
        runtimes.append(
            Runtime(
                name=name,
                kind="framework",
                version=built.version or (owner.version if owner else None),
                vendors=built.vendors,
                path=path,
                distribution=owner.name if owner else None,
                built_for=built.built_for,
                source=path,
            )
        )
    return runtimes, conflicts


def _leftovers(site: SitePackages, name: str) -> Iterator[Conflict]:
    """Report a distribution whose package is gone: an uninstall that took shared files with it."""
    for owner in site.named(OWNERS[name]):
        if name in site.folders[owner.folder]:
            yield Conflict(
                subject=name,
                kind="broken_install",
                message=f"{owner.label} is installed, but {owner.folder}/{name} has no `__init__` and imports nothing",
                claims={owner.label: f"{owner.folder}/{name}"},
            )


def _assignments(text: str) -> dict[str, str]:
    return {name: single or double for name, single, double in _ASSIGNMENT.findall(text)}


def _torch(host: Host, _site: SitePackages, path: str, owners: list[Distribution]) -> _Built:
    try:
        values = _assignments(host.read_text(f"{path}/version.py"))
    except OSError:
        values = {}
    version = values.get("__version__") or next((each.version for each in owners if each.version), None)
    hip = values.get("hip") or values.get("rocm")
    if hip:
        return _Built(version, ("amd",), f"ROCm {hip}")
    if values.get("cuda"):
        return _Built(version, ("nvidia",), f"CUDA {values['cuda']}")
    if values.get("xpu"):
        return _Built(version, ("intel",), f"XPU {values['xpu']}")
    return _by_tag(version, told="__version__" in values)


def _by_tag(version: str | None, *, told: bool) -> _Built:
    """Judge by the local part of a version: `+cu124`, `+rocm6.3`, `+xpu`, `+cpu`."""
    text = version or ""
    if match := _ROCM_TAG.search(text):
        return _Built(version, ("amd",), f"ROCm {match[1]}")
    if match := _CUDA_TAG.search(text):
        return _Built(version, ("nvidia",), f"CUDA {match[1]}.{match[2]}")
    if "+xpu" in text:
        return _Built(version, ("intel",), "XPU")
    if told or "+cpu" in text:
        return _Built(version, (), "CPU")
    return _Built(version)


def _cupy(host: Host, _site: SitePackages, path: str, owners: list[Distribution]) -> _Built:
    version = None
    if "_version.py" in names_in(host, path):
        version = _assignments(host.read_text(f"{path}/_version.py")).get("__version__")
    try:
        wheel = json.loads(host.read_text(f"{path}/.data/_wheel.json"))
        target = str(wheel.get("cuda") or "") if isinstance(wheel, dict) else ""
    except OSError:
        target = ""
    if target.startswith("rocm"):
        built = _Built(version, ("amd",), f"ROCm {target.removeprefix('rocm-')}")
    elif target:
        built = _Built(version, ("nvidia",), f"CUDA {target}")
    else:
        built = _cupy_by_name(version, owners)
    # The wheel's own file is what lies on disk now; among several owners, take the one that it fits.
    kind = "rocm" if built.vendors == ("amd",) else "cuda"
    built.distribution = next((each.name for each in owners if kind in each.name), None)
    return built


def _cupy_by_name(version: str | None, owners: list[Distribution]) -> _Built:
    for owner in owners:
        if match := re.fullmatch(r"cupy-rocm-([\d-]+)", owner.name):
            return _Built(version, ("amd",), f"ROCm {match[1].replace('-', '.')}")
        if match := re.fullmatch(r"cupy-cuda(\d+?)(\d|x)", owner.name):
            return _Built(version, ("nvidia",), f"CUDA {match[1]}.{match[2]}")
    # Built from source: for what was there at build time; HIP only when it was asked for.
    return _Built(version, (), None)


def _jax(_host: Host, site: SitePackages, _path: str, owners: list[Distribution]) -> _Built:
    vendors: dict[str, str] = {}
    for plugin in site.named(re.compile(r"jax-(cuda|rocm)\d+-(plugin|pjrt)")):
        api, major = re.findall(r"(cuda|rocm)(\d+)", plugin.name)[0]
        vendors.setdefault("nvidia" if api == "cuda" else "amd", f"{api.upper().replace('ROCM', 'ROCm')} {major}")
    if site.named(re.compile(r"intel-extension-for-openxla")):
        vendors.setdefault("intel", "XPU")
    version = next((each.version for each in owners), None)
    return _Built(version, tuple(vendors), ", ".join(vendors.values()) or "CPU")


def _triton(host: Host, _site: SitePackages, path: str, owners: list[Distribution]) -> _Built:
    for owner in owners:
        for word, vendor, label in (("rocm", "amd", "ROCm"), ("xpu", "intel", "XPU")):
            if owner.name.endswith(word):
                built = _Built(owner.version, (vendor,), label)
                built.distribution = owner.name
                return built
    backends = names_in(host, f"{path}/backends")
    known = {"nvidia": "CUDA", "amd": "ROCm", "intel": "XPU"}
    vendors = tuple(vendor for vendor in known if vendor in backends)
    return _Built(None, vendors, ", ".join(known[vendor] for vendor in vendors) or None)


def _onnxruntime(host: Host, _site: SitePackages, path: str, owners: list[Distribution]) -> _Built:
    names = names_in(host, f"{path}/capi")
    values: dict[str, str] = {}
    if "build_and_package_info.py" in names:
        values = _assignments(host.read_text(f"{path}/capi/build_and_package_info.py"))
    package = values.get("package_name") or next((each.name for each in owners), "onnxruntime")
    vendors: dict[str, str] = {}
    # The plain wheel has no providers: beside it they are leftovers of a flavour that it overwrote.
    for word, vendor, label in () if values.get("package_name") == "onnxruntime" else _PROVIDERS:
        if any(re.fullmatch(rf"(lib)?onnxruntime_providers_{word}\.(so|dll)", name) for name in names):
            vendors.setdefault(vendor, f"{label} {values.get(f'{word}_version', '')}".rstrip())
    if "directml" in package:
        # DirectX knows no vendor: it runs on any of them, on Windows.
        vendors = dict.fromkeys(("nvidia", "amd", "intel"), "DirectML")
    built = _Built(values.get("__version__"), tuple(vendors), ", ".join(dict.fromkeys(vendors.values())) or "CPU")
    built.distribution = package
    return built


def _tensorrt(_host: Host, _site: SitePackages, _path: str, owners: list[Distribution]) -> _Built:
    major = next((match[1] for each in owners if (match := re.search(r"-cu(\d+)", each.name))), None)
    return _Built(None, ("nvidia",), f"CUDA {major}" if major else "CUDA")


_JUDGES: dict[str, Callable[[Host, SitePackages, str, list[Distribution]], _Built]] = {
    "torch": _torch,
    "cupy": _cupy,
    "jax": _jax,
    "triton": _triton,
    "tensorrt": _tensorrt,
    "onnxruntime": _onnxruntime,
}
