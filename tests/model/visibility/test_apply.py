"""What the caller's variables come to together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, strategies as st

from pytest_gpucoexist.model.visibility import apply_masks
from tests.model.visibility.machines import (
    MIG_UUIDS,
    NVIDIA_UUIDS,
    amd,
    intel,
    machine,
    mig,
    nvidia,
    two_of_each,
    visible,
)

if TYPE_CHECKING:
    from pytest_gpucoexist.model.machine import Mask

ALL = ["nvidia0", "nvidia1", "amd0", "amd1", "intel0", "intel1"]


def only_mask(masks: tuple[Mask, ...], variable: str, runtime: str) -> Mask:
    (found,) = [mask for mask in masks if (mask.variable, mask.runtime) == (variable, runtime)]
    return found


@pytest.mark.parametrize(
    ("environ", "shown"),
    [
        ({}, ALL),
        ({"CUDA_VISIBLE_DEVICES": ""}, ["amd0", "amd1", "intel0", "intel1"]),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, ["intel0", "intel1"]),
        ({"CUDA_VISIBLE_DEVICES": "1"}, ["nvidia1", "amd1", "intel0", "intel1"]),
        ({"CUDA_VISIBLE_DEVICES": NVIDIA_UUIDS[0]}, ["nvidia0", "intel0", "intel1"]),
        ({"CUDA_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "0,1"}, ["nvidia1", "amd0", "amd1", "intel0", "intel1"]),
        ({"HIP_VISIBLE_DEVICES": "1"}, ["nvidia0", "nvidia1", "amd1", "intel0", "intel1"]),
        ({"HIP_VISIBLE_DEVICES": ""}, ALL),
        ({"HIP_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": "0"}, ["nvidia0", "amd0", "intel0", "intel1"]),
        ({"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "0"}, ["nvidia0", "nvidia1", "amd1", "intel0", "intel1"]),
        ({"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "1"}, ["nvidia0", "nvidia1", "intel0", "intel1"]),
        ({"ROCR_VISIBLE_DEVICES": "0,,1"}, ["nvidia0", "nvidia1", "intel0", "intel1"]),
        ({"ZE_AFFINITY_MASK": "1"}, ["nvidia0", "nvidia1", "amd0", "amd1", "intel1"]),
        ({"ZE_AFFINITY_MASK": "1", "ONEAPI_DEVICE_SELECTOR": "level_zero:0"}, [*ALL[:4], "intel1"]),
        ({"ZE_AFFINITY_MASK": "1", "ONEAPI_DEVICE_SELECTOR": "level_zero:1"}, ALL[:4]),
        ({"ONEAPI_DEVICE_SELECTOR": "opencl:0"}, ALL),
        ({"GPU_DEVICE_ORDINAL": "1"}, ALL),
        ({"NVIDIA_VISIBLE_DEVICES": "void"}, ALL),
        ({"NVIDIA_VISIBLE_DEVICES": "none"}, ALL),
    ],
    ids=str,
)
def test_what_remains_visible(environ: dict[str, str], shown: list[str]) -> None:
    assert visible(apply_masks(environ, two_of_each())) == shown


def test_no_variable_makes_no_mask() -> None:
    assert apply_masks({"PATH": "/usr/bin"}, two_of_each()).masks == ()


def test_a_second_look_without_the_mask_shows_everything_again() -> None:
    masked = apply_masks({"CUDA_VISIBLE_DEVICES": "-1"}, two_of_each())
    assert visible(apply_masks({}, masked)) == ALL


def test_cudas_variable_that_hides_amd_is_a_warning_that_names_both() -> None:
    mask = only_mask(apply_masks({"CUDA_VISIBLE_DEVICES": "-1"}, two_of_each()).masks, "CUDA_VISIBLE_DEVICES", "hip")
    assert mask.devices == ()
    assert mask.warning == (
        "HIP_VISIBLE_DEVICES is not set, so HIP reads CUDA_VISIBLE_DEVICES=-1 and loses 2 of 2 AMD GPUs: "
        "set HIP_VISIBLE_DEVICES=0,1"
    )


def test_an_empty_hip_variable_does_not_protect() -> None:
    environ = {"HIP_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": "0"}
    mask = only_mask(apply_masks(environ, two_of_each()).masks, "CUDA_VISIBLE_DEVICES", "hip")
    assert "is empty, which counts as unset" in (mask.warning or "")


def test_a_list_that_hides_no_amd_gpu_is_no_warning() -> None:
    mask = only_mask(apply_masks({"CUDA_VISIBLE_DEVICES": "0,1"}, two_of_each()).masks, "CUDA_VISIBLE_DEVICES", "hip")
    assert mask.warning is None


def test_double_masking_is_explained() -> None:
    environ = {"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "1"}
    found = apply_masks(environ, two_of_each())
    assert only_mask(found.masks, "ROCR_VISIBLE_DEVICES", "rocr").devices == (amd(1).key,)
    mask = only_mask(found.masks, "HIP_VISIBLE_DEVICES", "hip")
    assert mask.devices == ()
    assert mask.warning == (
        "HIP_VISIBLE_DEVICES=1 counts the 1 AMD GPU that ROCR_VISIBLE_DEVICES=1 leaves, so none remains: "
        "set HIP_VISIBLE_DEVICES=0"
    )


def test_torch_and_hip_that_disagree_are_told() -> None:
    mask = only_mask(apply_masks({"HIP_VISIBLE_DEVICES": ""}, two_of_each()).masks, "HIP_VISIBLE_DEVICES", "hip")
    assert mask.devices == (amd(0).key, amd(1).key)
    assert mask.warning == (
        "an empty HIP_VISIBLE_DEVICES counts as unset, so HIP sees every GPU, while torch's ROCm build counts 0"
    )
    environ = {"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "0,7"}
    mask = only_mask(apply_masks(environ, two_of_each()).masks, "HIP_VISIBLE_DEVICES", "hip")
    assert "torch's ROCm build counts nothing" in (mask.warning or "")
    environ = {"ROCR_VISIBLE_DEVICES": "0,1", "HIP_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": ""}
    mask = only_mask(apply_masks(environ, two_of_each()).masks, "HIP_VISIBLE_DEVICES", "hip")
    assert "counts 0" in (mask.warning or "")


def test_an_empty_hip_variable_on_a_machine_where_all_is_hidden_already() -> None:
    environ = {"ROCR_VISIBLE_DEVICES": "-1", "HIP_VISIBLE_DEVICES": ""}
    mask = only_mask(apply_masks(environ, two_of_each()).masks, "HIP_VISIBLE_DEVICES", "hip")
    assert mask.devices == ()
    assert "torch" not in (mask.warning or "")


def test_amds_opencl_counts_what_rocr_leaves() -> None:
    environ = {"ROCR_VISIBLE_DEVICES": "1", "GPU_DEVICE_ORDINAL": "0"}
    found = apply_masks(environ, two_of_each())
    assert only_mask(found.masks, "GPU_DEVICE_ORDINAL", "opencl").devices == (amd(1).key,)


def test_a_value_that_says_nothing_leaves_devices_open() -> None:
    found = apply_masks({"ONEAPI_DEVICE_SELECTOR": "opencl:0"}, two_of_each())
    assert only_mask(found.masks, "ONEAPI_DEVICE_SELECTOR", "sycl").devices is None


def test_a_vendor_that_is_absent_is_no_reason_to_warn() -> None:
    environ = {
        "CUDA_VISIBLE_DEVICES": "3",
        "ROCR_VISIBLE_DEVICES": "3",
        "HIP_VISIBLE_DEVICES": "",
        "GPU_DEVICE_ORDINAL": "0",
        "ZE_AFFINITY_MASK": "x",
        "ONEAPI_DEVICE_SELECTOR": "nonsense",
    }
    found = apply_masks(environ, machine())
    assert {mask.variable for mask in found.masks} == {"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"}
    assert {mask.warning for mask in found.masks} == {None}


def test_a_gpu_that_its_runtime_does_not_count_is_not_hidden_by_a_mask() -> None:
    """Why it cannot be used is its driver, and the reason must not be the mask."""
    found = apply_masks({"CUDA_VISIBLE_DEVICES": "-1"}, machine(nvidia(0, driver="nouveau"), nvidia(1)))
    assert visible(found) == ["nvidia0"]


def test_what_is_no_compute_device_stays_as_it_is() -> None:
    bmc = nvidia(0, id="other0", vendor="other", kind="bmc", uuid=None, driver="ast")
    assert visible(apply_masks({"CUDA_VISIBLE_DEVICES": ""}, machine(bmc))) == ["other0"]


def test_a_split_gpu_shows_with_its_instances() -> None:
    parent = nvidia(0)
    parts = [mig(parent, index, MIG_UUIDS[index]) for index in (0, 1)]
    found = machine(parent, *parts, nvidia(1))
    assert visible(apply_masks({"CUDA_VISIBLE_DEVICES": MIG_UUIDS[0]}, found)) == ["nvidia0", "mig0"]
    assert visible(apply_masks({"CUDA_VISIBLE_DEVICES": "1"}, found)) == ["nvidia1"]
    assert visible(apply_masks({}, found)) == ["nvidia0", "mig0", "mig1", "nvidia1"]


def test_the_order_of_the_list_is_the_order_of_the_devices() -> None:
    found = apply_masks({"CUDA_VISIBLE_DEVICES": "1,0", "ZE_AFFINITY_MASK": "1,0"}, two_of_each())
    assert only_mask(found.masks, "CUDA_VISIBLE_DEVICES", "cuda").devices == (nvidia(1).key, nvidia(0).key)
    assert only_mask(found.masks, "ZE_AFFINITY_MASK", "level-zero").devices == (intel(0).key, intel(1).key)
    environ = {"ZE_AFFINITY_MASK": "1,0", "ZE_FLAT_DEVICE_HIERARCHY": "FLAT"}
    flat = apply_masks(environ, two_of_each())
    assert only_mask(flat.masks, "ZE_AFFINITY_MASK", "level-zero").devices == (intel(1).key, intel(0).key)


VARIABLES = (
    *("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK"),
    *("ONEAPI_DEVICE_SELECTOR", "CUDA_DEVICE_ORDER", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS", "SLURM_GPUS"),
)
TEXT = st.one_of(st.text(max_size=12), st.text(alphabet="0123456789,-. xXGPUMIabc:;!*", max_size=12))


@given(environ=st.dictionaries(st.sampled_from(VARIABLES), TEXT))
def test_no_value_of_any_variable_raises(environ: dict[str, str]) -> None:
    found = apply_masks(environ, two_of_each())
    keys = {gpu.key for gpu in found.gpus}
    assert all(set(mask.devices or ()) <= keys for mask in found.masks)
    assert all(environ[mask.variable] == mask.value for mask in found.masks)
    # A GPU that is hidden is hidden by some mask of its own vendor's runtimes.
    for gpu in found.gpus:
        hiding = [mask for mask in found.masks if mask.devices is not None and gpu.key not in mask.devices]
        assert gpu.visible or hiding
