"""JUnit properties of a test."""

from __future__ import annotations

from pytest_gpucoexist.reports.junit import describe_device, junit_properties
from pytest_gpucoexist.reports.model import DeviceUse
from tests.reports import sessions


def test_a_test_without_a_need_has_none() -> None:
    assert junit_properties(sessions.record("a")) == []


def test_each_device_is_a_property_of_its_own() -> None:
    record = sessions.gpu_record("a", "nvidia0", "amd1", numa_node=0, requirement="1 NVIDIA GPU, 1 AMD GPU")
    assert junit_properties(record) == [
        ("gpu_requirement", "1 NVIDIA GPU, 1 AMD GPU"),
        (
            "gpu_device",
            "0000:43:00.0 GPU-1a2b3c4d-0000-4000-8000-000000000000 NVIDIA GeForce RTX 4090 nvidia 570.86.15",
        ),
        ("gpu_device", "0000:c3:00.0 GPU-00000000000000a1 Raphael amdgpu"),
        ("gpu_numa_node", "0"),
        ("gpu_outcome", "ran"),
    ]


def test_a_skip_has_its_reason() -> None:
    properties = dict(junit_properties(sessions.unmet("a")))
    assert properties["gpu_outcome"] == "missing"
    assert properties["gpu_reason"] == sessions.NO_AMD
    assert "gpu_device" not in properties


def test_a_need_that_nothing_became_of() -> None:
    assert junit_properties(sessions.record("a", requirement="1 GPU")) == [("gpu_requirement", "1 GPU")]


def test_a_stand_in_says_so() -> None:
    assert describe_device(DeviceUse(id="x", key="k", name="A40", simulated=True)) == "SIMULATED A40"
    assert describe_device(DeviceUse(id="x", key="tegra", driver_version="1")) == "tegra"
