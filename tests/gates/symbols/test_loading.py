"""What packages of one environment would load, with libraries compiled for the purpose."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist.host.recording import RecordingHost
from pytest_gpucoexist.host.replay import ReplayHost
from pytest_gpucoexist.testing.builder import MachineBuilder, a_machine
from pytest_gpucoexist.testing.system import SITE_PACKAGES as SITE
from tests.gates.judging import judged, verdict, verdicts
from tests.gates.libraries.test_mapped import LIBC, lines
from tests.gates.symbols.build import library

if TYPE_CHECKING:
    from collections.abc import Callable

LIB = "/usr/lib/x86_64-linux-gnu"
ROCM = "/opt/rocm-6.4.1/lib"
GATES = ("lib.would_load", "lib.symbols", "lib.versions")
MIXED = a_machine().with_gpu("rtx4090").with_gpu("rx7900xtx").with_file(f"{LIB}/libc.so.6", b"\x7fELF")


def hip() -> bytes:
    return library("libamdhip64.so.6", "hipInit", "hipMalloc")


def torch_hip() -> bytes:
    return library("libamdhip64.so.6", "hipInit", "hipMalloc", mark="torch")


def torch_rocm(machine: MachineBuilder = MIXED) -> MachineBuilder:
    """The parts of a ROCm wheel of torch that matter: every library has a RUNPATH of $ORIGIN."""
    asks = library("libtorch_hip.so", needed=("libamdhip64.so.6", "librccl.so.1"), runpath="$ORIGIN")
    rccl = library("librccl.so.1", "ncclAllReduce", "ncclInit", needed=("librocm_smi64.so.7",), runpath="$ORIGIN")
    smi = library("librocm_smi64.so.7", "rsmi_init", "rsmi_num_monitor_devices")
    machine = machine.with_distribution("torch", "2.9.0+rocm6.4")
    for name, data in (
        ("libtorch_hip.so", asks),
        ("libamdhip64.so.6", torch_hip()),
        ("librccl.so.1", rccl),
        ("librocm_smi64.so.7", smi),
    ):
        machine = machine.with_file(f"{SITE}/torch/lib/{name}", data)
    return machine


def torch_cuda(machine: MachineBuilder = MIXED) -> MachineBuilder:
    """The usual wheel of torch with NVIDIA's wheels beside it."""
    run = "$ORIGIN/../../nvidia/cuda_runtime/lib:$ORIGIN/../../nvidia/nccl/lib"
    machine = machine.with_distribution("torch", "2.9.0+cu128")
    asks = library("libtorch_cuda.so", needed=("libcudart.so.12", "libnccl.so.2", "libcuda.so.1"), runpath=run)
    machine = machine.with_file(f"{SITE}/torch/lib/libtorch_cuda.so", asks)
    machine = machine.with_file(
        f"{SITE}/nvidia/cuda_runtime/lib/libcudart.so.12", library("libcudart.so.12", "cudaMalloc")
    )
    return machine.with_file(
        f"{SITE}/nvidia/nccl/lib/libnccl.so.2", library("libnccl.so.2", "ncclAllReduce", "ncclInit")
    )


def cupy_rocm(machine: MachineBuilder) -> MachineBuilder:
    asks = library(None, needed=("libamdhip64.so.6",), runpath="/opt/rocm/lib")
    return machine.with_distribution("cupy-rocm-7-0", "14.0.0").with_file(
        f"{SITE}/cupy_backends/cuda/api/runtime.cpython-312-x86_64-linux-gnu.so", asks
    )


def cupy_cuda(machine: MachineBuilder) -> MachineBuilder:
    return machine.with_distribution("cupy-cuda12x", "13.4.0").with_file(
        f"{SITE}/cupy_backends/cuda/api/runtime.cpython-312-x86_64-linux-gnu.so",
        library(None, needed=("libcudart.so.12",)),
    )


def rocm(machine: MachineBuilder, data: bytes | None = None) -> MachineBuilder:
    """The system's ROCm, in ld.so's configuration as its packages put it."""
    machine = machine.with_file(f"{ROCM}/libamdhip64.so.6.4.60401", data or hip()).with_link(
        f"{ROCM}/libamdhip64.so.6", "libamdhip64.so.6.4.60401"
    )
    return machine.with_link("/opt/rocm", "rocm-6.4.1").with_file("/etc/ld.so.conf", "/opt/rocm/lib\n")


