"""The variables that reach an AMD GPU: ROCR's, then HIP's or, in its absence, CUDA's; and AMD's OpenCL."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_gpucoexist.model.machine import Mask
from pytest_gpucoexist.model.visibility.masks import make_mask
from pytest_gpucoexist.model.visibility.rocm import select_hip, select_rocr
from pytest_gpucoexist.model.visibility.torch_rocm import torch_rocm_entries

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpucoexist.model.machine import Gpu
    from pytest_gpucoexist.model.visibility.slurm import Translation
    from pytest_gpucoexist.model.visibility.tokens import Selection

__all__ = ["amd_masks"]


def amd_masks(
    environ: Mapping[str, str], gpus: Sequence[Gpu], slurm: Translation | None
) -> tuple[list[Mask], tuple[str, ...]]:
    """Return the masks and the keys that HIP is left with. `gpus` are in KFD's order."""
    masks: list[Mask] = []
    left = list(gpus)
    value = environ.get("ROCR_VISIBLE_DEVICES")
    if value is not None:
        keys = [gpu.key for gpu in gpus]
        mask = make_mask("ROCR_VISIBLE_DEVICES", value, "rocr", select_rocr(value, gpus), keys, slurm)
        masks.append(mask)
        left = [gpus[keys.index(key)] for key in mask.devices or ()]
    shown = tuple(gpu.key for gpu in left)
    ordinal = environ.get("GPU_DEVICE_ORDINAL")
    if ordinal and gpus:
        masks.append(make_mask("GPU_DEVICE_ORDINAL", ordinal, "opencl", select_hip(ordinal, left), shown, slurm))
    hip = _hip_mask(environ, gpus, left, slurm) if gpus else None
    if hip is None:
        return masks, shown
    return [*masks, hip], hip.devices or ()


def _hip_mask(
    environ: Mapping[str, str], gpus: Sequence[Gpu], left: Sequence[Gpu], slurm: Translation | None
) -> Mask | None:
    """Follow HIP: its own variable when that is not empty, else CUDA's when that is not empty."""
    shown = tuple(gpu.key for gpu in left)
    hip, cuda = environ.get("HIP_VISIBLE_DEVICES"), environ.get("CUDA_VISIBLE_DEVICES")
    if hip:
        return _own(environ, hip, gpus, left)
    if cuda:
        picked = select_hip(cuda, left)
        if slurm is not None and "CUDA_VISIBLE_DEVICES" in slurm.variables:
            return _leaked_from_slurm(cuda, picked, shown)
        return _leaked(hip, cuda, picked, shown)
    if hip is None:
        return None
    warning = "an empty HIP_VISIBLE_DEVICES counts as unset, so HIP sees every GPU"
    torch = _torch_count(environ, len(shown))
    if torch is not None:
        warning += f", while torch's ROCm build counts {torch}"
    return Mask(variable="HIP_VISIBLE_DEVICES", value=hip, runtime="hip", devices=shown, warning=warning)


def _own(environ: Mapping[str, str], value: str, gpus: Sequence[Gpu], left: Sequence[Gpu]) -> Mask:
    picked = select_hip(value, left)
    mask = make_mask("HIP_VISIBLE_DEVICES", value, "hip", picked, [gpu.key for gpu in left])
    rocr = environ.get("ROCR_VISIBLE_DEVICES")
    if rocr is not None and left and not picked.devices and select_hip(value, gpus).devices:
        warning = (
            f"HIP_VISIBLE_DEVICES={value} counts the {_gpus(len(left))} that ROCR_VISIBLE_DEVICES={rocr} leaves, so "
            f"none remains: set HIP_VISIBLE_DEVICES={_numbers(len(left))}"
        )
        return replace(mask, warning=warning)
    torch = _torch_count(environ, len(picked.devices))
    if torch is not None:
        text = f"torch's ROCm build counts {torch} by these variables, HIP {len(picked.devices)}"
        return replace(mask, warning="; ".join(filter(None, (mask.warning, text))))
    return mask


def _leaked(hip: str | None, value: str, picked: Selection, shown: tuple[str, ...]) -> Mask:
    """Describe a list that was meant for CUDA and that HIP reads too."""
    warning = None
    hidden = len(shown) - len(picked.devices)
    if hidden:
        state = "is not set" if hip is None else "is empty, which counts as unset"
        warning = (
            f"HIP_VISIBLE_DEVICES {state}, so HIP reads CUDA_VISIBLE_DEVICES={value} and loses {hidden} of "
            f"{_gpus(len(shown))}: set HIP_VISIBLE_DEVICES={_numbers(len(shown))}"
        )
    return Mask(variable="CUDA_VISIBLE_DEVICES", value=value, runtime="hip", devices=picked.devices, warning=warning)


def _leaked_from_slurm(value: str, picked: Selection, shown: tuple[str, ...]) -> Mask:
    """Describe Slurm's list for CUDA, which HIP reads: the job's own GPUs are those that ROCR leaves."""
    warning = None
    if picked.devices != shown:
        warning = (
            f"HIP_VISIBLE_DEVICES is not set, so HIP reads Slurm's CUDA_VISIBLE_DEVICES={value}: "
            f"set HIP_VISIBLE_DEVICES={_numbers(len(shown))}"
        )
    return Mask(variable="CUDA_VISIBLE_DEVICES", value=value, runtime="hip", devices=shown, warning=warning)


def _torch_count(environ: Mapping[str, str], runtime_count: int) -> str | None:
    """Say what torch's Python side counts, when that is not what HIP has."""
    try:
        entries = torch_rocm_entries(environ)
    except ValueError as error:
        return f"nothing ({error})"
    return None if entries is None or len(entries) == runtime_count else str(len(entries))


def _numbers(count: int) -> str:
    return ",".join(str(index) for index in range(count)) or "-1"


def _gpus(count: int) -> str:
    return "1 AMD GPU" if count == 1 else f"{count} AMD GPUs"
