"""LD_PRELOAD, LD_LIBRARY_PATH, HIP_PLATFORM, and whose libcuda it is."""

from __future__ import annotations

import errno

import pytest

from pytest_gpucoexist.testing.builder import MachineBuilder, a_machine
from tests.gates.judging import verdict, verdicts
from tests.gates.libraries.test_mapped import LIBC, lines

LIB = "/usr/lib/x86_64-linux-gnu"
ELF = b"\x7fELF"
MIXED = a_machine().with_gpu("rtx4090").with_gpu("rx7900xtx").with_file(f"{LIB}/libc.so.6", ELF)
AMD = a_machine().with_gpu("rx7900xtx").with_file(f"{LIB}/libc.so.6", ELF)


def driver(machine: MachineBuilder) -> MachineBuilder:
    """The library of NVIDIA's driver as its packages install it."""
    machine = machine.with_file(f"{LIB}/libcuda.so.550.54.14", ELF)
    return machine.with_link(f"{LIB}/libcuda.so.1", "libcuda.so.550.54.14")


@pytest.mark.proves("lib.ld_env", "WARN", on="tree")
def test_a_preloaded_smi_library_is_told() -> None:
    # ROCm/rocm-systems#8768: a preloaded librocm_smi64 blinds amd-smi.
    said = verdict(AMD.with_environ(LD_PRELOAD="/opt/rocm/lib/librocm_smi64.so.7:libjemalloc.so.2"), "lib.ld_env")
    assert said.status == "WARN"
    assert said.reason == "LD_PRELOAD loads /opt/rocm/lib/librocm_smi64.so.7 into every process"


@pytest.mark.proves("lib.ld_env", "WARN", on="tree")
def test_a_folder_that_puts_another_comgr_before_the_systems_is_told() -> None:
    # JuliaGPU/AMDGPU.jl#1062
    machine = AMD.with_file("/opt/julia/artifacts/lib/libamd_comgr.so.2", ELF).with_file(
        f"{LIB}/libamd_comgr.so.2.8.0", b"other"
    )
    machine = machine.with_link(f"{LIB}/libamd_comgr.so.2", "libamd_comgr.so.2.8.0")
    said = verdict(machine.with_environ(LD_LIBRARY_PATH="/opt/julia/artifacts/lib"), "lib.ld_env")
    assert said.status == "WARN"
    assert said.reason.startswith(
        f"LD_LIBRARY_PATH puts /opt/julia/artifacts/lib/libamd_comgr.so.2 before {LIB}/libamd_comgr"
    )


def test_two_copies_in_the_variables_own_folders_are_told() -> None:
    machine = AMD.with_file("/srv/a/libamdhip64.so.6", b"one").with_file("/srv/b/libamdhip64.so.6", b"two")
    said = verdict(machine.with_environ(LD_LIBRARY_PATH="/srv/a:/srv/b"), "lib.ld_env")
    assert said.reason == "LD_LIBRARY_PATH puts /srv/a/libamdhip64.so.6 before /srv/b/libamdhip64.so.6"
    both = machine.with_link("/srv/a/libamdhip64.so", "libamdhip64.so.6").with_environ(LD_LIBRARY_PATH="/srv/a:/srv/b")
    assert verdict(both, "lib.ld_env").reason == said.reason
    other = AMD.with_file("/srv/a/libamdhip64.so.6", b"one").with_file("/srv/b/libamdhip64.so.6", b"one")
    assert verdict(other.with_environ(LD_LIBRARY_PATH="/srv/a:/srv/b"), "lib.ld_env").status == "PASS"


@pytest.mark.proves("lib.ld_env", "PASS", on="tree")
@pytest.mark.parametrize("value", ["/opt/rocm/lib", f"{LIB}:/opt/rocm/lib/", "/usr/local/cuda/compat/lib:/nowhere:"])
def test_a_folder_that_brings_what_is_nowhere_else_is_healthy(value: str) -> None:
    machine = driver(MIXED.with_file("/opt/rocm/lib/libamdhip64.so.6", ELF)).with_file(
        "/usr/local/cuda/compat/lib/libcuda.so.1", b"new"
    )
    said = verdict(machine.with_environ(LD_LIBRARY_PATH=value), "lib.ld_env")
    assert said.status == "PASS", said.reason


def test_the_same_file_by_another_folder_is_no_override() -> None:
    machine = driver(MIXED).with_link("/opt/links/libcuda.so.1", f"{LIB}/libcuda.so.550.54.14")
    assert verdict(machine.with_environ(LD_LIBRARY_PATH="/opt/links"), "lib.ld_env").status == "PASS"