@pytest.mark.proves("lib.would_load", "WARN", on="tree")
def test_a_torch_with_its_own_hip_beside_a_cupy_for_the_systems_is_told() -> None:
    # pytorch#152941: CuPy for ROCm was imported first, then torch reported no GPU.
    said = verdict(cupy_rocm(rocm(torch_rocm())), "lib.would_load")
    assert said.status == "WARN"
    assert "2 copies of HIP would be loaded" in said.reason
    assert f"{SITE}/torch/lib/libamdhip64.so.6 (for torch)" in said.reason
    assert f"{ROCM}/libamdhip64.so.6.4.60401 (for cupy)" in said.reason
    assert "Nothing is wrong until both are loaded in one" in said.action
    assert any("build id" in each.found for each in said.evidence)


@pytest.mark.proves("lib.would_load", "PASS", on="tree")
@pytest.mark.parametrize(
    "machine",
    [
        pytest.param(lambda: rocm(torch_rocm()), id="torch-beside-a-rocm"),
        pytest.param(torch_cuda, id="one-cuda"),
        pytest.param(lambda: cupy_cuda(torch_cuda()), id="two-for-one-cuda"),
        pytest.param(lambda: cupy_rocm(rocm(torch_rocm(), torch_hip())), id="same-content"),
    ],
)
def test_one_file_of_each_runtime_is_healthy(machine: Callable[[], MachineBuilder]) -> None:
    said = judged(machine(), "lib.would_load", "lib.versions").verdicts
    assert [each.status for each in said] == ["PASS", "PASS"], said


def test_ld_library_path_wins_over_a_wheels_runpath() -> None:
    # JuliaGPU/AMDGPU.jl#1062: DT_RUNPATH loses to LD_LIBRARY_PATH.
    machine = cupy_rocm(rocm(torch_rocm())).with_environ(LD_LIBRARY_PATH="/opt/rocm/lib")
    said = verdict(machine, "lib.would_load")
    assert said.status == "PASS"
    assert any(each.source.startswith(ROCM) and "libtorch_hip" in each.found for each in said.evidence)


def test_ld_preload_wins_over_everything() -> None:
    machine = cupy_rocm(rocm(torch_rocm())).with_environ(LD_PRELOAD=f"{ROCM}/libamdhip64.so.6")
    said = verdict(machine, "lib.would_load")
    assert said.status == "PASS"
    assert any(each.source.startswith(ROCM) and "libtorch_hip" in each.found for each in said.evidence)


def test_an_old_rpath_wins_over_ld_library_path() -> None:
    machine = rocm(MIXED).with_distribution("torch", "2.9.0+rocm6.4").with_environ(LD_LIBRARY_PATH="/opt/rocm/lib")
    machine = machine.with_file(
        f"{SITE}/torch/lib/libtorch_hip.so", library("libtorch_hip.so", needed=("libamdhip64.so.6",), rpath="$ORIGIN")
    )
    machine = machine.with_file(f"{SITE}/torch/lib/libamdhip64.so.6", torch_hip())
    said = verdict(machine, "lib.would_load")
    assert any(each.source == f"{SITE}/torch/lib/libamdhip64.so.6" for each in said.evidence)


def test_copies_that_auditwheel_renamed_are_no_second_cuda() -> None:
    machine = torch_cuda().with_file(
        f"{SITE}/onnxruntime/capi/libonnxruntime_providers_cuda.so",
        library(None, needed=("libcudart-9335f6a2.so.12",), runpath="$ORIGIN"),
    )
    machine = machine.with_file(
        f"{SITE}/onnxruntime/capi/libcudart-9335f6a2.so.12", library("libcudart-9335f6a2.so.12", "cudaMalloc", mark="x")
    )
    assert verdict(machine, "lib.would_load").status == "PASS"


