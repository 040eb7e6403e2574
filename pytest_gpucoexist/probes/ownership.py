"""Two distributions that own one import: which files, and whose is the one that would be imported.

pip lets the last one installed overwrite the first and `pip check` stays green. Known cases: CuPy's wheels share
`cupy`; `hip-python-interop` overwrites `cuda/bindings/driver*.so` and shadows `pynvml.py` with a package backed by
AMD SMI; onnxruntime's flavours share `onnxruntime`; Triton's share `triton`.
"""

from __future__ import annotations

import base64
import hashlib
import re
from itertools import combinations
from typing import TYPE_CHECKING

from pytest_gpucoexist.model.machine import Conflict

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pytest_gpucoexist.host.base import Host
    from pytest_gpucoexist.probes.distributions import Distribution, Entry, SitePackages

__all__ = ["OWNERS", "duplicate_imports"]

_FLAVOURS = "azure|cann|coreml|directml|gpu|migraphx|openvino|qnn|rocm|silicon|training|training-rocm|vitisai"

OWNERS: Mapping[str, re.Pattern[str]] = {
    "torch": re.compile(r"torch(-cpu|-gpu|-nightly|-rocm|-xpu)?"),
    "cupy": re.compile(r"cupy(-cuda\d+x?|-rocm-[\d-]+|-nightly|-wheel)?"),
    "jax": re.compile(r"jax"),
    "triton": re.compile(r"triton(-nightly|-rocm|-windows|-xpu)?|pytorch-triton(-rocm|-xpu)?"),
    "tensorrt": re.compile(r"tensorrt(-cu\d+)?(-bindings)?"),
    "onnxruntime": re.compile(rf"onnxruntime(-({_FLAVOURS}))?|ort-(nightly|gpu-nightly|rocm-nightly)"),
    "cuda": re.compile(r"cuda-bindings|cuda-python|cuda-core|hip-python-interop|hip-python-as-cuda"),
    "pynvml": re.compile(r"nvidia-ml-py3?|pynvml|hip-python-interop|hip-python-as-cuda"),
    "nvtx": re.compile(r"nvtx|hip-python-interop"),
    "amdsmi": re.compile(r"amdsmi|rocm-amdsmi"),
}
"""Import name to the distributions that are known to install it."""

# A file larger than this is told by its size alone.
_HASH_LIMIT_BYTES = 1 << 20
_FILES_SHOWN = 8


def duplicate_imports(site: SitePackages) -> tuple[Conflict, ...]:
    """Report every pair of distributions that own the same import. Only RECORDs of such pairs are read."""
    conflicts: dict[tuple[str, str], Conflict] = {}
    for package, pattern in OWNERS.items():
        for first, second in combinations(site.named(pattern), 2):
            pair = (first.info, second.info)
            if pair in conflicts or first.info == second.info:
                continue
            if first.folder != second.folder:
                conflict = _shadowed(site, package, first, second)
            else:
                conflict = _overwritten(site, package, first, second)
            if conflict is not None:
                conflicts[pair] = conflict
    return tuple(conflicts.values())


def _shadowed(site: SitePackages, package: str, first: Distribution, second: Distribution) -> Conflict | None:
    both = all(_provides(site, package, each) for each in (first, second))
    if not both:
        return None
    return Conflict(
        subject=package,
        kind="duplicate_import",
        message=(
            f"{first.label} in {first.folder} and {second.label} in {second.folder} both own `{package}`; "
            f"the first comes first in sys.path and is imported"
        ),
        claims={f"{each.label} in {each.folder}": [package] for each in (first, second)},
    )


def _provides(site: SitePackages, package: str, distribution: Distribution) -> bool:
    if site.record(distribution) is None:
        return package in site.top_level(distribution) or package in site.folders[distribution.folder]
    return any(name.split(".")[0] == package for name in site.owned_imports(distribution))


