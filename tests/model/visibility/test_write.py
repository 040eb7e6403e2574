"""Masks written for a child: what its runtimes read back is what was asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import pytest
from hypothesis import given, strategies as st

from pytest_gpucoexist.errors import RequirementError
from pytest_gpucoexist.model.machine import Gpu, KfdNode, Machine
from pytest_gpucoexist.model.visibility import apply_masks, torch_rocm_entries, write_masks
from tests.model.visibility.machines import (
    AMD_UNIQUE,
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
    from collections.abc import Mapping

Style = Literal["auto", "index", "uuid"]


def child(environ: Mapping[str, str], written: Mapping[str, str | None]) -> dict[str, str]:
    """The environment of the child that is started with these changes."""
    merged = {**environ, **{name: value for name, value in written.items() if value is not None}}
    return {name: value for name, value in merged.items() if written.get(name, "") is not None}


MACHINE = two_of_each()
N0, N1, A0, A1, I0, I1 = MACHINE.gpus


@pytest.mark.parametrize(
    ("gpus", "style", "written"),
    [
        (
            [N1],
            "index",
            {
                "CUDA_VISIBLE_DEVICES": "1",
                "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
                "ROCR_VISIBLE_DEVICES": "-1",
                "HIP_VISIBLE_DEVICES": "-1",
                "ZE_AFFINITY_MASK": "-1",
            },
        ),
        (
            [A1],
            "auto",
            {
                "CUDA_VISIBLE_DEVICES": "-1",
                "ROCR_VISIBLE_DEVICES": "1",
                "HIP_VISIBLE_DEVICES": "0",
                "ZE_AFFINITY_MASK": "-1",
            },
        ),
        (
            [N1, N0, A1, A0],
            "uuid",
            {
                "CUDA_VISIBLE_DEVICES": f"{NVIDIA_UUIDS[1]},{NVIDIA_UUIDS[0]}",
                "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
                "ROCR_VISIBLE_DEVICES": f"GPU-{AMD_UNIQUE[1]:016x},GPU-{AMD_UNIQUE[0]:016x}",
                "HIP_VISIBLE_DEVICES": "0,1",
                "ZE_AFFINITY_MASK": "-1",
            },
        ),
        (
            [I1],
            "uuid",
            {
                "CUDA_VISIBLE_DEVICES": "-1",
                "ROCR_VISIBLE_DEVICES": "-1",
                "HIP_VISIBLE_DEVICES": "-1",
                "ZE_AFFINITY_MASK": "1",
            },
        ),
    ],
    ids=["nvidia", "amd", "names", "intel"],
)
def test_what_is_written(gpus: list[Gpu], style: Style, written: dict[str, str | None]) -> None:
    assert write_masks(gpus, MACHINE, style) == written


def test_auto_writes_as_the_caller_wrote() -> None:
    named = {"CUDA_VISIBLE_DEVICES": NVIDIA_UUIDS[0], "ROCR_VISIBLE_DEVICES": f"GPU-{AMD_UNIQUE[0]:016x}"}
    assert write_masks([N0], MACHINE, "auto", named)["CUDA_VISIBLE_DEVICES"] == NVIDIA_UUIDS[0]
    assert write_masks([A0], MACHINE, "auto", named)["ROCR_VISIBLE_DEVICES"] == f"GPU-{AMD_UNIQUE[0]:016x}"
    numbered = {"CUDA_VISIBLE_DEVICES": "0,1", "HIP_VISIBLE_DEVICES": "0,1"}
    assert write_masks([N0], MACHINE, "auto", numbered)["CUDA_VISIBLE_DEVICES"] == "0"
    assert write_masks([A0], MACHINE, "auto", numbered)["ROCR_VISIBLE_DEVICES"] == "0"


def test_indices_are_the_machines_because_a_childs_mask_replaces_its_parents() -> None:
    """A parent that sees only GPU 1 calls it 0; its child, given 0, would see the other GPU."""
    masked = apply_masks({"CUDA_VISIBLE_DEVICES": "1", "ROCR_VISIBLE_DEVICES": "1"}, MACHINE)
    written = write_masks([N1, A1], masked, "index", {"CUDA_VISIBLE_DEVICES": "1"})
    assert (written["CUDA_VISIBLE_DEVICES"], written["ROCR_VISIBLE_DEVICES"]) == ("1", "1")


def test_a_vendor_that_is_absent_is_not_written_about() -> None:
    assert set(write_masks([N0], machine(N0))) == {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"}
    assert set(write_masks([A0], machine(A0))) == {"ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"}


def test_lists_that_would_be_wrong_in_the_child_are_taken_back() -> None:
    caller = {"GPU_DEVICE_ORDINAL": "2", "ONEAPI_DEVICE_SELECTOR": "level_zero:1"}
    written = write_masks([A0, I1], MACHINE, "auto", caller)
    assert written["GPU_DEVICE_ORDINAL"] is None
    assert written["ONEAPI_DEVICE_SELECTOR"] == "level_zero:gpu"
    assert write_masks([N0], MACHINE, "auto", caller)["GPU_DEVICE_ORDINAL"] is None
    assert visible(apply_masks(child(caller, written), MACHINE)) == ["amd0", "intel1"]


def test_numbers_written_for_a_child_are_not_taken_for_slurms() -> None:
    caller = dict.fromkeys(("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"), "1")
    caller["SLURM_STEP_GPUS"] = "1"
    env = child(caller, write_masks([N1, A1], MACHINE, "index", caller))
    assert (env["CUDA_VISIBLE_DEVICES"], env["ROCR_VISIBLE_DEVICES"]) == ("1", "1")
    assert visible(apply_masks(env, MACHINE)) == ["nvidia1", "amd1"]


def test_a_mig_instance_is_always_named() -> None:
    parts = [mig(N0, index, MIG_UUIDS[index]) for index in (0, 1)]
    found = machine(N0, *parts, N1)
    written = write_masks([parts[1]], found, "index")
    assert written["CUDA_VISIBLE_DEVICES"] == MIG_UUIDS[1]
    assert visible(apply_masks(child({}, written), found)) == ["nvidia0", "mig1"]
    with pytest.raises(RequirementError, match="one MIG instance"):
        write_masks(parts, found)
    with pytest.raises(RequirementError, match="cannot be written"):
        write_masks([N0], found)


def test_an_amd_gpu_without_unique_id_is_numbered() -> None:
    found = machine(amd(0, unique_id=0), amd(1))
    written = write_masks(found.gpus, found, "uuid")
    assert written["ROCR_VISIBLE_DEVICES"] == f"0,GPU-{AMD_UNIQUE[1]:016x}"
    assert visible(apply_masks(child({}, written), found)) == ["amd0", "amd1"]


def test_nvidia_gpus_of_which_one_has_no_name_are_numbered() -> None:
    found = machine(nvidia(0, uuid=None), nvidia(1))
    assert write_masks(found.gpus, found, "uuid")["CUDA_VISIBLE_DEVICES"] == "0,1"


def test_a_gpu_that_no_runtime_counts_is_an_error_that_says_what_there_is() -> None:
    lost = nvidia(0, driver="nouveau")
    with pytest.raises(
        RequirementError, match=r"0000:41:00\.0 cannot be written into a mask: CUDA counts 0000:42:00\.0"
    ):
        write_masks([lost], machine(lost, nvidia(1)), "index")
    bmc = nvidia(0, vendor="other")
    with pytest.raises(RequirementError, match="has no visibility variable"):
        write_masks([bmc], machine(bmc))


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    gpus: list[Gpu] = []
    models = draw(st.lists(st.sampled_from(["0x2684", "0x1287"]), max_size=4))
    slots = draw(st.permutations(range(4)))
    gpus += [
        nvidia(
            index,
            device_id=model,
            pci_address=f"0000:{0x10 + slots[index]:02x}:00.0",
            arch=draw(st.sampled_from(["8.9", "3.5", None])),
        )
        for index, model in enumerate(models)
    ]
    nodes = draw(st.permutations(range(1, 5)))
    uniques = draw(st.lists(st.sampled_from([0, 0xA1, 0xA1B2C3D4E5F60718, None, 0x1000000000000000]), max_size=4))
    gpus += [
        amd(index, kfd=KfdNode(node=nodes[index], unique_id=unique), pci_address=f"0000:{0x80 + index:02x}:00.0")
        for index, unique in enumerate(uniques)
    ]
    kinds = draw(st.lists(st.sampled_from(["discrete", "integrated"]), max_size=2))
    gpus += [intel(index, kind=kind) for index, kind in enumerate(kinds)]
    return machine(*draw(st.permutations(gpus)))


VALUES = st.sampled_from(["", "-1", "0", "1,0", "0,1,2", "GPU-8932", "GPU-a1", "2"])
ENVIRONS = st.dictionaries(
    st.sampled_from(
        [
            "CUDA_VISIBLE_DEVICES",
            "ROCR_VISIBLE_DEVICES",
            "HIP_VISIBLE_DEVICES",
            "GPU_DEVICE_ORDINAL",
            "ZE_AFFINITY_MASK",
        ]
    ),
    VALUES,
).flatmap(
    lambda masks: st.sampled_from(
        [{}, {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, {"SLURM_STEP_GPUS": "0"}, {"SLURM_JOB_GPUS": "1,0"}]
    ).map(lambda more: {**masks, **more})
)


@given(data=st.data(), found=machines(), environ=ENVIRONS, style=st.sampled_from(["auto", "index", "uuid"]))
def test_what_is_written_is_what_is_read(
    data: st.DataObject, found: Machine, environ: dict[str, str], style: Style
) -> None:
    chosen = data.draw(
        st.permutations(found.gpus).flatmap(lambda gpus: st.integers(0, len(gpus)).map(lambda n: gpus[:n]))
    )
    env = child(environ, write_masks(chosen, found, style, environ))
    seen = apply_masks(env, found)
    assert {gpu.key for gpu in seen.gpus if gpu.visible} == {gpu.key for gpu in chosen}
    # CUDA and HIP keep the order that was asked for, so that `cuda:0` is the first of them.
    for vendor, runtime in (("nvidia", "cuda"), ("amd", "hip")):
        wanted = tuple(gpu.key for gpu in chosen if gpu.vendor == vendor)
        if any(gpu.vendor == vendor for gpu in found.gpus):
            (mask,) = [each for each in seen.masks if each.runtime == runtime]
            assert mask.devices == wanted
            assert mask.translated_from is None
    # HIP never reads CUDA's variable, and torch's ROCm build counts the same.
    amd_there = any(gpu.vendor == "amd" for gpu in found.gpus)
    if amd_there:
        assert not any(mask.variable == "CUDA_VISIBLE_DEVICES" and mask.runtime == "hip" for mask in seen.masks)
        entries = torch_rocm_entries(env)
        assert entries is not None
        assert len(entries) == sum(gpu.vendor == "amd" for gpu in chosen)
