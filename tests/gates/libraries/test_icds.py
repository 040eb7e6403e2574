"""Manifests as distributions ship them: healthy, left behind, doubled."""

from __future__ import annotations

import errno
import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings, strategies as st

from pytest_gpucoexist.testing.builder import MachineBuilder, a_machine
from tests.gates.judging import verdict, verdicts

if TYPE_CHECKING:
    from pathlib import Path

LIB = "/usr/lib/x86_64-linux-gnu"
ELF = b"\x7fELF"
MACHINE = a_machine().with_gpu("rx7900xtx").with_file(f"{LIB}/libc.so.6", ELF)
VULKAN = "/usr/share/vulkan/icd.d"
EGL = "/usr/share/glvnd/egl_vendor.d"


def icd(library: str, **more: str) -> str:
    return json.dumps(
        {"file_format_version": "1.0.0", "ICD": {"library_path": library, "api_version": "1.3.0", **more}}
    )


@pytest.fixture
def debian(shared: Path) -> MachineBuilder:
    """A Debian 12 with the packages whose manifests were kept, and the libraries of these packages."""
    machine = MACHINE
    places = {"OpenCL/vendors": "/etc/OpenCL/vendors", "vulkan/icd.d": VULKAN, "glvnd/egl_vendor.d": EGL}
    for source, place in places.items():
        for path in sorted((shared / "machines" / "distro" / source).iterdir()):
            machine = machine.with_file(f"{place}/{path.name}", path.read_bytes())
    for name in ("libMesaOpenCL.so.1", "libRusticlOpenCL.so.1", "libpocl.so.2.10.0", "intel-opencl/libigdrcl.so"):
        machine = machine.with_file(f"{LIB}/{name}", ELF)
    for name in ("intel_hasvk", "intel", "lvp", "radeon"):
        machine = machine.with_file(f"{LIB}/libvulkan_{name}.so", ELF)
    return machine.with_file(f"{LIB}/libEGL_mesa.so.0", ELF)


@pytest.mark.parametrize(
    ("gate", "first"),
    [
        pytest.param("lib.opencl_icd", "intel.icd", marks=pytest.mark.proves("lib.opencl_icd", "PASS", on="recording")),
        pytest.param(
            "lib.vulkan_icd", "intel_hasvk_icd", marks=pytest.mark.proves("lib.vulkan_icd", "PASS", on="recording")
        ),
        pytest.param("lib.egl_vendor", "50_mesa", marks=pytest.mark.proves("lib.egl_vendor", "PASS", on="recording")),
    ],
)
def test_manifests_of_a_distribution_are_healthy(debian: MachineBuilder, gate: str, first: str) -> None:
    said = verdict(debian, gate)
    assert said.status == "PASS"
    assert said.reason.startswith(first)
    assert all(LIB in each.found for each in said.evidence)


@pytest.mark.proves("lib.opencl_icd", "WARN", on="recording")
def test_a_manifest_whose_package_was_removed_is_told(debian: MachineBuilder) -> None:
    said = verdict(
        debian.without(f"{LIB}/intel-opencl/libigdrcl.so").with_file(f"{LIB}/intel-opencl/x", ""), "lib.opencl_icd"
    )
    assert said.status == "WARN"
    assert said.reason == f"/etc/OpenCL/vendors/intel.icd names {LIB}/intel-opencl/libigdrcl.so, which is not there"
    assert "remove the manifest" in said.action


def test_where_a_recording_does_not_know_the_library_nobody_is_alarmed(debian: MachineBuilder) -> None:
    said = verdict(debian.without(f"{LIB}/intel-opencl"), "lib.opencl_icd")
    assert said.status == "UNKNOWN"
    assert "was not recorded" in said.reason


