"""The caller's visibility variables, applied to a machine: `Machine.masks` and `Gpu.visible`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_gpucoexist.model.machine import Gpu, Machine, Mask
from pytest_gpucoexist.model.visibility.cuda import select_cuda
from pytest_gpucoexist.model.visibility.intel import select_level_zero, select_sycl
from pytest_gpucoexist.model.visibility.order import count_cuda, count_level_zero, count_rocm, of_vendor
from pytest_gpucoexist.model.visibility.rocm import select_hip, select_rocr
from pytest_gpucoexist.model.visibility.slurm import Translation, translate_slurm
from pytest_gpucoexist.model.visibility.tokens import Selection
from pytest_gpucoexist.model.visibility.torch_rocm import torch_rocm_entries

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pytest_gpucoexist.model.identity import Vendor

__all__ = ["apply_masks"]

_SLURM_VENDOR: dict[str, Vendor] = {
    "CUDA_VISIBLE_DEVICES": "nvidia",
    "ROCR_VISIBLE_DEVICES": "amd",
    "ZE_AFFINITY_MASK": "intel",
}


def apply_masks(environ: Mapping[str, str], machine: Machine) -> Machine:
    """Return the machine with the caller's masks parsed and every hidden GPU marked `visible=False`.

    Call it once drivers, KFD nodes and `granted` are known: they decide what a runtime counts. A GPU is hidden when
    the runtime of its own vendor (CUDA; ROCR and then HIP; Level Zero and then SYCL) would count it without the
    masks and does not with them. `NVIDIA_VISIBLE_DEVICES` acts when a container starts and changes nothing here.
    """
    cuda = count_cuda(machine, environ)
    rocm = count_rocm(machine)
    level_zero = count_level_zero(machine, environ)
    rows = {"nvidia": [place[0] for place in cuda.places], "amd": _flat(rocm.places), "intel": _flat(level_zero.places)}
    slurm = translate_slurm(environ, machine, {vendor: rows[vendor] for vendor in ("nvidia", "amd", "intel")})
    masks: list[Mask] = []

    left_cuda: Collection[str] = cuda.keys
    value = environ.get("CUDA_VISIBLE_DEVICES")
    if value is not None:
        picked = select_cuda(value, cuda, of_vendor(machine, "nvidia"))
        mask = _mask("CUDA_VISIBLE_DEVICES", value, "cuda", picked, slurm, cuda.keys)
        masks.append(mask)
        left_cuda = mask.devices or ()

    left_rocm = _rocm_masks(environ, _flat(rocm.places), slurm, masks)
    left_intel = _intel_masks(environ, _flat(level_zero.places), slurm, masks)

    counted = {*cuda.keys, *rocm.keys, *level_zero.keys}
    left = {*left_cuda, *left_rocm, *left_intel}
    split = {place[0].pci_address for place in cuda.places if place[0].partition}
    shown_parents = {gpu.pci_address for place in cuda.places for gpu in place if gpu.key in left}
    gpus: list[Gpu] = []
    for gpu in machine.gpus:
        visible = gpu.key in left or gpu.key not in counted
        if gpu.partition is None and gpu.pci_address in split:
            # A GPU in MIG mode is no device of its own: it shows when one of its instances does.
            visible = gpu.pci_address in shown_parents
        gpus.append(gpu if gpu.visible == visible else replace(gpu, visible=visible))
    return replace(machine, gpus=tuple(gpus), masks=tuple(masks))


def _flat(places: Sequence[tuple[Gpu, ...]]) -> list[Gpu]:
    return [gpu for place in places for gpu in place]


def _mask(
    variable: str, value: str, runtime: str, picked: Selection, slurm: Translation | None, own: Sequence[str]
) -> Mask:
    """Make the Mask, by Slurm's numbering where the value is Slurm's."""
    if slurm is not None and variable in slurm.variables:
        given = tuple(key for key in slurm.keys if key in own)
        if given == picked.devices and len(given) == len(slurm.keys):
            return Mask(variable=variable, value=value, runtime=runtime, devices=given, warning=picked.remark)
        numbers = ",".join(str(own.index(key)) for key in given) or "-1"
        warning = (
            f"Slurm numbered the GPUs across vendors ({slurm.source}={slurm.value}); "
            f"{runtime} has its own numbers: set {variable}={numbers}"
        )
        if slurm.assumed:
            warning += f" (assumed that Slurm counts {slurm.assumed}; no GRES type says otherwise)"
        return Mask(
            variable=variable,
            value=value,
            runtime=runtime,
            devices=given,
            warning=warning,
            translated_from=f"{slurm.source}={slurm.value}",
        )
    return Mask(
        variable=variable,
        value=value,
        runtime=runtime,
        devices=picked.devices,
        warning=f"{variable}={value}: {picked.remark}" if picked.remark else None,
    )


def _rocm_masks(
    environ: Mapping[str, str], gpus: Sequence[Gpu], slurm: Translation | None, masks: list[Mask]
) -> Sequence[str]:
    """Append the masks of ROCR, HIP and AMD's OpenCL; return the keys that HIP is left with."""
    left = list(gpus)
    by_key = {gpu.key: gpu for gpu in gpus}
    translated = False
    value = environ.get("ROCR_VISIBLE_DEVICES")
    if value is not None:
        mask = _mask("ROCR_VISIBLE_DEVICES", value, "rocr", select_rocr(value, gpus), slurm, [*by_key])
        masks.append(mask)
        translated = mask.translated_from is not None
        left = [by_key[key] for key in mask.devices or ()]
    ordinal = environ.get("GPU_DEVICE_ORDINAL")
    if ordinal:
        if slurm is not None and "GPU_DEVICE_ORDINAL" in slurm.variables:
            picked = Selection(devices=tuple(gpu.key for gpu in left))
        else:
            picked = select_hip(ordinal, left)
        masks.append(
            _mask("GPU_DEVICE_ORDINAL", ordinal, "opencl", picked, slurm, [gpu.key for gpu in gpus])
            if translated
            else _plain("GPU_DEVICE_ORDINAL", ordinal, "opencl", picked)
        )
    shown = [gpu.key for gpu in left]
    hip, cuda = environ.get("HIP_VISIBLE_DEVICES"), environ.get("CUDA_VISIBLE_DEVICES")
    if hip:
        picked = select_hip(hip, left)
        masks.append(_hip_mask(environ, hip, picked, gpus, shown))
        return picked.devices
    if cuda and gpus and not (slurm is not None and "CUDA_VISIBLE_DEVICES" in slurm.variables):
        picked = select_hip(cuda, left)
        masks.append(_leaked_mask(hip, cuda, picked, shown))
        return picked.devices
    if cuda and gpus:
        masks.append(_slurm_leak(cuda, select_hip(cuda, left), shown))
        return shown
    if hip is not None and gpus:
        warning = "an empty HIP_VISIBLE_DEVICES counts as unset: HIP sees every GPU"
        if _torch_count(environ, len(shown)) is not None:
            warning += ", while torch's ROCm build counts none"
        masks.append(
            Mask(variable="HIP_VISIBLE_DEVICES", value=hip, runtime="hip", devices=tuple(shown), warning=warning)
        )
    return shown