def test_no_variable_is_nothing_to_judge_and_a_closed_folder_is_unknown() -> None:
    assert verdict(AMD, "lib.ld_env").status == "UNKNOWN"
    assert verdict(AMD.with_environ(HOME="/root"), "lib.ld_env").status == "SKIP"
    closed = AMD.with_file("/opt/closed/libcuda.so.1", ELF).with_error("/opt/closed", errno.EACCES)
    assert verdict(closed.with_environ(LD_LIBRARY_PATH="/opt/closed"), "lib.ld_env").status == "UNKNOWN"


@pytest.mark.proves("lib.hip_platform", "WARN", on="tree")
def test_hip_for_nvidia_on_an_amd_machine_is_told() -> None:
    said = verdict(MIXED.with_environ(HIP_PLATFORM="nvidia"), "lib.hip_platform")
    assert said.status == "WARN"
    assert said.reason == "HIP_PLATFORM=nvidia: hipcc builds for nvidia on a machine with an AMD GPU"
    info = "/var/lib/dpkg/info"
    both = AMD.with_file(f"{info}/hip-runtime-amd.list", "").with_file(f"{info}/hip-runtime-nvidia.list", "")
    assert "both installed" in verdict(both, "lib.hip_platform").reason


@pytest.mark.proves("lib.hip_platform", "PASS", on="tree")
@pytest.mark.parametrize("value", ["", "amd"])
def test_hip_for_amd_is_healthy(value: str) -> None:
    assert verdict(AMD.with_environ(HIP_PLATFORM=value), "lib.hip_platform").status == "PASS"


@pytest.mark.proves("lib.nv.libcuda_path", "PASS", on="tree")
def test_the_drivers_libcuda_is_healthy() -> None:
    said = verdict(driver(MIXED), "lib.nv.libcuda_path")
    assert said.status == "PASS"
    assert said.reason == f"libcuda.so.1 is {LIB}/libcuda.so.550.54.14"


@pytest.mark.proves("lib.nv.libcuda_path", "FAIL", on="tree")
def test_a_stub_in_the_drivers_place_fails() -> None:
    # Images link the stub as libcuda.so.1 so that programs link, and keep the folder in LD_LIBRARY_PATH.
    stubs = "/usr/local/cuda-12.4/targets/x86_64-linux/lib/stubs"
    machine = driver(MIXED).with_file(f"{stubs}/libcuda.so", ELF).with_link(f"{stubs}/libcuda.so.1", "libcuda.so")
    said = verdict(machine.with_environ(LD_LIBRARY_PATH=stubs), "lib.nv.libcuda_path")
    assert said.status == "FAIL"
    assert not said.blocking
    assert said.reason == f"libcuda.so.1 is the stub {stubs}/libcuda.so: every CUDA call gives error 34"
    assert verdict(driver(MIXED).with_file(f"{stubs}/libcuda.so", ELF), "lib.nv.libcuda_path").status == "PASS"


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/opt/zluda/libcuda.so", "WARN", "translation layer"),
        ("/usr/local/cuda/compat/libcuda.so.560.35.03", "WARN", "which GeForce cards refuse (error 804)"),
        (f"{LIB}/libcuda.so.550.54.14", "PASS", "libcuda.so.1 is"),
    ],
)
def test_what_is_mapped_decides(path: str, status: str, words: str) -> None:
    said = verdict(driver(MIXED).with_file("/proc/self/maps", LIBC + lines(path, 3)), "lib.nv.libcuda_path")
    assert said.status == status
    assert words in said.reason


def test_forward_compatibility_on_a_data_centre_gpu_is_healthy() -> None:
    machine = a_machine().with_gpu("rtx4090", name="GH100 [H100 SXM5 80GB]")
    machine = machine.with_file("/proc/self/maps", LIBC + lines("/usr/local/cuda/compat/libcuda.so.560.35.03", 3))
    said = verdict(machine, "lib.nv.libcuda_path")
    assert said.status == "PASS"
    assert said.reason.endswith("(forward compatibility)")


def test_a_machine_without_libcuda_has_nothing_to_judge() -> None:
    assert verdict(MIXED, "lib.nv.libcuda_path").status == "SKIP"
    (said,) = verdicts(a_machine().with_gpu("rtx4090"), "lib.nv.libcuda_path")
    assert said.status == "UNKNOWN"
