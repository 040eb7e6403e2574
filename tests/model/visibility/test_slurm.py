"""Lists that Slurm numbered across vendors.

The environments are what Slurm 22.05.8 exported on a node whose GPUs were device files, with `Gres=` as named;
types are exported only for `sbatch --gpus`.
"""

from __future__ import annotations

import pytest

from pytest_gpucoexist.model.visibility import apply_masks
from tests.model.visibility.machines import amd, intel, machine, nvidia, two_of_each, visible

# Two NVIDIA and two AMD GPUs, as a node with Gres=gpu:nvidia:2,gpu:amd:2.
NODE = machine(nvidia(0), nvidia(1), amd(0), amd(1))


def exported(indices: str, **more: str) -> dict[str, str]:
    return {
        "CUDA_VISIBLE_DEVICES": indices,
        "GPU_DEVICE_ORDINAL": indices,
        "ROCR_VISIBLE_DEVICES": indices,
        "SLURM_GPUS_ON_NODE": str(indices.count(",") + 1),
        "SLURM_GTIDS": "0",
        "ZE_AFFINITY_MASK": indices,
        **more,
    }


@pytest.mark.parametrize(
    ("asked", "indices", "shown"),
    [
        ("--gres=gpu:amd:1", "2", ["amd0"]),
        ("--gres=gpu:nvidia:1", "0", ["nvidia0"]),
        ("--gres=gpu:amd:2", "2,3", ["amd0", "amd1"]),
        ("--gres=gpu:nvidia:2", "0,1", ["nvidia0", "nvidia1"]),
        ("--gres=gpu:3", "0,1,2", ["nvidia0", "nvidia1", "amd0"]),
        ("--gres=gpu:nvidia:1,gpu:amd:1", "0,2", ["nvidia0", "amd0"]),
    ],
)
def test_a_step(asked: str, indices: str, shown: list[str]) -> None:
    assert visible(apply_masks(exported(indices, SLURM_STEP_GPUS=indices), NODE)) == shown


def test_the_translation_is_shown() -> None:
    found = apply_masks(exported("2", SLURM_JOB_GPUS="2", SLURM_GPUS="amd:1"), NODE)
    masks = {(mask.variable, mask.runtime): mask for mask in found.masks}
    rocr = masks["ROCR_VISIBLE_DEVICES", "rocr"]
    assert rocr.devices == (amd(0).key,)
    assert rocr.translated_from == "SLURM_JOB_GPUS=2"
    assert rocr.warning == (
        "Slurm numbered this node's GPUs across vendors (SLURM_JOB_GPUS=2) and ROCR counts its own: "
        "set ROCR_VISIBLE_DEVICES=0"
    )
    hip = masks["CUDA_VISIBLE_DEVICES", "hip"]
    assert hip.devices == (amd(0).key,)
    assert "set HIP_VISIBLE_DEVICES=0" in (hip.warning or "")
    assert masks["CUDA_VISIBLE_DEVICES", "cuda"].devices == ()
    assert masks["GPU_DEVICE_ORDINAL", "opencl"].devices == (amd(0).key,)


def test_a_runtime_that_reads_the_list_right_needs_no_warning() -> None:
    found = apply_masks(exported("0,1", SLURM_STEP_GPUS="0,1", SLURM_GPUS="nvidia:2"), NODE)
    cuda = next(mask for mask in found.masks if mask.runtime == "cuda")
    assert (cuda.devices, cuda.warning) == ((nvidia(0).key, nvidia(1).key), None)
    assert cuda.translated_from == "SLURM_STEP_GPUS=0,1"
    rocr = next(mask for mask in found.masks if mask.runtime == "rocr")
    assert rocr.devices == ()
    assert "set ROCR_VISIBLE_DEVICES=-1" in (rocr.warning or "")