def _plain(variable: str, value: str, runtime: str, picked: Selection) -> Mask:
    return _mask(variable, value, runtime, picked, None, ())


def _hip_mask(
    environ: Mapping[str, str], value: str, picked: Selection, gpus: Sequence[Gpu], shown: Sequence[str]
) -> Mask:
    mask = _plain("HIP_VISIBLE_DEVICES", value, "hip", picked)
    rocr = environ.get("ROCR_VISIBLE_DEVICES")
    if rocr is not None and shown and not picked.devices and select_hip(value, gpus).devices:
        numbers = ",".join(str(index) for index in range(len(shown)))
        warning = (
            f"HIP_VISIBLE_DEVICES={value} counts the {len(shown)} that ROCR_VISIBLE_DEVICES={rocr} leaves, so no AMD "
            f"GPU remains: set HIP_VISIBLE_DEVICES={numbers}"
        )
        return replace(mask, warning=warning)
    torch = _torch_count(environ, len(picked.devices))
    if torch is not None:
        text = f"torch's ROCm build counts {torch} GPUs by these variables, HIP {len(picked.devices)}"
        return replace(mask, warning="; ".join(filter(None, (mask.warning, text))))
    return mask


def _torch_count(environ: Mapping[str, str], runtime_count: int) -> str | None:
    """Say how many devices torch's Python side counts, when that is not what the runtime has."""
    try:
        entries = torch_rocm_entries(environ)
    except ValueError as error:
        return f"an error ({error}) instead of"
    return None if entries is None or len(entries) == runtime_count else str(len(entries))


