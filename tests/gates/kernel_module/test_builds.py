"""What DKMS built, for which kernel a module is, whether Secure Boot lets it in, how the kernel was configured."""

from __future__ import annotations

import errno
import gzip
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings, strategies as st

from pytest_gpucoexist.gates.kernel_module.kernel_config import config_values
from pytest_gpucoexist.testing.builder import a_machine
from tests.gates.judging import verdict, verdicts
from tests.gates.kernel_module.installed import KERNEL, a_module, wanting, with_modules

if TYPE_CHECKING:
    from pytest_gpucoexist.testing.builder import MachineBuilder

DKMS, VERMAGIC, SECURE, CONFIG = "kmod.dkms_status", "kmod.vermagic", "kmod.secureboot", "kmod.kernel_config"
TREE = "/var/lib/dkms"
NVIDIA, UVM = "updates/dkms/nvidia.ko", "updates/dkms/nvidia-uvm.ko"


def with_dkms(
    machine: MachineBuilder, package: str, version: str, *, built: bool = False, installed: bool = False
) -> MachineBuilder:
    """A package in DKMS's tree: added; built for the running kernel; installed."""
    folder = f"{TREE}/{package}/{version}"
    machine = machine.with_link(f"{folder}/source", f"/usr/src/{package}-{version}")
    machine = machine.with_file(f"{folder}/6.8.0-59-generic/x86_64/module/{package}.ko.zst", b"")
    if built:
        machine = machine.with_file(f"{folder}/{KERNEL}/x86_64/module/{package}.ko.zst", b"")
    if installed:
        machine = machine.with_link(f"{TREE}/{package}/kernel-{KERNEL}-x86_64", f"{version}/{KERNEL}/x86_64")
    return machine


@pytest.mark.proves(DKMS, "PASS", on="tree")
def test_dkms_installed_both_vendors_drivers() -> None:
    machine = with_dkms(wanting("rtx4090", "rx7900xtx"), "nvidia", "570.133.07", built=True, installed=True)
    machine = with_dkms(machine, "amdgpu", "6.10.5-2084815.24.04", built=True, installed=True)
    machine = with_dkms(machine, "nvidia", "565.77")  # an older version that was only added
    said = verdicts(machine, DKMS)
    assert [each.reason for each in said] == [
        "DKMS installed amdgpu 6.10.5-2084815.24.04 for this kernel",
        "DKMS installed nvidia 570.133.07 for this kernel",
    ]


@pytest.mark.proves(DKMS, "FAIL", on="tree")
def test_a_kernel_update_without_a_driver() -> None:
    """ROCm/legacy-rocm-build#6354: the rebuild for the new kernel failed, on a host with NVIDIA and AMD."""
    machine = with_dkms(wanting("rtx4090", "rx7900xtx").with_wrong_driver("amd0", None), "amdgpu", "6.10.5")
    said = verdict(machine, DKMS)
    assert said.status == "FAIL"
    assert said.reason == (
        f"DKMS has amdgpu 6.10.5 added, but not installed, for the running kernel {KERNEL}, and amdgpu is not loaded, "
        "though /opt/rocm is installed"
    )
    assert said.fix[0].lines == (f"sudo dkms install amdgpu/6.10.5 -k {KERNEL}",)
    assert not said.blocks


@pytest.mark.proves(DKMS, "WARN", on="tree")
def test_a_driver_that_is_built_and_not_installed_while_another_is_loaded() -> None:
    said = verdict(with_dkms(wanting("rtx4090"), "nvidia", "570.133.07", built=True), DKMS)
    assert said.status == "WARN"
    assert "the nvidia that is loaded comes from elsewhere" in said.reason


def test_drivers_of_gpus_that_are_not_here_do_not_matter() -> None:
    machine = with_dkms(wanting("rtx4090"), "amdgpu", "6.10.5").with_file(f"{TREE}/zfs/2.2.2/source", "")
    assert verdict(machine, DKMS).reason == "DKMS keeps no driver of the GPUs here"


def test_a_card_that_nobody_wants() -> None:
    machine = with_dkms(a_machine().with_gpu("rtx4090", driver=None), "nvidia", "570.133.07")
    assert verdict(machine, DKMS).status == "SKIP"


def test_no_dkms_and_a_container() -> None:
    assert verdict(wanting("rtx4090"), DKMS).status == "SKIP"
    machine = with_dkms(wanting("rtx4090"), "nvidia", "570.133.07").with_file("/.dockerenv", "")
    assert "container" in verdict(machine, DKMS).reason