def _overwritten(site: SitePackages, package: str, first: Distribution, second: Distribution) -> Conflict | None:
    owned = [site.owned_imports(each) for each in (first, second)]
    shared = sorted(owned[0].keys() & owned[1].keys(), key=lambda name: (name.count("."), name))
    if not shared:
        return _by_top_level(site, first, second)
    labels = (_label(first, second), _label(second, first))
    winners = dict(_winners(site.host, first.folder, owned, shared, labels))
    return Conflict(
        subject=shared[0].split(".")[0] if package not in {name.split(".")[0] for name in shared} else package,
        kind="duplicate_import",
        message=(
            f"{first.label} and {second.label} both own {_imports(shared)} in "
            f"{first.folder}: {_verdict(winners, labels)}. Uninstall both, then install the one that is wanted"
        ),
        claims={
            label: [names[name].path for name in shared[:_FILES_SHOWN]]
            for label, names in zip(labels, owned, strict=True)
        },
    )


def _label(distribution: Distribution, other: Distribution) -> str:
    return distribution.label if distribution.name == other.name else distribution.name


def _by_top_level(site: SitePackages, first: Distribution, second: Distribution) -> Conflict | None:
    """Judge distributions that have no RECORD by `top_level.txt`."""
    silent = [each for each in (first, second) if site.record(each) is None]
    if not silent:
        return None
    names = [
        set(site.top_level(each)) | {n.split(".")[0] for n in site.owned_imports(each)} for each in (first, second)
    ]
    shared = sorted(names[0] & names[1])
    if not shared:
        return None
    return Conflict(
        subject=shared[0],
        kind="duplicate_import",
        message=(
            f"{first.label} and {second.label} both own {_imports(shared)} in {first.folder}; "
            f"whose files these are cannot be told: {_list([each.label for each in silent], 2)} has no readable RECORD"
        ),
        claims={_label(first, second): shared, _label(second, first): shared},
    )


def _winners(
    host: Host,
    folder: str,
    owned: Sequence[Mapping[str, Entry]],
    shared: Sequence[str],
    labels: tuple[str, str],
) -> Iterator[tuple[str, str]]:
    """Say for each import whose file Python would load, looking closely at a few only."""
    judged = 0
    for name in shared:
        entries = (owned[0][name], owned[1][name])
        if entries[0].path != entries[1].path:
            # `pynvml/__init__.py` wins over `pynvml.py`, whoever came last.
            yield name, labels[0] if _precedes(entries[0].path, entries[1].path) else labels[1]
        elif (entries[0].sha256, entries[0].size_bytes) != (entries[1].sha256, entries[1].size_bytes):
            matching = [label for label, entry in zip(labels, entries, strict=True) if _is(host, folder, entry)]
            if len(matching) == 1:
                yield name, matching[0]
            judged += 1
            if judged >= _FILES_SHOWN:
                return


def _precedes(path: str, other: str) -> bool:
    def rank(text: str) -> int:
        return 0 if "/__init__." in text else 2 if text.endswith(".py") else 1

    return rank(path) <= rank(other)


def _is(host: Host, folder: str, entry: Entry) -> bool:
    """Whether the file on disk is the one that a RECORD describes."""
    path = f"{folder}/{entry.path}"
    try:
        if entry.size_bytes is not None and host.stat(path).size_bytes != entry.size_bytes:
            return False
        if entry.sha256 is None or (entry.size_bytes or 0) > _HASH_LIMIT_BYTES:
            return entry.size_bytes is not None
        content = host.read_bytes(path, _HASH_LIMIT_BYTES + 1)
    except OSError:
        return False
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
    return digest == entry.sha256


def _verdict(winners: Mapping[str, str], labels: tuple[str, str]) -> str:
    owners = [label for label in labels if label in winners.values()]
    if not owners:
        return "whose files these are cannot be told"
    if len(owners) == 1:
        return f"what is imported is {owners[0]}'s"
    parts = [f"{_imports([name for name in winners if winners[name] == owner])} is {owner}'s" for owner in owners]
    return "of what is imported, " + " and ".join(parts)


def _top_names(site: SitePackages, distribution: Distribution) -> set[str]:
    return {*site.top_level(distribution), *(name.split(".")[0] for name in site.owned_imports(distribution))}


def _imports(names: Sequence[str]) -> str:
    return _list([f"`{name}`" for name in names], 3)


def _list(items: Sequence[str], limit: int) -> str:
    shown = ", ".join(items[:limit])
    return shown if len(items) <= limit else f"{shown} and {len(items) - limit} more"
