"""Lists that Slurm numbered across vendors, translated to each runtime's own numbers.

Slurm counts the GPUs of a node in one row, vendor after vendor in the order of `Gres=` in slurm.conf, and exports
the same list to every vendor: on a node with `Gres=gpu:nvidia:2,gpu:amd:2`, `--gres=gpu:amd:1` gives
`CUDA_VISIBLE_DEVICES=2 ROCR_VISIBLE_DEVICES=2` (and `GPU_DEVICE_ORDINAL`, `ZE_AFFINITY_MASK`), where ROCm has only
0 and 1. `SLURM_STEP_GPUS` or `SLURM_JOB_GPUS` hold the list. Seen with Slurm 22.05. Where Slurm confines a
job to its devices, it counts from 0 among those and the lists differ from `SLURM_*_GPUS`: nothing to translate.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpucoexist.model.identity import VENDORS, Vendor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpucoexist.model.machine import Gpu, Machine

__all__ = ["Translation", "translate_slurm"]

_LISTS = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")
_MASKS = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK")
# Where the type of the GPUs that were asked for can stand, most telling first.
_TYPES = (
    "SLURM_STEP_GRES",
    "SLURM_JOB_GRES",
    "SLURM_GPUS",
    "SLURM_GPUS_PER_NODE",
    "SLURM_GPUS_PER_TASK",
    "SLURM_TRES_PER_TASK",
    "SLURMD_TRES_BIND",
)
_TYPE = re.compile(r"(?:^|[,:/ ])([A-Za-z][\w.-]*)[:=]\d+")
_MODELS: tuple[tuple[Vendor, str], ...] = (
    ("nvidia", r"nvidia|tesla|quadro|geforce|[rg]tx|[abhlpvt]\d{1,3}[a-z]?|g[bh]\d{3}"),
    ("amd", r"amd|mi\d{2,3}[a-z]?|instinct|radeon|rx\d+|w\d{4}|gfx\w+"),
    ("intel", r"intel|arc|max|flex|pvc"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """Which GPUs the job was given, and the variables whose value is Slurm's list.

    `assumed` is the order of vendors that had to be assumed, when more than one would fit.
    """

    source: str
    value: str
    variables: frozenset[str]
    keys: tuple[str, ...]
    assumed: str | None = None


def translate_slurm(
    environ: Mapping[str, str], machine: Machine, rows: Mapping[Vendor, Sequence[Gpu]]
) -> Translation | None:
    """Recognise a list numbered across vendors. `rows` are the GPUs of each vendor in its runtime's order.

    None when Slurm gave no list, when at most one vendor has GPUs, or when the variables hold something else: two
    vendors' variables must carry Slurm's list unchanged. Integrated GPUs stand outside Slurm's row where there is
    a discrete one.
    """
    source = next((name for name in _LISTS if environ.get(name)), None)
    if source is None:
        return None
    value = environ[source]
    indices = _indices(value)
    variables = frozenset(name for name in _MASKS if environ.get(name) == value)
    if not indices or not {"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"} <= variables:
        return None
    if environ.get("HIP_VISIBLE_DEVICES") and "GPU_DEVICE_ORDINAL" not in variables:
        # Slurm sets neither HIP's variable nor CUDA's and ROCR's alone: these were written for a child (`write_masks`).
        return None
    discrete = any(gpu.kind != "integrated" for row in rows.values() for gpu in row)
    table = {
        vendor: [gpu for gpu in row if not (discrete and gpu.kind == "integrated")] for vendor, row in rows.items()
    }
    vendors = [vendor for vendor in VENDORS if table.get(vendor)]
    if len(vendors) < 2:
        return None
    asked = _vendors_asked(environ, machine)
    answers: dict[tuple[str, ...], str] = {}
    for order in itertools.permutations(vendors):
        row = [gpu for vendor in order for gpu in table[vendor]]
        if max(indices) >= len(row):
            return None
        chosen = [row[index] for index in indices]
        if asked and {gpu.vendor for gpu in chosen} != asked:
            continue
        answers.setdefault(tuple(gpu.key for gpu in chosen), ", ".join(order))
    if not answers:
        return None
    keys, order_text = next(iter(answers.items()))
    return Translation(
        source=source,
        value=value,
        variables=variables,
        keys=keys,
        assumed=order_text if len(answers) > 1 else None,
    )


def _indices(value: str) -> list[int]:
    indices: list[int] = []
    for entry in value.split(","):
        # Slurm writes SLURM_STEP_GPUS as a plain list, but GRES indices also as ranges.
        match = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", entry, re.ASCII)
        if match is None:
            return []
        first = int(match.group(1))
        indices += range(first, int(match.group(2) or first) + 1)
    return indices


def _vendors_asked(environ: Mapping[str, str], machine: Machine) -> set[Vendor]:
    for variable in _TYPES:
        names = [
            name.lower() for name in _TYPE.findall(environ.get(variable, "")) if name.lower() not in {"gpu", "gres"}
        ]
        found = {_vendor_of_type(name, machine) for name in names}
        if found and None not in found:
            return {vendor for vendor in found if vendor is not None}
    return set()


def _vendor_of_type(name: str, machine: Machine) -> Vendor | None:
    for vendor, pattern in _MODELS:
        if any(re.fullmatch(pattern, word) for word in re.split(r"[_.-]", name)):
            return vendor
    owners: set[Vendor] = {gpu.vendor for gpu in machine.gpus if name in (gpu.name or "").lower().replace(" ", "_")}
    return owners.pop() if len(owners) == 1 else None
