"""Modules that must be there, where amdgpu comes from, and why the kernel is tainted."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings, strategies as st

from pytest_gpucoexist.gates.kernel_module.taint import taint_bits
from pytest_gpucoexist.host import open_recording
from pytest_gpucoexist.testing.builder import a_machine
from tests.gates.judging import verdict, verdicts
from tests.gates.kernel_module.installed import a_module, wanting, with_modules

if TYPE_CHECKING:
    from pathlib import Path

NVIDIA, AMD, ORIGIN, TAINT = "kmod.nv.required", "kmod.amd.required", "kmod.amd.origin", "kmod.taint"
TAINTED = "/proc/sys/kernel/tainted"
GENERATION = "/sys/devices/virtual/kfd/kfd/topology/generation_id"


@pytest.mark.proves(NVIDIA, "PASS", on="tree")
def test_nvidia_and_uvm() -> None:
    assert verdict(wanting("rtx4090"), NVIDIA).reason == "nvidia and nvidia_uvm are loaded"


@pytest.mark.proves(NVIDIA, "FAIL", on="tree")
def test_uvm_is_not_loaded_and_nobody_will_load_it() -> None:
    """gorgonia/cu#2: without nvidia_uvm cuInit says that there is no device."""
    machine = wanting("rtx4090").without("/sys/module/nvidia_uvm")
    said = verdict(machine, NVIDIA)
    assert said.status == "FAIL"
    assert said.reason.startswith("nvidia_uvm is not loaded, though ")
    assert not said.blocks
    assert said.fix[0].lines == ("sudo modprobe nvidia_uvm",)
    assert verdict(machine.with_file("/usr/bin/nvidia-modprobe", b""), NVIDIA).status == "PASS"


def test_a_line_that_keeps_uvm_out_beats_nvidia_modprobe() -> None:
    machine = wanting("rtx4090").without("/sys/module/nvidia_uvm").with_file("/usr/bin/nvidia-modprobe", b"")
    said = verdict(machine.with_file("/etc/modprobe.d/x.conf", "install nvidia-uvm /bin/false\n"), NVIDIA)
    assert said.status == "FAIL"
    assert "(/etc/modprobe.d/x.conf:1 says: install nvidia_uvm /bin/false)" in said.reason


def test_nvidia_is_not_loaded_at_all() -> None:
    said = verdict(wanting("rtx4090").with_wrong_driver("nvidia0", None), NVIDIA)
    assert said.reason.startswith("nvidia is not loaded, though ")


def test_a_module_that_is_going_is_not_live() -> None:
    said = verdict(wanting("rtx4090").with_file("/sys/module/nvidia_uvm/initstate", "going\n"), NVIDIA)
    assert said.reason.startswith("nvidia_uvm is going, not live, though ")


@pytest.mark.proves(NVIDIA, "UNKNOWN", on="tree")
def test_a_state_that_cannot_be_read() -> None:
    machine = wanting("rtx4090").with_error("/sys/module/nvidia_uvm/initstate", errno.EIO)
    assert verdict(machine, NVIDIA).status == "UNKNOWN"


def test_a_card_given_away_needs_no_nvidia() -> None:
    assert verdict(wanting("rtx4090").with_wrong_driver("nvidia0", "vfio-pci"), NVIDIA).status == "SKIP"
    assert verdict(a_machine().with_gpu("rtx4090", driver=None), NVIDIA).status == "SKIP"


@pytest.mark.proves(AMD, "PASS", on="tree")
def test_amdgpu_with_kfd() -> None:
    assert (
        verdict(wanting("rx7900xtx").with_file(GENERATION, "2\n"), AMD).reason == "amdgpu is loaded, and KFD is there"
    )


@pytest.mark.proves(AMD, "PASS", on="recording")
def test_a_recorded_desktop_card_without_rocm(shared: Path) -> None:
    said = verdict(open_recording(str(shared / "machines/lact/lact-amd-rx7900xtx.tar.xz")), AMD)
    assert said.reason == "amdgpu is loaded; nothing here asks for ROCm"


@pytest.mark.proves(AMD, "FAIL", on="tree")
def test_a_kernel_without_the_compute_part() -> None:
    """siderolabs/pkgs#1488: the kernel was built without CONFIG_HSA_AMD, so rocminfo found nothing."""
    said = verdict(wanting("rx7900xtx").without("/sys/class/kfd"), AMD)
    assert said.status == "FAIL"
    assert said.reason.startswith("amdgpu is loaded without KFD, its compute part, though /opt/rocm is installed")


def test_amdgpu_is_not_loaded() -> None:
    said = verdict(wanting("rx7900xtx").with_wrong_driver("amd0", None), AMD)
    assert said.status == "FAIL"
    assert said.fix[0].lines == ("sudo modprobe amdgpu",)
    assert verdict(a_machine().with_gpu("rx7900xtx", driver=None), AMD).status == "SKIP"


def test_amdgpu_that_is_built_in() -> None:
    machine = wanting("rx7900xtx").without("/sys/module/amdgpu/initstate").with_file(GENERATION, "1\n")
    assert verdict(machine, AMD).status == "PASS"


