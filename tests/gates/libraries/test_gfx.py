"""Kernels of rocBLAS against the targets of the GPUs, and overrides."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from pytest_gpucoexist.gates.libraries.gfx import gfx_of_override, targets_in
from pytest_gpucoexist.testing.builder import MachineBuilder, a_machine
from tests.gates.judging import verdict, verdicts

ROCM = "/opt/rocm-6.4.1"
KERNELS = f"{ROCM}/lib/rocblas/library"
# Names as rocBLAS 4.4 installs them.
NAMES = (
    "Kernels.so-000-{}.hsaco",
    "TensileLibrary_lazy_{}.dat",
    "TensileLibrary_Type_HH_Contraction_l_Ailk_Bljk_Cijk_Dijk_fallback_{}.hsaco",
)


def with_kernels(machine: MachineBuilder, *targets: str) -> MachineBuilder:
    machine = machine.with_file(f"{ROCM}/.info/version", "6.4.1-83\n")
    for target in targets:
        for name in NAMES:
            machine = machine.with_file(f"{KERNELS}/{name.format(target)}", "")
    return machine


ONE = a_machine().with_gpu("rx7900xtx")


@pytest.mark.proves("lib.gfx_arch", "PASS", on="tree")
@pytest.mark.parametrize("targets", [("gfx90a", "gfx1100"), ("gfx11-generic",)])
def test_a_target_with_kernels_is_healthy(targets: tuple[str, ...]) -> None:
    said = verdict(with_kernels(ONE, *targets), "lib.gfx_arch")
    assert said.status == "PASS"
    assert said.reason == f"{KERNELS} has kernels for gfx1100"


@pytest.mark.proves("lib.gfx_arch", "WARN", on="tree")
def test_a_target_without_kernels_is_told() -> None:
    said = verdict(with_kernels(ONE, "gfx90a", "gfx942"), "lib.gfx_arch")
    assert said.status == "WARN"
    assert said.reason == f"{KERNELS} has no kernels for gfx1100"
    assert said.evidence[0].found == "gfx90a, gfx942"


def test_an_override_for_one_target_is_taken_and_for_two_told() -> None:
    # ggml-org/llama.cpp#4030
    near = with_kernels(ONE, "gfx1030").with_environ(HSA_OVERRIDE_GFX_VERSION="10.3.0")
    assert verdict(near, "lib.gfx_arch").reason == f"{KERNELS} has kernels for gfx1030"
    said = verdict(near.with_gpu("mi210"), "lib.gfx_arch")
    assert said.status == "WARN"
    assert "different targets (gfx1100, gfx90a)" in said.reason
    wrong = near.with_environ(HSA_OVERRIDE_GFX_VERSION="gfx1030")
    assert "is not of the form" in verdict(wrong, "lib.gfx_arch").reason


def test_an_integrated_gpu_beside_a_card_needs_no_kernels() -> None:
    machine = with_kernels(ONE, "gfx1100").with_gpu("radeon-780m")
    assert {each.status for each in verdicts(machine, "lib.gfx_arch")} == {"PASS"}


def test_without_rocm_there_is_nothing_to_compare() -> None:
    assert verdict(ONE, "lib.gfx_arch").status == "SKIP"


def test_torch_brings_kernels_of_its_own() -> None:
    site = "torch/lib/rocblas/library"
    machine = ONE.with_distribution("torch", "2.9.0+rocm6.4", files={f"{site}/TensileLibrary_lazy_gfx90a.dat": ""})
    assert verdict(machine, "lib.gfx_arch").status == "WARN"


@pytest.mark.parametrize(
    ("value", "target"), [("10.3.0", "gfx1030"), ("9.0.10", "gfx90a"), ("11.0.0", "gfx1100"), ("9.0.6", "gfx906")]
)
def test_an_override_names_a_target(value: str, target: str) -> None:
    assert gfx_of_override(value) == target


@given(st.text(max_size=20))
@settings(max_examples=100, deadline=None)
def test_garbage_names_no_target(text: str) -> None:
    target = gfx_of_override(text)
    assert target is None or target.startswith("gfx")
    assert all(each.startswith("gfx") for each in targets_in([text]))