@pytest.mark.parametrize(
    ("gate", "path", "text"),
    [
        pytest.param(
            "lib.vulkan_icd",
            f"{VULKAN}/nvidia_icd.json",
            icd("libGLX_nvidia.so.0"),
            marks=pytest.mark.proves("lib.vulkan_icd", "WARN", on="tree"),
        ),
        pytest.param(
            "lib.egl_vendor",
            f"{EGL}/10_nvidia.json",
            icd("libEGL_nvidia.so.0"),
            marks=pytest.mark.proves("lib.egl_vendor", "WARN", on="tree"),
        ),
        ("lib.opencl_icd", "/etc/OpenCL/vendors/nvidia.icd", "libnvidia-opencl.so.1\n"),
    ],
)
def test_what_a_removed_driver_left_behind_is_told(gate: str, path: str, text: str) -> None:
    said = verdict(MACHINE.with_file(path, text), gate)
    assert said.status == "WARN"
    assert said.reason.startswith(f"{path} names lib")
    link = MACHINE.with_file(path, text).with_link(
        f"{LIB}/{said.reason.split()[2].rstrip(',')}", "libgone.so.550.54.14"
    )
    said = verdict(link, gate)
    assert said.status == "WARN"
    assert "dangles" in said.evidence[0].found


@pytest.mark.parametrize(
    "library",
    ["libvulkan_radeon.so", f"{LIB}/libvulkan_radeon.so", "../../../lib/x86_64-linux-gnu/libvulkan_radeon.so"],
)
def test_a_library_is_named_by_path_by_relative_path_or_by_name(library: str) -> None:
    machine = MACHINE.with_file(f"{LIB}/libvulkan_radeon.so", ELF).with_file(
        f"{VULKAN}/radeon_icd.x86_64.json", icd(library)
    )
    assert verdict(machine, "lib.vulkan_icd").status == "PASS"


def test_ldconfig_may_know_a_library_that_its_configuration_no_longer_shows() -> None:
    machine = MACHINE.with_file("/etc/OpenCL/vendors/x.icd", "libx.so.1").with_file(
        "/etc/ld.so.cache", b"glibc-ld.so.cache1.1\0libx.so.1\0/srv/libx.so.1\0"
    )
    assert verdict(machine, "lib.opencl_icd").status == "PASS"


def test_drivers_for_32_bit_programs_are_not_those_of_this_process() -> None:
    machine = (
        MACHINE.with_file(f"{LIB}/libGLX_nvidia.so.0", ELF)
        .with_file(f"{LIB}/libvulkan_intel.so", ELF)
        .with_file(f"{VULKAN}/nvidia_icd.x86_64.json", icd("libGLX_nvidia.so.0", library_arch="64"))
        .with_file(f"{VULKAN}/nvidia_icd.i686.json", icd("libGLX_nvidia.so.0", library_arch="32"))
        .with_file(f"{VULKAN}/nvidia_layers_32.json", icd("libGLX_nvidia.so.0", library_arch="32"))
        .with_file(f"{VULKAN}/intel_icd.i686.json", icd("/usr/lib/i386-linux-gnu/libvulkan_intel.so"))
        .with_file(f"{VULKAN}/intel_icd.x86_64.json", icd(f"{LIB}/libvulkan_intel.so"))
    )
    assert verdict(machine, "lib.vulkan_icd").status == "PASS"


def test_a_driver_that_two_manifests_name_shows_its_gpus_twice() -> None:
    machine = MACHINE.with_file(f"{LIB}/libGLX_nvidia.so.0", ELF)
    for folder in ("/etc/vulkan/icd.d", VULKAN):
        machine = machine.with_file(f"{folder}/nvidia_icd.json", icd("libGLX_nvidia.so.0"))
    said = verdict(machine, "lib.vulkan_icd")
    assert said.status == "WARN"
    assert said.reason.startswith(f"/etc/vulkan/icd.d/nvidia_icd.json and {VULKAN}/nvidia_icd.json name the same")


def test_two_rocm_drivers_for_opencl_and_one_beside_clover_are_told() -> None:
    # ROCm/legacy-rocm-build#710; ROCm/clr#155.
    vendors = "/etc/OpenCL/vendors"
    old, new = "/opt/rocm-5.7.0/lib/libamdocl64.so", "/opt/rocm-6.4.1/lib/libamdocl64.so"
    one = MACHINE.with_file(new, ELF).with_file(f"{vendors}/amdocl64_60401.icd", new + "\n")
    assert verdict(one, "lib.opencl_icd").status == "PASS"
    two = one.with_file(old, ELF).with_file(f"{vendors}/amdocl64_50700.icd", old)
    said = verdict(two, "lib.opencl_icd")
    assert said.status == "WARN"
    assert said.reason.startswith("two OpenCL drivers of ROCm")
    assert said.devices
    beside = one.with_file(f"{LIB}/libMesaOpenCL.so.1", ELF).with_file(f"{vendors}/mesa.icd", "libMesaOpenCL.so.1\n")
    said = verdict(beside, "lib.opencl_icd")
    assert said.status == "WARN"
    assert "crashed together" in said.action
    nvidia = a_machine().with_gpu("rtx4090").with_file(new, ELF).with_file(old, ELF)
    for path, text in ((f"{vendors}/a.icd", old), (f"{vendors}/b.icd", new)):
        nvidia = nvidia.with_file(path, text)
    assert verdict(nvidia, "lib.opencl_icd").status == "PASS"