@pytest.mark.proves("lib.symbols", "WARN", on="tree")
def test_the_smi_libraries_of_torch_and_amdsmi_share_names() -> None:
    # pytorch#186516, ROCm/mori#414
    machine = torch_rocm().with_distribution("amdsmi", "7.0.2")
    machine = machine.with_file(
        f"{SITE}/amdsmi/libamd_smi.so",
        library("libamd_smi.so.26", "amdsmi_init", "rsmi_init", "rsmi_num_monitor_devices"),
    )
    said = verdict(machine, "lib.symbols")
    assert said.status == "WARN"
    assert said.reason == (
        "AMD SMI and ROCm SMI both export 2 rsmi_* names (rsmi_init, rsmi_num_monitor_devices …); "
        "amdsmi and torch would bring them"
    )


@pytest.mark.proves("lib.symbols", "WARN", on="tree")
def test_nccl_and_rccl_in_folders_of_ld_library_path_share_names() -> None:
    nccl, rccl = library("libnccl.so.2", "ncclInit"), library("librccl.so.1", "ncclInit", mark="rccl")
    machine = MIXED.with_file("/opt/nccl/lib/libnccl.so.2", nccl).with_file("/opt/rocm/lib/librccl.so.1", rccl)
    said = verdict(machine.with_environ(LD_LIBRARY_PATH="/opt/nccl/lib:/opt/rocm/lib"), "lib.symbols")
    assert said.status == "WARN"
    assert said.reason.startswith("NCCL and RCCL both export 1 nccl* name (ncclInit")
    assert said.reason.endswith("; LD_LIBRARY_PATH would bring them")


def test_a_rocm_in_ld_library_path_has_both_smi_libraries_and_is_healthy() -> None:
    machine = MIXED.with_file("/opt/rocm/lib/libamd_smi.so.26", library("libamd_smi.so.26", "rsmi_init"))
    machine = machine.with_file(
        "/opt/rocm/lib/librocm_smi64.so.7", library("librocm_smi64.so.7", "rsmi_init", mark="x")
    )
    machine = machine.with_file("/opt/rocm/lib/librccl.so.1", library("librccl.so.1", "ncclInit"))
    said = verdict(machine.with_environ(LD_LIBRARY_PATH="/opt/rocm/lib"), "lib.symbols")
    assert said.status == "PASS"


def test_a_preloaded_copy_is_another_one() -> None:
    machine = torch_rocm().with_file("/srv/libamdhip64.so.5", library("libamdhip64.so.5", "hipInit"))
    said = verdict(machine.with_environ(LD_PRELOAD="/srv/libamdhip64.so.5"), "lib.would_load")
    assert said.status == "WARN"
    assert "/srv/libamdhip64.so.5 (for LD_PRELOAD)" in said.reason


def test_any_package_with_a_runtime_is_found() -> None:
    machine = MIXED.with_file(f"{SITE}/unheard_of/lib/libamdhip64.so.6", hip()).with_file(
        f"{SITE}/other.libs/libamdhip64-1a2b3c4d.so.6", torch_hip()
    )
    said = verdict(machine, "lib.would_load")
    assert said.status == "WARN"
    assert "(for unheard_of)" in said.reason
    assert "(for other)" in said.reason


@pytest.mark.proves("lib.symbols", "WARN", on="tree")
def test_nccl_and_rccl_that_are_mapped_share_names() -> None:
    # pytorch#42517
    nccl, rccl = f"{LIB}/libnccl.so.2.27.3", f"{ROCM}/librccl.so.1.0"
    machine = MIXED.with_file(nccl, library("libnccl.so.2", "ncclAllReduce", "ncclInit"))
    machine = machine.with_file(rccl, library("librccl.so.1", "ncclAllReduce", "ncclInit", mark="rccl"))
    said = verdict(machine.with_file("/proc/self/maps", LIBC + lines(nccl, 1) + lines(rccl, 2)), "lib.symbols")
    assert said.status == "WARN"
    assert said.reason.startswith(
        "NCCL and RCCL both export 2 nccl* names (ncclAllReduce, ncclInit …); both are mapped"
    )


@pytest.mark.proves("lib.symbols", "PASS", on="tree")
def test_one_stack_has_one_owner_of_each_name() -> None:
    said = verdict(rocm(torch_rocm()), "lib.symbols")
    assert said.status == "PASS"
    assert said.reason == "3 runtimes, and no name has two owners"


