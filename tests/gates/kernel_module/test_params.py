"""Parameters that are in force, and those that only a file asks for."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings, strategies as st

from pytest_gpucoexist.gates.kernel_module.params import parse_params
from tests.gates.judging import verdict, verdicts
from tests.gates.kernel_module.installed import a_module, booted_with, wanting, with_modules

if TYPE_CHECKING:
    from pytest_gpucoexist.testing.builder import MachineBuilder

NVIDIA, DRM, AMD = "kmod.nv.params", "kmod.nv.drm_modeset", "kmod.amd.params"
CONF = "/etc/modprobe.d/gpu.conf"
PARAMS = "/proc/driver/nvidia/params"
# As nv-procfs.c prints them: numbers unsigned, texts in quotes.
TEXT = """ResmanDebugLevel: 4294967295
ModifyDeviceFiles: 0
DeviceFileMode: 438
EnableResizableBar: 0
DynamicPowerManagement: 3
EnableGpuFirmware: 18
GrdmaPciTopoCheckOverride: 0
OpenRmEnableUnsupportedGpus: 1
RegistryDwords: ""
RegistryDwordsPerDevice: ""
TemporaryFilePath: "/var/tmp"
"""


def nvidia(conf: str = "", params: str = TEXT) -> MachineBuilder:
    return wanting("rtx4090").with_file(PARAMS, params).with_file(CONF, conf)


@pytest.mark.proves(NVIDIA, "PASS", on="tree")
def test_options_that_are_in_force() -> None:
    conf = (
        "options nvidia NVreg_DynamicPowerManagement=0x03 NVreg_ResmanDebugLevel=-1 NVreg_ModifyDeviceFiles=1\n"
        "options nvidia NVreg_TemporaryFilePath=/var/tmp NVreg_NotKnownHere=1\n"
    )
    said = verdict(nvidia(conf), NVIDIA)
    assert said.status == "PASS"
    assert said.reason.endswith("; DynamicPowerManagement, ResmanDebugLevel, TemporaryFilePath as asked for")


@pytest.mark.proves(NVIDIA, "WARN", on="tree")
def test_an_option_that_is_not_in_force() -> None:
    said = verdict(nvidia("options nvidia NVreg_EnableResizableBar=1\n"), NVIDIA)
    assert said.status == "WARN"
    assert said.reason == (f"options of nvidia are not in force: EnableResizableBar is 0, and {CONF}:1 asks for 1")
    assert said.fix[0].lines[0] == "sudo update-initramfs -u"


def test_options_under_debians_name_for_the_module() -> None:
    machine = nvidia("options nvidia-current NVreg_EnableResizableBar=1\n")
    assert verdict(machine, NVIDIA).status == "PASS"
    machine = with_modules(machine, {"updates/dkms/nvidia-current.ko": a_module("nvidia")})
    assert verdict(machine, NVIDIA).status == "WARN"


def test_peer_access_that_is_forced() -> None:
    """The keys that patched drivers ask for (aikitoria/open-gpu-kernel-modules#25)."""
    forced = 'RegistryDwords: "ForceP2P=0x11;RMForceP2PType=1;RMPcieP2PType=2;GrdmaPciTopoCheckOverride=1"'
    said = verdict(nvidia(params=TEXT.replace('RegistryDwords: ""', forced)), NVIDIA)
    assert said.status == "WARN"
    assert said.reason == "RegistryDwords forces peer access (ForceP2P=…): what it copies must be checked"
    ordinary = 'RegistryDwords: "RMUseSwI2c=0x01;PeerMappingOverride=1"'
    assert verdict(nvidia(params=TEXT.replace('RegistryDwords: ""', ordinary)), NVIDIA).status == "PASS"


@pytest.mark.parametrize("text", ["", "\x00\xff", "EnableMSI=1", "a: \nb"])
@pytest.mark.proves(NVIDIA, "UNKNOWN", on="tree")
def test_parameters_that_make_no_sense(text: str) -> None:
    assert verdict(nvidia(params=text), NVIDIA).status == "UNKNOWN"


def test_parameters_that_may_not_be_read() -> None:
    assert verdict(nvidia().with_error(PARAMS, errno.EACCES), NVIDIA).status == "UNKNOWN"


def test_a_container_sees_a_copy_of_the_file_and_not_the_hosts_modprobe_d() -> None:
    machine = nvidia("options nvidia NVreg_EnableResizableBar=1\n").with_file("/.dockerenv", "")
    assert verdict(machine, NVIDIA).status == "PASS"
    assert verdict(wanting("rtx4090"), NVIDIA).status == "SKIP"


FOLDER = "/sys/module/nvidia_drm/parameters"


@pytest.mark.proves(DRM, "PASS", on="tree")
@pytest.mark.proves(DRM, "WARN", on="tree")
def test_mode_setting_as_asked_for_or_not() -> None:
    machine = wanting("rtx4090").with_file(f"{FOLDER}/modeset", "Y\n").with_file(f"{FOLDER}/fbdev", "Y\n")
    asked = machine.with_file(CONF, "options nvidia-drm modeset=1\n")
    assert verdict(asked, DRM).reason == "nvidia_drm runs with modeset=Y, fbdev=Y; modeset as asked for"
    said = verdict(booted_with(asked, "nvidia-drm.modeset=0"), DRM)
    assert said.status == "WARN"
    assert "modeset is Y, and /proc/cmdline asks for 0" in said.reason


@pytest.mark.proves(DRM, "UNKNOWN", on="tree")
def test_a_parameter_that_only_root_may_read_is_not_off() -> None:
    machine = wanting("rtx4090").with_file(f"{FOLDER}/modeset", "Y\n")
    machine = machine.with_error(f"{FOLDER}/modeset", errno.EACCES).with_file(CONF, "options nvidia-drm modeset=1\n")
    said = verdict(machine, DRM)
    assert said.status == "UNKNOWN"
    assert f"{CONF}:1 asks for modeset=1" in said.reason
    assert verdict(wanting("rtx4090").with_file(f"{FOLDER}/modeset", "??"), DRM).status == "UNKNOWN"
    assert verdict(wanting("rtx4090").without("/sys/module/nvidia_drm"), DRM).status == "SKIP"


def amd(conf: str = "", **parameters: str) -> MachineBuilder:
    machine = wanting("rx7900xtx").with_file(CONF, conf)
    for name, value in {"runpm": "-1", "gpu_recovery": "-1", "lockup_timeout": "", **parameters}.items():
        machine = machine.with_file(f"/sys/module/amdgpu/parameters/{name}", f"{value}\n")
    return machine


@pytest.mark.proves(AMD, "PASS", on="tree")
def test_amdgpus_parameters() -> None:
    said = verdict(amd("options amdgpu runpm=-1 ppfeaturemask=0xffffffff\n", ppfeaturemask="4294967295"), AMD)
    assert said.status == "PASS"
    assert "runpm=-1, gpu_recovery=-1" in said.reason


@pytest.mark.proves(AMD, "WARN", on="tree")
def test_an_option_of_amdgpu_that_the_initramfs_does_not_have() -> None:
    """minisforum-docs/MS-02-Ultra#26: runpm=0 was asked for, and the card went to sleep all the same."""
    said = verdict(amd("options amdgpu runpm=0\n"), AMD)
    assert said.reason == f"options of amdgpu are not in force: runpm is -1, and {CONF}:1 asks for 0"


def test_a_card_that_is_never_reset() -> None:
    said = verdict(amd(gpu_recovery="0"), AMD)
    assert said.reason == "gpu_recovery is 0: amdgpu does not reset a GPU that hangs"
    both = verdicts(amd("options amdgpu runpm=0\n", gpu_recovery="0"), AMD)
    assert [each.status for each in both] == ["WARN", "WARN"]


@pytest.mark.proves(AMD, "UNKNOWN", on="tree")
def test_parameters_that_cannot_be_read() -> None:
    folder = "/sys/module/amdgpu/parameters"
    machine = wanting("rx7900xtx").with_file(f"{folder}/runpm", "0").with_error(f"{folder}/runpm", errno.EACCES)
    assert verdict(machine, AMD).status == "UNKNOWN"
    assert verdict(wanting("rx7900xtx"), AMD).status == "SKIP"


@settings(max_examples=50)
@given(st.text(max_size=200))
def test_no_parameters_break_the_parser(text: str) -> None:
    assert all(name for name in parse_params(text))