@pytest.mark.parametrize("variable", ["SLURM_GPUS", "SLURM_GPUS_PER_NODE", "SLURM_JOB_GRES", "SLURMD_TRES_BIND"])
def test_a_gres_type_says_which_vendor_comes_first(variable: str) -> None:
    """On a node with Gres=gpu:amd:2,gpu:nvidia:2 the same request is given index 0."""
    value = {
        "SLURM_GPUS": "amd:1",
        "SLURM_GPUS_PER_NODE": "amd:1",
        "SLURM_JOB_GRES": "gpu:amd:1",
        "SLURMD_TRES_BIND": "gpu:per_task:amd:1",
    }[variable]
    found = apply_masks(exported("0", SLURM_STEP_GPUS="0", **{variable: value}), NODE)
    assert visible(found) == ["amd0"]
    assert all("assuming" not in (mask.warning or "") for mask in found.masks)


@pytest.mark.parametrize(("type_name", "shown"), [("mi300x", "amd0"), ("a100", "nvidia0"), ("navi_31", "amd0")])
def test_a_type_may_be_a_model(type_name: str, shown: str) -> None:
    node = machine(nvidia(0), amd(0, name="Navi 31 [Radeon]"))
    assert visible(apply_masks(exported("0", SLURM_STEP_GPUS="0", SLURM_GPUS=f"{type_name}:1"), node)) == [shown]


def test_an_assumption_is_said() -> None:
    found = apply_masks(exported("2", SLURM_STEP_GPUS="2", SLURM_GPUS="mystery:1"), NODE)
    rocr = next(mask for mask in found.masks if mask.runtime == "rocr")
    assert "assuming that Slurm counts nvidia, amd: no GRES type says otherwise" in (rocr.warning or "")


def test_three_vendors() -> None:
    found = apply_masks(exported("2,4", SLURM_STEP_GPUS="2,4"), two_of_each())
    assert visible(found) == ["amd0", "intel0"]


def test_an_integrated_gpu_stands_outside_the_row() -> None:
    node = machine(nvidia(0), amd(0, kind="integrated"), amd(1))
    found = apply_masks(exported("1", SLURM_STEP_GPUS="1", SLURM_GPUS="amd:1"), node)
    assert visible(found) == ["amd1"]
    rocr = next(mask for mask in found.masks if mask.runtime == "rocr")
    assert "ROCR_VISIBLE_DEVICES=1" in (rocr.warning or rocr.variable + "=" + rocr.value)


@pytest.mark.parametrize(
    ("why", "environ", "found"),
    [
        ("no Slurm", exported("1"), NODE),
        ("one vendor only", exported("1", SLURM_STEP_GPUS="1"), machine(nvidia(0), nvidia(1))),
        ("confined: counted from 0", exported("0", SLURM_STEP_GPUS="2"), NODE),
        ("out of range", exported("9", SLURM_STEP_GPUS="9"), NODE),
        ("no list", exported("x", SLURM_STEP_GPUS="x"), NODE),
        ("no such type here", exported("0", SLURM_STEP_GPUS="0", SLURM_GPUS="arc:1"), NODE),
        ("AMD's variable set by hand", exported("2", SLURM_STEP_GPUS="2") | {"ROCR_VISIBLE_DEVICES": "0"}, NODE),
    ],
)
def test_what_is_left_alone(why: str, environ: dict[str, str], found: object) -> None:
    masks = apply_masks(environ, found).masks  # type: ignore[arg-type]
    assert masks
    assert [mask.translated_from for mask in masks if mask.translated_from] == []


def test_a_range_is_read() -> None:
    found = apply_masks(exported("2-3", SLURM_STEP_GPUS="2-3"), NODE)
    assert visible(found) == ["amd0", "amd1"]


def test_intel_beside_others_is_numbered_too() -> None:
    node = machine(nvidia(0), intel(0))
    found = apply_masks(exported("1", SLURM_STEP_GPUS="1", SLURM_GPUS="arc:1"), node)
    ze = next(mask for mask in found.masks if mask.runtime == "level-zero")
    assert ze.devices == (intel(0).key,)
    assert "set ZE_AFFINITY_MASK=0" in (ze.warning or "")