@pytest.mark.proves("lib.versions", "WARN", on="tree")
def test_a_package_for_another_rocm_is_told() -> None:
    asks = library(None, needed=("libamdhip64.so.7",))
    machine = rocm(MIXED).with_distribution("cupy-rocm-7-0", "14.0.0")
    machine = machine.with_file(f"{SITE}/cupy_backends/cuda/api/runtime.cpython-312-x86_64-linux-gnu.so", asks)
    said = verdict(machine, "lib.versions")
    assert said.status == "WARN"
    assert said.reason.startswith(
        "cupy needs libamdhip64.so.7, which is nowhere; there is /opt/rocm/lib/libamdhip64.so.6"
    )


def test_a_runtime_that_is_optional_or_for_a_gpu_that_is_not_here_may_be_missing() -> None:
    runtime = f"{SITE}/cupy_backends/cuda/api/runtime.cpython-312-x86_64-linux-gnu.so"
    nccl = f"{SITE}/cupy_backends/cuda/libs/nccl.cpython-312-x86_64-linux-gnu.so"
    optional = MIXED.with_file(nccl, library(None, needed=("libnccl.so.2",))).with_file(runtime, library(None))
    assert verdict(optional, "lib.versions").status == "PASS"
    amd = a_machine().with_gpu("rx7900xtx").with_file(f"{LIB}/libc.so.6", b"\x7fELF")
    assert verdict(amd.with_file(runtime, library(None, needed=("libcudart.so.12",))), "lib.versions").status == "PASS"
    assert verdict(amd.with_file(runtime, library(None, needed=("libamdhip64.so.7",))), "lib.versions").status == "WARN"


@pytest.mark.proves("lib.versions", "WARN", on="tree")
def test_a_file_under_a_wrong_name_is_told() -> None:
    machine = MIXED.with_distribution("amdsmi", "7.0.2").with_file(
        f"{SITE}/amdsmi/libamd_smi.so.26", library("libamd_smi.so.25", "amdsmi_init")
    )
    assert (
        verdict(machine, "lib.versions").reason
        == f"{SITE}/amdsmi/libamd_smi.so.26 is named version 26 and is libamd_smi.so.25"
    )


@pytest.mark.proves("lib.versions", "PASS", on="tree")
def test_versions_that_fit_are_healthy() -> None:
    assert verdict(cupy_rocm(rocm(torch_rocm())), "lib.versions").status == "PASS"


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("data", [b"", b"\x7fELF\x02\x01\x01", None, b"not a library"])
def test_files_that_make_no_sense_are_unknown(gate: str, data: bytes | None) -> None:
    machine = MIXED.with_distribution("amdsmi", "7.0.2").with_file(
        f"{SITE}/amdsmi/libamd_smi.so", hip()[:300] if data is None else data
    )
    (said,) = verdicts(machine, gate)
    assert said.status == "UNKNOWN"
    assert said.reason.startswith(f"{SITE}/amdsmi/libamd_smi.so: ")


@pytest.mark.parametrize("gate", GATES)
def test_an_environment_without_gpu_packages_is_not_judged(gate: str) -> None:
    assert verdict(MIXED, gate).status == "SKIP"
    assert verdict(torch_cuda(a_machine()), gate).status == "SKIP"


def test_a_library_for_another_architecture_is_no_copy() -> None:
    # e_machine of AArch64 (183) in the copy of the system's.
    other = bytearray(hip())
    other[18:20] = (183).to_bytes(2, "little")
    said = verdict(cupy_rocm(rocm(torch_rocm(), bytes(other))), "lib.would_load")
    assert said.status == "PASS"


def test_a_record_says_that_it_has_no_libraries() -> None:
    host = RecordingHost(torch_rocm().host())
    first = judged(host, *GATES).verdicts
    assert {each.status for each in first} == {"PASS"}
    replay = ReplayHost(*host.recorded(), name="record")
    again = judged(replay, *GATES).verdicts
    assert {each.status for each in again} == {"UNKNOWN"}
    assert all("No data available" in each.reason for each in again)