def _leaked_mask(hip: str | None, value: str, picked: Selection, shown: Sequence[str]) -> Mask:
    """Describe a mask that was meant for CUDA and that HIP reads too."""
    hidden = len(shown) - len(picked.devices)
    warning = None
    if hidden:
        state = "is not set" if hip is None else "is empty, which counts as unset"
        warning = (
            f"HIP_VISIBLE_DEVICES {state}, so HIP reads CUDA_VISIBLE_DEVICES={value} and {hidden} of {len(shown)} AMD "
            f"GPUs are hidden: set HIP_VISIBLE_DEVICES={','.join(str(index) for index in range(len(shown)))}"
        )
    return Mask(variable="CUDA_VISIBLE_DEVICES", value=value, runtime="hip", devices=picked.devices, warning=warning)


def _slurm_leak(value: str, picked: Selection, shown: Sequence[str]) -> Mask:
    """HIP reads Slurm's list for CUDA: the job's own devices are those that ROCR leaves."""
    warning = None
    if list(picked.devices) != list(shown):
        numbers = ",".join(str(index) for index in range(len(shown))) or "-1"
        warning = (
            f"HIP_VISIBLE_DEVICES is not set, so HIP reads Slurm's CUDA_VISIBLE_DEVICES={value}: "
            f"set HIP_VISIBLE_DEVICES={numbers}"
        )
    return Mask(variable="CUDA_VISIBLE_DEVICES", value=value, runtime="hip", devices=tuple(shown), warning=warning)


def _intel_masks(
    environ: Mapping[str, str], gpus: Sequence[Gpu], slurm: Translation | None, masks: list[Mask]
) -> Sequence[str]:
    """Append the masks of Level Zero and SYCL; return the keys that remain for both."""
    keys = [gpu.key for gpu in gpus]
    left = list(gpus)
    value = environ.get("ZE_AFFINITY_MASK")
    if value is not None and (gpus or value):
        flat = environ.get("ZE_FLAT_DEVICE_HIERARCHY", "").upper() in {"FLAT", "COMBINED"}
        mask = _mask("ZE_AFFINITY_MASK", value, "level-zero", select_level_zero(value, gpus, flat=flat), slurm, keys)
        masks.append(mask)
        left = [gpu for key in mask.devices or () for gpu in gpus if gpu.key == key]
    selector = environ.get("ONEAPI_DEVICE_SELECTOR")
    if selector:
        picked = select_sycl(selector, left)
        if picked is None:
            masks.append(Mask(variable="ONEAPI_DEVICE_SELECTOR", value=selector, runtime="sycl"))
        else:
            masks.append(_plain("ONEAPI_DEVICE_SELECTOR", selector, "sycl", picked))
            left = [gpu for gpu in left if gpu.key in picked.devices]
    return [gpu.key for gpu in left]
