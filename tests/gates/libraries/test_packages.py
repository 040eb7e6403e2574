"""What pip mixed, and builds for another vendor."""

from __future__ import annotations

import pytest

from pytest_gpucoexist.testing.builder import a_machine
from tests.gates.judging import verdict, verdicts

MIXED = a_machine().with_gpu("rtx4090").with_gpu("rx7900xtx")


@pytest.mark.proves("lib.packages", "WARN", on="tree")
def test_two_cupy_wheels_in_one_environment_are_told() -> None:
    machine = MIXED.with_distribution("cupy-cuda12x", "13.4.0").with_distribution("cupy-rocm-7-0", "14.0.0")
    said = verdict(machine, "lib.packages")
    assert said.status == "WARN"
    assert "cupy-cuda12x 13.4.0 and cupy-rocm-7-0 14.0.0 both own `cupy`" in said.reason
    assert said.action.startswith("Uninstall both")
    assert said.evidence[0].expected == "one distribution for each import"


@pytest.mark.proves("lib.packages", "WARN", on="tree")
def test_pynvml_backed_by_amd_smi_is_told() -> None:
    machine = MIXED.with_distribution("nvidia-ml-py", "13.580.65", files={"pynvml.py": "# NVIDIA\n"})
    machine = machine.with_distribution(
        "hip-python-interop", "7.0.2", imports=("pynvml",), files={"pynvml/__init__.py": "# AMD\n"}
    )
    said = verdict(machine, "lib.packages")
    assert said.status == "WARN"
    assert "hip-python-interop" in said.reason
    assert "pynvml" in said.reason


@pytest.mark.proves("lib.packages", "PASS", on="tree")
def test_one_flavour_of_each_is_healthy() -> None:
    machine = MIXED.with_distribution("torch", "2.9.0+cu128").with_distribution("cupy-cuda12x", "13.4.0")
    said = verdict(machine, "lib.packages")
    assert said.status == "PASS"
    assert "torch 2.9.0+cu128" in said.reason


@pytest.mark.proves("lib.torch_build", "WARN", on="tree")
def test_a_build_for_the_other_vendor_is_told_where_amd_is_asked_for() -> None:
    machine = a_machine().with_gpu("rx7900xtx").with_distribution("torch", "2.9.0+cu128")
    said = verdict(machine, "lib.torch_build", needed=frozenset({"amd"}))
    assert said.status == "WARN"
    assert said.reason == "torch 2.9.0+cu128 is built for CUDA 12.8, not for AMD"
    assert said.devices == ("0000:03:00.0",)
    assert verdict(machine, "lib.torch_build", promised={"rocm": 1}).status == "WARN"


def test_a_build_for_the_cpu_is_told_only_where_somebody_asked() -> None:
    machine = a_machine().with_gpu("rtx4090").with_distribution("torch", "2.9.0+cpu")
    assert verdict(machine, "lib.torch_build", needed=frozenset({"nvidia"})).reason.endswith(
        "is built for CPU, not for NVIDIA"
    )
    assert verdict(machine, "lib.torch_build").status == "PASS"


def test_the_usual_wheel_on_a_machine_where_nobody_asked_is_healthy() -> None:
    machine = a_machine().with_gpu("rx7900xtx").with_distribution("torch", "2.9.0+cu128")
    assert verdict(machine, "lib.torch_build").status == "PASS"


@pytest.mark.proves("lib.torch_build", "PASS", on="tree")
def test_one_of_two_vendors_is_enough() -> None:
    machine = MIXED.with_distribution("torch", "2.9.0+rocm6.4")
    said = verdict(machine, "lib.torch_build", needed=frozenset({"nvidia", "amd"}))
    assert said.status == "PASS"
    assert said.reason.startswith("torch 2.9.0+rocm6.4 for ROCm")


def test_without_an_environment_nothing_is_judged() -> None:
    assert {each.status for each in verdicts(MIXED, "lib.torch_build")} == {"SKIP"}
