"""The environment for a child that shall see exactly the given GPUs, whatever its parent's masks were.

A child's list replaces its parent's: indices are those of the machine, never re-indexed by the parent's mask. Only
HIP's are relative, to the child's own `ROCR_VISIBLE_DEVICES`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pytest_gpucoexist.errors import RequirementError
from pytest_gpucoexist.model.visibility.cuda import names_devices
from pytest_gpucoexist.model.visibility.order import amd_uuid, count_cuda, count_level_zero, count_rocm

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpucoexist.model.identity import Vendor
    from pytest_gpucoexist.model.machine import Gpu, Machine

__all__ = ["MaskStyle", "write_masks"]

MaskStyle = Literal["auto", "index", "uuid"]

# Not "": some readers take an empty variable for an unset one (HIP does), and some call int() on every entry.
_NONE = "-1"


def write_masks(
    gpus: Sequence[Gpu], machine: Machine, style: MaskStyle = "auto", environ: Mapping[str, str] | None = None
) -> dict[str, str | None]:
    """Return what to set (text) and to unset (None) so that a child sees these GPUs, in this order, and no other.

    `index` writes numbers with `CUDA_DEVICE_ORDER=PCI_BUS_ID`, `uuid` names, `auto` what the caller's own mask in
    `environ` used. MIG instances are always named; an AMD GPU without `unique_id` is always numbered. The vendors of
    this machine that are not among `gpus` are hidden wholly, and HIP gets a list of its own so that it never reads
    CUDA's. Raises RequirementError for a GPU that its runtime does not count, and for two MIG instances.
    """
    caller = environ or {}
    wanted: dict[Vendor, list[Gpu]] = {"nvidia": [], "amd": [], "intel": []}
    for gpu in gpus:
        if gpu.vendor not in wanted:
            raise RequirementError(f"{gpu.key} ({gpu.vendor}) has no visibility variable")
        wanted[gpu.vendor].append(gpu)
    present = {gpu.vendor for gpu in machine.gpus} | {gpu.vendor for gpu in gpus}
    result: dict[str, str | None] = {}
    if "nvidia" in present:
        result |= _cuda(wanted["nvidia"], machine, style, caller)
    if "amd" in present:
        result |= _rocm(wanted["amd"], machine, style, caller)
    if "intel" in present:
        result |= _intel(wanted["intel"], machine, caller)
    return result


def _cuda(gpus: Sequence[Gpu], machine: Machine, style: MaskStyle, caller: Mapping[str, str]) -> dict[str, str | None]:
    if not gpus:
        return {"CUDA_VISIBLE_DEVICES": _NONE}
    counted = count_cuda(machine, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    split = [gpu for gpu in gpus if gpu.partition is not None]
    if split and len(gpus) > 1:
        names = ", ".join(gpu.uuid or gpu.key for gpu in gpus)
        raise RequirementError(f"one CUDA process sees one MIG instance and nothing beside it; asked for {names}")
    by_name = style == "uuid" or (style == "auto" and names_devices(caller.get("CUDA_VISIBLE_DEVICES", "")))
    named = [gpu.uuid for gpu in gpus if gpu.uuid and names_devices(gpu.uuid)]
    order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    if (split or by_name) and len(named) == len(gpus):
        return {"CUDA_VISIBLE_DEVICES": ",".join(named), **order}
    places = {gpu.key: index for index, place in enumerate(counted.places) for gpu in place if not gpu.partition}
    return {"CUDA_VISIBLE_DEVICES": ",".join(_index(gpu, places, "CUDA") for gpu in gpus), **order}


def _rocm(gpus: Sequence[Gpu], machine: Machine, style: MaskStyle, caller: Mapping[str, str]) -> dict[str, str | None]:
    # clr's OpenCL counts what ROCR leaves: a list that the caller (or Slurm) wrote for all GPUs would be wrong there.
    result: dict[str, str | None] = {"GPU_DEVICE_ORDINAL": None} if "GPU_DEVICE_ORDINAL" in caller else {}
    if not gpus:
        return {"ROCR_VISIBLE_DEVICES": _NONE, "HIP_VISIBLE_DEVICES": _NONE, **result}
    mine = next((caller[name] for name in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES") if caller.get(name)), "")
    by_name = style == "uuid" or (style == "auto" and mine.upper().startswith("G"))
    row = [gpu for place in count_rocm(machine).places for gpu in place]
    places = {gpu.key: index for index, gpu in enumerate(row)}
    known = [amd_uuid(gpu) for gpu in row]
    entries = [
        amd_uuid(gpu) if by_name and known.count(amd_uuid(gpu)) == 1 and amd_uuid(gpu) != "GPU-XX" else None
        for gpu in gpus
    ]
    rocr = [entry or _index(gpu, places, "ROCm") for entry, gpu in zip(entries, gpus, strict=True)]
    hip = [str(index) for index in range(len(gpus))]
    return {"ROCR_VISIBLE_DEVICES": ",".join(rocr), "HIP_VISIBLE_DEVICES": ",".join(hip), **result}


def _intel(gpus: Sequence[Gpu], machine: Machine, caller: Mapping[str, str]) -> dict[str, str | None]:
    if not gpus:
        return {"ZE_AFFINITY_MASK": _NONE}
    row = [gpu for place in count_level_zero(machine, caller).places for gpu in place]
    places = {gpu.key: index for index, gpu in enumerate(row)}
    result: dict[str, str | None] = {"ZE_AFFINITY_MASK": ",".join(_index(gpu, places, "Level Zero") for gpu in gpus)}
    if caller.get("ONEAPI_DEVICE_SELECTOR"):
        # Its numbers counted what the caller's own ZE_AFFINITY_MASK left.
        result["ONEAPI_DEVICE_SELECTOR"] = "level_zero:gpu"
    return result


def _index(gpu: Gpu, places: Mapping[str, int], runtime: str) -> str:
    index = places.get(gpu.key)
    if index is None:
        raise RequirementError(
            f"{gpu.key} cannot be written into a mask: {runtime} counts {', '.join(places) or 'no GPU'} on this machine"
        )
    return str(index)