@pytest.mark.proves(DKMS, "UNKNOWN", on="tree")
def test_a_kernel_whose_release_is_not_known() -> None:
    machine = with_dkms(wanting("rtx4090"), "nvidia", "570.133.07").without("/proc/sys").without("/proc/version")
    assert verdict(machine, DKMS).status == "UNKNOWN"


@pytest.mark.proves(VERMAGIC, "PASS", on="tree")
def test_modules_for_the_running_kernel() -> None:
    machine = with_modules(wanting("rtx4090"), {NVIDIA: a_module("nvidia"), UVM: a_module("nvidia_uvm")})
    said = verdicts(machine, VERMAGIC, level="quick")
    assert {each.reason for each in said} == {f"nvidia is built for {KERNEL}", f"nvidia_uvm is built for {KERNEL}"}


@pytest.mark.proves(VERMAGIC, "FAIL", on="tree")
def test_a_module_for_another_kernel() -> None:
    """negativo17/nvidia-driver#97: `version magic … should be …` after a kernel update."""
    machine = wanting("rtx4090").with_wrong_driver("nvidia0", None)
    old = {NVIDIA: a_module("nvidia", vermagic="6.8.0-59-generic"), UVM: a_module("nvidia_uvm")}
    said = verdicts(with_modules(machine, old), VERMAGIC)
    wrong = next(each for each in said if each.status == "FAIL")
    assert wrong.reason.startswith(f"nvidia is built for 6.8.0-59-generic and cannot be loaded into {KERNEL}, though ")
    assert not wrong.blocks


def test_no_module_for_the_running_kernel() -> None:
    machine = wanting("rtx4090").with_wrong_driver("nvidia0", None)
    said = verdicts(with_modules(machine, {"kernel/fs/ext4/ext4.ko": a_module("ext4")}), VERMAGIC)
    assert {each.status for each in said} == {"FAIL"}
    assert said[0].reason.startswith("the running kernel has no module nvidia")


@pytest.mark.proves(VERMAGIC, "WARN", on="tree")
def test_the_running_kernels_modules_are_gone() -> None:
    """A rolling distribution replaces the kernel and its modules in place."""
    machine = wanting("rtx4090").with_file("/lib/modules/6.9.1-arch1-1/modules.dep", "x.ko:\n")
    said = verdict(machine, VERMAGIC)
    assert said.status == "WARN"
    assert (
        said.reason == f"the modules of the running kernel {KERNEL} are gone from the disk: nothing more can be loaded"
    )
    assert said.action == "the kernel was updated: reboot"


def test_what_is_loaded_has_no_file_any_more() -> None:
    said = verdicts(with_modules(wanting("rtx4090"), {NVIDIA: a_module("nvidia")}), VERMAGIC)
    assert {each.status for each in said} == {"PASS", "WARN"}


def test_a_driver_that_is_built_in() -> None:
    machine = with_modules(wanting("rx7900xtx"), {"kernel/fs/ext4/ext4.ko": a_module("ext4")})
    machine = machine.with_file(f"/lib/modules/{KERNEL}/modules.builtin", "kernel/drivers/gpu/drm/amd/amdgpu/amdgpu.ko")
    assert verdict(machine, VERMAGIC).reason == "amdgpu is built into this kernel"


@pytest.mark.proves(VERMAGIC, "UNKNOWN", on="tree")
def test_no_modules_at_all_is_unknown() -> None:
    assert verdict(wanting("rtx4090"), VERMAGIC).status == "UNKNOWN"
    assert verdict(a_machine().with_gpu("rtx4090"), VERMAGIC).status == "SKIP"
    assert verdict(wanting("rtx4090").with_file("/.dockerenv", ""), VERMAGIC).status == "SKIP"


VARIABLE = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
ON, OFF = b"\x06\0\0\0\x01", b"\x06\0\0\0\0"


@pytest.mark.proves(SECURE, "PASS", on="tree")
def test_secure_boot_is_off() -> None:
    assert verdict(wanting("rtx4090").with_file(VARIABLE, OFF), SECURE).reason == "Secure Boot is off"


def test_secure_boot_is_on_and_the_drivers_are_loaded() -> None:
    machine = wanting("rx7900xtx").with_file(VARIABLE, ON)
    said = verdict(machine.with_file("/sys/kernel/security/lockdown", "none [integrity] confidentiality\n"), SECURE)
    assert said.reason == "Secure Boot is on, and amdgpu is loaded"
    assert said.evidence[1].found == "integrity"