def test_variables_decide_and_are_named() -> None:
    machine = MACHINE.with_file(f"{LIB}/libvulkan_radeon.so", ELF).with_file(
        f"{VULKAN}/radeon_icd.x86_64.json", icd("libvulkan_radeon.so")
    )
    chosen = machine.with_environ(VK_DRIVER_FILES=f"{VULKAN}/radeon_icd.x86_64.json")
    assert verdict(chosen, "lib.vulkan_icd").reason.endswith(
        f"chosen by VK_DRIVER_FILES={VULKAN}/radeon_icd.x86_64.json"
    )
    wrong = machine.with_environ(VK_ICD_FILENAMES=f"{VULKAN}/amd_icd64.json")
    said = verdict(wrong, "lib.vulkan_icd")
    assert said.status == "WARN"
    assert said.reason == f"{VULKAN}/amd_icd64.json cannot be used: No such file or directory"


def test_a_manifest_that_may_not_be_read_is_unknown_and_a_broken_one_is_told() -> None:
    path = f"{VULKAN}/radeon_icd.x86_64.json"
    denied = verdict(MACHINE.with_file(path, "{}").with_error(path, errno.EACCES), "lib.vulkan_icd")
    assert denied.status == "UNKNOWN"
    cut = verdict(MACHINE.with_file(path, icd("libvulkan_radeon.so")[:30]), "lib.vulkan_icd")
    assert cut.status == "WARN"
    assert "cannot be used" in cut.reason


@pytest.mark.parametrize("gate", ["lib.opencl_icd", "lib.vulkan_icd", "lib.egl_vendor", "lib.glx_vendor"])
def test_where_nothing_is_installed_nothing_is_judged(gate: str) -> None:
    assert verdict(MACHINE, gate).status == "SKIP"


@pytest.mark.proves("lib.glx_vendor", "PASS", on="tree")
def test_the_vendors_of_glx_are_listed() -> None:
    machine = MACHINE.with_file(f"{LIB}/libGLX_nvidia.so.550.54.14", ELF).with_file(f"{LIB}/libGLX_mesa.so.0.0.0", ELF)
    machine = machine.with_link(f"{LIB}/libGLX_nvidia.so.0", "libGLX_nvidia.so.550.54.14")
    machine = machine.with_link(f"{LIB}/libGLX_mesa.so.0", "libGLX_mesa.so.0.0.0").with_environ(
        __GLX_VENDOR_LIBRARY_NAME="nvidia"
    )
    said = verdict(machine, "lib.glx_vendor")
    assert said.reason == "libGLX_mesa.so.0, libGLX_nvidia.so.0 found"


@pytest.mark.proves("lib.glx_vendor", "WARN", on="tree")
def test_a_vendor_of_glx_that_is_gone_is_told() -> None:
    machine = MACHINE.with_link(f"{LIB}/libGLX_nvidia.so.0", "libGLX_nvidia.so.535.261.03")
    said = verdicts(machine.with_environ(__GLX_VENDOR_LIBRARY_NAME="amd"), "lib.glx_vendor")
    assert [each.status for each in said] == ["WARN", "WARN"]
    assert said[0].reason == f"{LIB}/libGLX_nvidia.so.0 leads nowhere"
    assert "there is no libGLX_amd.so.0" in said[1].reason


@given(st.binary(max_size=80), st.sampled_from([f"{VULKAN}/a.json", f"{EGL}/a.json", "/etc/OpenCL/vendors/a.icd"]))
@settings(max_examples=20, deadline=None)
def test_garbage_is_never_healthy(data: bytes, path: str) -> None:
    machine = MACHINE.with_file(path, data)
    for gate in ("lib.vulkan_icd", "lib.egl_vendor", "lib.opencl_icd"):
        assert {each.status for each in verdicts(machine, gate)} <= {"WARN", "UNKNOWN", "SKIP"}
