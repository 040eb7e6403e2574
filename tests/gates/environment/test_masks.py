"""Masks that hide the wrong GPU. What each comes to is the model's matter; here it is judged."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from pytest_gpucoexist.testing.builder import MachineBuilder, a_machine
from tests.gates.judging import judged, verdict, verdicts

BOTH = a_machine().with_gpu("rtx4090").with_gpu("mi210").with_gpu("mi210").with_environ(HOME="/home/u")
AMD_ONLY = a_machine().with_gpu("mi210").with_gpu("mi210").with_environ(HOME="/home/u")
INTEL = a_machine().with_gpu("arc-b580").with_environ(HOME="/home/u")
NEEDED: dict[str, Any] = {"needed": frozenset({"amd"})}
NAMES = (
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "ZE_AFFINITY_MASK",
)


def masked(machine: MachineBuilder = BOTH, **variables: str) -> MachineBuilder:
    return machine.with_environ(variables)


@pytest.mark.proves("env.cvd_leak", "FAIL", on="tree")
def test_a_list_for_nvidia_hides_an_amd_gpu() -> None:
    # ollama/ollama#15752: CUDA_VISIBLE_DEVICES set for NVIDIA, and ROCm loses its GPUs.
    judgement = judged(masked(CUDA_VISIBLE_DEVICES="0"), "env.cvd_leak", **NEEDED)
    (said,) = judgement.verdicts
    assert said.reason == (
        "HIP_VISIBLE_DEVICES is not set, so HIP reads CUDA_VISIBLE_DEVICES=0 and loses 1 of 2 AMD GPUs: "
        "set HIP_VISIBLE_DEVICES=0,1 (selected tests need it)"
    )
    assert said.fix[0].lines == ("export HIP_VISIBLE_DEVICES=0,1",)
    assert list(judgement.unfit) == ["0000:07:00.0"]
    promised = judged(masked(CUDA_VISIBLE_DEVICES="0"), "env.cvd_leak", promised={"rocm": 2})
    assert promised.verdicts[0].reason.endswith("(rocm:2 is promised)")


@pytest.mark.proves("env.cvd_leak", "FAIL", on="tree")
def test_a_uuid_of_nvidia_hides_all_amd_gpus() -> None:
    said = verdict(masked(CUDA_VISIBLE_DEVICES="GPU-40670ec8"), "env.cvd_leak", **NEEDED)
    assert said.devices == ("0000:04:00.0", "0000:07:00.0")


@pytest.mark.proves("env.cvd_leak", "WARN", on="tree")
def test_it_only_warns_where_nobody_asks_for_amd_or_hid_it_himself() -> None:
    assert verdict(masked(CUDA_VISIBLE_DEVICES="0"), "env.cvd_leak").status == "WARN"
    hidden = verdict(masked(CUDA_VISIBLE_DEVICES="-1"), "env.cvd_leak", **NEEDED)
    assert (hidden.status, hidden.reason) == ("WARN", "CUDA_VISIBLE_DEVICES=-1 hides AMD's GPUs as well as NVIDIA's")
    no_rocm = masked(BOTH.without("/dev/kfd"), CUDA_VISIBLE_DEVICES="0")
    assert verdict(no_rocm, "env.cvd_leak", **NEEDED).status == "WARN"


@pytest.mark.proves("env.cvd_leak", "PASS", on="tree")
@pytest.mark.parametrize(
    "machine",
    [
        BOTH,
        masked(CUDA_VISIBLE_DEVICES=""),
        masked(CUDA_VISIBLE_DEVICES="0,1"),
        masked(CUDA_VISIBLE_DEVICES="0", HIP_VISIBLE_DEVICES="0,1"),
        masked(CUDA_VISIBLE_DEVICES="0", ROCR_VISIBLE_DEVICES=""),
        masked(AMD_ONLY, CUDA_VISIBLE_DEVICES="1"),
    ],
    ids=["unset", "empty", "all", "own", "rocr-hides-all", "meant-for-amd"],
)
def test_nothing_leaks(machine: MachineBuilder) -> None:
    assert verdict(machine, "env.cvd_leak", **NEEDED).status == "PASS"


@pytest.mark.proves("env.rocr_hip_stack", "FAIL", on="tree")
def test_two_masks_that_leave_nothing() -> None:
    # Parsl/parsl#3858: ROCR=1 with HIP=1 is no device.
    judgement = judged(masked(ROCR_VISIBLE_DEVICES="1", HIP_VISIBLE_DEVICES="1"), "env.rocr_hip_stack", **NEEDED)
    (said,) = judgement.verdicts
    assert "so none remains: set HIP_VISIBLE_DEVICES=0" in said.reason
    assert [fix.lines for fix in said.fix] == [("export HIP_VISIBLE_DEVICES=0",), ("unset HIP_VISIBLE_DEVICES",)]
    assert list(judgement.unfit) == ["0000:07:00.0"]


@pytest.mark.proves("env.rocr_hip_stack", "WARN", on="tree")
def test_it_only_warns_where_something_is_left_or_nobody_asks() -> None:
    both = {"ROCR_VISIBLE_DEVICES": "0,1", "HIP_VISIBLE_DEVICES": "1,2"}
    assert verdict(masked(BOTH, **both), "env.rocr_hip_stack", **NEEDED).status == "WARN"
    none = {"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "1"}
    assert verdict(masked(BOTH, **none), "env.rocr_hip_stack").status == "WARN"
    on_purpose = {"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "-1"}
    assert verdict(masked(BOTH, **on_purpose), "env.rocr_hip_stack", **NEEDED).status != "FAIL"


@pytest.mark.proves("env.rocr_hip_stack", "PASS", on="tree")
def test_masks_that_count_right() -> None:
    assert verdict(BOTH, "env.rocr_hip_stack").status == "PASS"
    right = masked(ROCR_VISIBLE_DEVICES="1", HIP_VISIBLE_DEVICES="0")
    assert verdict(right, "env.rocr_hip_stack", **NEEDED).reason == (
        "HIP_VISIBLE_DEVICES names GPUs among the 1 that ROCR_VISIBLE_DEVICES leaves"
    )
    hidden = masked(ROCR_VISIBLE_DEVICES="", HIP_VISIBLE_DEVICES="0")
    assert verdict(hidden, "env.rocr_hip_stack", **NEEDED).status == "SKIP"


@pytest.mark.proves("env.hip_precedence", "PASS", on="tree")
@pytest.mark.proves("env.hip_precedence", "WARN", on="tree")
def test_variables_that_are_about_amd_agree() -> None:
    assert verdict(masked(HIP_VISIBLE_DEVICES="1", GPU_DEVICE_ORDINAL="1"), "env.hip_precedence").status == "PASS"
    # Beside NVIDIA GPUs each vendor rightly has its own.
    assert verdict(masked(HIP_VISIBLE_DEVICES="1", CUDA_VISIBLE_DEVICES="0"), "env.hip_precedence").status == "PASS"
    said = verdict(masked(HIP_VISIBLE_DEVICES="1", GPU_DEVICE_ORDINAL="0"), "env.hip_precedence")
    assert said.reason == "HIP_VISIBLE_DEVICES=1 and GPU_DEVICE_ORDINAL=0 differ"
    alone = masked(AMD_ONLY, HIP_VISIBLE_DEVICES="1", CUDA_VISIBLE_DEVICES="0")
    assert verdict(alone, "env.hip_precedence").status == "WARN"


@pytest.mark.proves("env.uuid_forms", "PASS", on="tree")
@pytest.mark.proves("env.uuid_forms", "WARN", on="tree")
def test_masks_mean_what_they_say() -> None:
    assert verdict(BOTH, "env.uuid_forms").reason == "no visibility variable is set"
    assert verdict(masked(CUDA_VISIBLE_DEVICES="0", HIP_VISIBLE_DEVICES="0,1"), "env.uuid_forms").status == "PASS"
    said = verdict(masked(CUDA_VISIBLE_DEVICES="7"), "env.uuid_forms")
    assert said.reason.startswith("CUDA_VISIBLE_DEVICES=7: index 7 is out of range")
    long = masked(ROCR_VISIBLE_DEVICES="GPU-fd3683f8-fd9f-95e6-0000-000000000000")
    assert "names no AMD GPU here and ends the list" in verdict(long, "env.uuid_forms").reason


@pytest.mark.proves("env.device_order", "PASS", on="tree")
@pytest.mark.proves("env.device_order", "WARN", on="tree")
def test_two_models_of_nvidia_need_an_order() -> None:
    mixed = BOTH.with_gpu("rtx3090")
    said = verdict(mixed, "env.device_order")
    assert said.reason.startswith("CUDA_DEVICE_ORDER is not PCI_BUS_ID and the NVIDIA GPUs differ")
    assert verdict(masked(mixed, CUDA_DEVICE_ORDER="PCI_BUS_ID"), "env.device_order").status == "PASS"
    assert verdict(BOTH.with_gpu("rtx4090"), "env.device_order").status == "PASS"
    assert verdict(BOTH, "env.device_order").reason == "one NVIDIA GPU: its index is 0 in any order"


@pytest.mark.proves("env.intel_masks", "PASS", on="tree")
@pytest.mark.proves("env.intel_masks", "WARN", on="tree")
def test_intels_masks() -> None:
    assert verdict(INTEL, "env.intel_masks").reason == "no mask of Intel is set"
    assert verdict(masked(INTEL, ONEAPI_DEVICE_SELECTOR="level_zero:0"), "env.intel_masks").status == "PASS"
    said = verdict(masked(INTEL, ONEAPI_DEVICE_SELECTOR="level_zero:gpu:2"), "env.intel_masks")
    assert "makes SYCL abort" in said.reason
    said = verdict(masked(INTEL, SYCL_DEVICE_FILTER="level_zero:gpu"), "env.intel_masks")
    assert said.reason == "SYCL_DEVICE_FILTER is set, which SYCL does not read any more"
    said = verdict(masked(INTEL, ZE_FLAT_DEVICE_HIERARCHY="ROUND"), "env.intel_masks")
    assert said.reason == "ZE_FLAT_DEVICE_HIERARCHY=ROUND is not a word that Level Zero knows"


def test_no_environment_is_unknown() -> None:
    bare = a_machine().with_gpu("rtx4090").with_gpu("mi210").with_gpu("arc-b580")
    statuses = {each.id: each.status for each in judged(bare, "env.*").verdicts}
    assert statuses.pop("env.import_order") == "SKIP"
    assert set(statuses.values()) == {"UNKNOWN"}


@given(st.dictionaries(st.sampled_from(NAMES), st.text(alphabet="0123,-GPUMIX abc.", max_size=12), max_size=4))
@settings(max_examples=60)
def test_whatever_is_in_them_nothing_breaks(variables: dict[str, str]) -> None:
    for each in verdicts(masked(BOTH, **variables), "env.*"):
        assert each.status != "ERROR", each.detail


@pytest.mark.proves("env.uuid_forms", "UNKNOWN", on="tree")
def test_a_mig_instance_is_not_doubted_where_nobody_asked_for_instances() -> None:
    machine = (
        a_machine().with_gpu("rtx4090").with_environ(CUDA_VISIBLE_DEVICES="MIG-00000000-1111-2222-3333-444444444444")
    )
    said = verdict(machine, "env.uuid_forms")
    assert said.reason == "only NVML tells which MIG instances there are, and it was not asked"