@pytest.mark.proves(SECURE, "WARN", on="tree")
def test_an_unsigned_module_is_kept_out() -> None:
    """What canonical/checkbox's gpu_driver_signed.py looks for: a DKMS build without a key."""
    machine = wanting("rtx4090").with_wrong_driver("nvidia0", None).with_file(VARIABLE, ON)
    files = {NVIDIA: a_module("nvidia"), UVM: a_module("nvidia_uvm", signed=True)}
    said = verdicts(with_modules(machine, files), SECURE)
    assert [(each.status, each.reason.partition(",")[2]) for each in said] == [
        ("WARN", f" nvidia is not signed and not loaded, though {said[0].reason.partition('though ')[2]}"),
        ("PASS", " and nvidia_uvm is signed"),
    ]
    assert "mokutil" in said[0].action


@pytest.mark.parametrize("content", [b"", b"\x06\0\0\0", b"\x06\0\0\0\x02", b"\x06\0\0\0\x01\0", b"1\n"])
@pytest.mark.proves(SECURE, "UNKNOWN", on="tree")
def test_a_variable_that_makes_no_sense(content: bytes) -> None:
    assert verdict(wanting("rtx4090").with_file(VARIABLE, content), SECURE).status == "UNKNOWN"


def test_a_variable_that_is_not_there_and_one_that_is_denied() -> None:
    machine = wanting("rtx4090")
    assert verdict(machine, SECURE).reason == "not booted by UEFI, or its variables are not shown here"
    machine = machine.with_file(f"{VARIABLE.rpartition('/')[0]}/BootOrder-8be4df61", b"")
    assert verdict(machine, SECURE).status == "SKIP"
    assert verdict(machine.with_file(VARIABLE, ON).with_error(VARIABLE, errno.EACCES), SECURE).status == "UNKNOWN"


FULL = (
    "#\n# Automatically generated file; DO NOT EDIT.\n# Linux/x86 6.8.0-60-generic Kernel Configuration\n#\n"
    "CONFIG_DRM_AMDGPU=m\nCONFIG_HSA_AMD=y\nCONFIG_HSA_AMD_P2P=y\nCONFIG_PCI_P2PDMA=y\nCONFIG_DMABUF_MOVE_NOTIFY=y\n"
)
BOOT = f"/boot/config-{KERNEL}"


@pytest.mark.proves(CONFIG, "PASS", on="tree")
def test_a_kernel_for_rocm() -> None:
    said = verdict(wanting("rx7900xtx").with_file(BOOT, FULL), CONFIG)
    assert said.reason == "the kernel is built for ROCm, and for peer access"
    without = FULL.replace("CONFIG_HSA_AMD_P2P=y", "# CONFIG_HSA_AMD_P2P is not set")
    said = verdict(wanting("rx7900xtx").with_file(f"/lib/modules/{KERNEL}/config", without), CONFIG)
    assert said.status == "PASS"
    assert "lacks CONFIG_HSA_AMD_P2P" in said.reason


@pytest.mark.proves(CONFIG, "WARN", on="tree")
def test_a_kernel_without_rocms_part() -> None:
    text = FULL.replace("CONFIG_HSA_AMD=y", "# CONFIG_HSA_AMD is not set")
    machine = wanting("rx7900xtx").with_file("/proc/config.gz", gzip.compress(text.encode(), mtime=0))
    assert verdict(machine, CONFIG).status == "PASS", "KFD is there: amdgpu comes from elsewhere"
    said = verdict(machine.without("/sys/class/kfd"), CONFIG)
    assert said.status == "WARN"
    assert said.reason == "the kernel is built without CONFIG_HSA_AMD, though /opt/rocm is installed"
    assert verdict(a_machine().with_gpu("rx7900xtx").with_file(BOOT, text), CONFIG).status == "SKIP"


@pytest.mark.parametrize("content", [b"", b"\x1f\x8b", b"\x1f\x8b\x08\0\0\0\0\0\0\xff\x03", b"CONFIG_X"])
@pytest.mark.proves(CONFIG, "UNKNOWN", on="tree")
def test_a_configuration_that_makes_no_sense(content: bytes) -> None:
    machine = wanting("rx7900xtx").with_file("/proc/config.gz", content).with_file(BOOT, content)
    assert verdict(machine, CONFIG).status == "UNKNOWN"


@settings(max_examples=50)
@given(st.text(max_size=200))
def test_no_configuration_breaks_the_parser(text: str) -> None:
    for line in (text, f"CONFIG_{text}", f"# CONFIG_{text} is not set"):
        config_values(line)