@pytest.mark.proves(AMD, "UNKNOWN", on="tree")
def test_a_generation_that_makes_no_sense() -> None:
    assert verdict(wanting("rx7900xtx").with_file(GENERATION, "\x00?"), AMD).status == "UNKNOWN"


IN_TREE = "kernel/drivers/gpu/drm/amd/amdgpu/amdgpu.ko"
DKMS = "updates/dkms/amdgpu.ko"
LOADED = "amdgpu 19771392 54 - Live 0x0000000000000000"
DKMS_LOADED = (
    "amdgpu 20566016 5 - Live 0x0000000000000000 (OE)\namdttm 131072 1 amdgpu, Live 0x0000000000000000 (OE)\n"
    "amdkcl 36864 2 amdgpu,amdttm, Live 0x0000000000000000 (OE)\n"
)


@pytest.mark.parametrize(("modules", "file"), [(f"{LOADED}\n", IN_TREE), (DKMS_LOADED, DKMS)])
@pytest.mark.proves(ORIGIN, "PASS", on="tree")
def test_one_origin(modules: str, file: str) -> None:
    machine = with_modules(wanting("rx7900xtx").with_file("/proc/modules", modules), {file: a_module("amdgpu")})
    said = verdict(machine, ORIGIN)
    assert said.status == "PASS"
    assert ("dkms" in said.reason) is (file == DKMS)


@pytest.mark.proves(ORIGIN, "WARN", on="tree")
def test_the_initramfs_has_the_kernels_own() -> None:
    machine = wanting("rx7900xtx").with_file("/proc/modules", f"{LOADED}\n")
    said = verdict(with_modules(machine, {DKMS: a_module("amdgpu")}), ORIGIN)
    assert said.status == "WARN"
    assert said.reason.startswith("the kernel's own amdgpu is loaded, and modprobe would load /lib/modules/")
    assert said.fix[0].lines[0] == "sudo update-initramfs -u"


def test_amdttm_beside_radeon() -> None:
    """ROCm/legacy-rocm-build#1528: two copies of ttm, one of them used by radeon."""
    modules = f"{DKMS_LOADED}ttm 106496 1 radeon, Live 0x0000000000000000\nradeon 1 0 - Live 0x0\n"
    said = verdicts(wanting("rx7900xtx").with_file("/proc/modules", modules), ORIGIN)
    assert sorted(each.status for each in said) == ["PASS", "WARN"]
    shared_by_i915 = modules.replace("radeon", "i915")
    assert verdict(wanting("rx7900xtx").with_file("/proc/modules", shared_by_i915), ORIGIN).status == "PASS"


@pytest.mark.proves(ORIGIN, "UNKNOWN", on="tree")
def test_no_list_of_modules() -> None:
    assert verdict(wanting("rx7900xtx").without("/proc/modules"), ORIGIN).status == "UNKNOWN"


@pytest.mark.parametrize(
    ("value", "status", "words"),
    [
        pytest.param("0", "PASS", "the kernel is not tainted", marks=pytest.mark.proves(TAINT, "PASS", on="tree")),
        # P, O and E: the proprietary nvidia module.
        ("12289", "PASS", "only bits that tell what is loaded: 0 (proprietary module), 12 (module from outside the"),
        pytest.param("12800", "WARN", "a warning with a backtrace", marks=pytest.mark.proves(TAINT, "WARN", on="tree")),
        pytest.param("128", "FAIL", "crashed (oops)", marks=pytest.mark.proves(TAINT, "FAIL", on="tree")),
        ("16", "FAIL", "machine check"),
        ("32", "FAIL", "a page of memory was found corrupt"),
        ("16896", "FAIL", "soft lockup"),
        ("1048576", "PASS", "20 (unknown to this version)"),
        pytest.param("", "UNKNOWN", "no number", marks=pytest.mark.proves(TAINT, "UNKNOWN", on="tree")),
        ("-1", "UNKNOWN", "no number"),
        ("0x10", "UNKNOWN", "no number"),
        ("1" * 40, "UNKNOWN", "no number"),
    ],
)
def test_the_bits_of_the_taint(value: str, status: str, words: str) -> None:
    said = verdict(wanting("rx7900xtx").with_file(TAINTED, f"{value}\n"), TAINT)
    assert said.status == status
    assert words in said.reason
    assert not said.blocks


@pytest.mark.proves(TAINT, "PASS", on="recording")
def test_the_taint_of_a_recorded_machine(shared: Path) -> None:
    said = verdict(open_recording(str(shared / "machines/vm-2node-switch.tar.gz")), TAINT)
    assert said.evidence[0].found == "12288: 12, 13"


@settings(max_examples=100)
@given(st.text(max_size=30))
def test_a_taint_is_a_decimal_number_or_nothing(text: str) -> None:
    bits = taint_bits(text)
    assert bits is None or sum(1 << bit for bit in bits) == int(text) % (1 << 64)
