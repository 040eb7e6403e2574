"""The caller's visibility variables, applied to a machine: `Machine.masks` and `Gpu.visible`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_gpucoexist.model.machine import Mask
from pytest_gpucoexist.model.visibility.amd_masks import amd_masks
from pytest_gpucoexist.model.visibility.cuda import select_cuda
from pytest_gpucoexist.model.visibility.intel import select_level_zero, select_sycl
from pytest_gpucoexist.model.visibility.masks import make_mask
from pytest_gpucoexist.model.visibility.order import count_cuda, count_level_zero, count_rocm, of_vendor
from pytest_gpucoexist.model.visibility.slurm import translate_slurm

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pytest_gpucoexist.model.machine import Gpu, Machine
    from pytest_gpucoexist.model.visibility.order import Counted
    from pytest_gpucoexist.model.visibility.slurm import Translation

__all__ = ["apply_masks"]


def apply_masks(environ: Mapping[str, str], machine: Machine) -> Machine:
    """Return the machine with the caller's masks parsed and every hidden GPU marked `visible=False`.

    Call it once drivers, KFD nodes and `granted` are known: they decide what a runtime counts. A GPU is hidden when
    the runtimes of its own vendor (CUDA; ROCR and then HIP; Level Zero and then SYCL) would count it without the
    masks and do not with them. `NVIDIA_VISIBLE_DEVICES` acts when a container starts and changes nothing here.
    """
    cuda = count_cuda(machine, environ)
    rocm = count_rocm(machine)
    level_zero = count_level_zero(machine, environ)
    slurm = translate_slurm(
        environ,
        machine,
        {"nvidia": [place[0] for place in cuda.places], "amd": rocm.gpus, "intel": level_zero.gpus},
    )
    masks: list[Mask] = []
    left: set[str] = set()
    for found, keys in (
        _nvidia_masks(environ, cuda, of_vendor(machine, "nvidia"), slurm),
        amd_masks(environ, rocm.gpus, slurm),
        _intel_masks(environ, level_zero.gpus, slurm),
    ):
        masks += found
        left.update(keys)
    hidden = {*cuda.keys, *rocm.keys, *level_zero.keys} - left
    # A GPU in MIG mode is no device of its own: it shows when one of its instances does.
    instances: dict[str, list[str]] = {}
    for place in cuda.places:
        if place[0].partition is not None and place[0].pci_address is not None:
            instances[place[0].pci_address] = [gpu.key for gpu in place]
    gpus = []
    for gpu in machine.gpus:
        visible = gpu.key not in hidden
        if gpu.partition is None and gpu.pci_address in instances:
            visible = not hidden.issuperset(instances[gpu.pci_address])
        gpus.append(gpu if gpu.visible == visible else replace(gpu, visible=visible))
    return replace(machine, gpus=tuple(gpus), masks=tuple(masks))


def _nvidia_masks(
    environ: Mapping[str, str], cuda: Counted, gpus: Sequence[Gpu], slurm: Translation | None
) -> tuple[list[Mask], Collection[str]]:
    value = environ.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return [], cuda.keys
    mask = make_mask("CUDA_VISIBLE_DEVICES", value, "cuda", select_cuda(value, cuda, gpus), cuda.keys, slurm)
    return [mask], mask.devices or ()


def _intel_masks(
    environ: Mapping[str, str], gpus: Sequence[Gpu], slurm: Translation | None
) -> tuple[list[Mask], Collection[str]]:
    masks: list[Mask] = []
    left = list(gpus)
    value = environ.get("ZE_AFFINITY_MASK")
    if value is not None and gpus:
        keys = [gpu.key for gpu in gpus]
        flat = environ.get("ZE_FLAT_DEVICE_HIERARCHY", "").upper() in {"FLAT", "COMBINED"}
        picked = select_level_zero(value, gpus, flat=flat)
        mask = make_mask("ZE_AFFINITY_MASK", value, "level-zero", picked, keys, slurm)
        masks.append(mask)
        left = [gpus[keys.index(key)] for key in mask.devices or ()]
    selector = environ.get("ONEAPI_DEVICE_SELECTOR")
    if selector and gpus:
        chosen = select_sycl(selector, left)
        if chosen is None:
            masks.append(Mask(variable="ONEAPI_DEVICE_SELECTOR", value=selector, runtime="sycl"))
        else:
            masks.append(make_mask("ONEAPI_DEVICE_SELECTOR", selector, "sycl", chosen, [gpu.key for gpu in left]))
            left = [gpu for gpu in left if gpu.key in chosen.devices]
    return masks, [gpu.key for gpu in left]
