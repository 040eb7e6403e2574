"""Versions that must be one."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist.host import open_recording
from pytest_gpucoexist.host.base import Completed
from pytest_gpucoexist.testing.builder import a_machine
from tests.gates.judging import verdict, verdicts
from tests.gates.kernel_module.installed import KERNEL, a_module, wanting, with_modules

if TYPE_CHECKING:
    from pathlib import Path

VERSION = "570.133.07"
NVIDIA_FILE = "updates/dkms/nvidia.ko"
AMD_FILE = "kernel/drivers/gpu/drm/amd/amdgpu/amdgpu.ko"
SOURCES = "6EE36B336CBB156C922FD9B"


@pytest.mark.proves("drv.nv.siblings", "PASS", on="tree")
def test_all_parts_of_one_version() -> None:
    said = verdict(wanting("rtx4090"), "drv.nv.siblings")
    assert said.reason == f"5 source(s) say {VERSION}"


@pytest.mark.proves("drv.nv.siblings", "FAIL", on="tree")
def test_a_part_that_was_left_over() -> None:
    """void-linux/void-packages#4473: nvidia-uvm of an older release beside the new nvidia."""
    said = verdict(wanting("rtx4090").with_file("/sys/module/nvidia_uvm/version", "565.77\n"), "drv.nv.siblings")
    assert said.status == "FAIL"
    assert "nvidia_uvm 565.77" in said.reason
    assert not said.blocks


@pytest.mark.parametrize("text", ["", "0.stub", "\x00\x01", "570", "570.133.07; rm"])
@pytest.mark.proves("drv.nv.siblings", "UNKNOWN", on="tree")
def test_garbage_for_a_version(text: str) -> None:
    said = verdict(wanting("rtx4090").with_file("/sys/module/nvidia_drm/version", text), "drv.nv.siblings")
    assert said.status == "UNKNOWN"


def test_a_version_that_may_not_be_read_is_unknown() -> None:
    machine = wanting("rtx4090").with_error("/sys/module/nvidia/version", errno.EACCES)
    assert verdict(machine, "drv.nv.siblings").status == "UNKNOWN"
    assert verdict(machine, "drv.nv.disk_vs_loaded").status == "UNKNOWN"


def test_no_driver_no_parts() -> None:
    machine = wanting("rtx4090").with_wrong_driver("nvidia0", "nouveau")
    assert verdict(machine, "drv.nv.siblings").status == "SKIP"
    assert verdict(machine, "drv.nv.disk_vs_loaded").status == "SKIP"


@pytest.mark.proves("drv.nv.disk_vs_loaded", "PASS", on="tree")
def test_the_module_on_disk_is_the_loaded_one() -> None:
    machine = with_modules(wanting("rtx4090"), {NVIDIA_FILE: a_module("nvidia", version=VERSION)})
    said = verdict(machine, "drv.nv.disk_vs_loaded", level="quick")
    assert said.reason == f"{VERSION} is loaded and on disk"


@pytest.mark.proves("drv.nv.disk_vs_loaded", "WARN", on="tree")
def test_an_update_without_a_reboot() -> None:
    """NVIDIA/open-gpu-kernel-modules#829: after the update nvidia-smi fails until a reboot."""
    machine = with_modules(wanting("rtx4090"), {NVIDIA_FILE: a_module("nvidia", version="580.65.06")})
    said = verdict(machine, "drv.nv.disk_vs_loaded", level="quick")
    assert said.reason == (
        "nvidia 570.133.07 is loaded, and 580.65.06 is on disk: the driver was updated without a reboot"
    )
    assert said.action.startswith("reboot")


def test_debians_name_for_the_module() -> None:
    machine = with_modules(wanting("rtx4090"), {"updates/dkms/nvidia-current.ko": a_module("nvidia", version=VERSION)})
    assert verdict(machine, "drv.nv.disk_vs_loaded").status == "PASS"


def test_a_compressed_module_is_left_alone_by_quick_and_unpacked_by_standard() -> None:
    import gzip
    import lzma

    content = a_module("nvidia", version="580.65.06")
    for suffix, packed in ((".gz", gzip.compress(content, mtime=0)), (".xz", lzma.compress(content))):
        machine = with_modules(wanting("rtx4090"), {NVIDIA_FILE + suffix: packed})
        assert verdict(machine, "drv.nv.disk_vs_loaded", level="quick").status == "SKIP"
        assert verdict(machine, "drv.nv.disk_vs_loaded").status == "WARN"
        broken = with_modules(wanting("rtx4090"), {NVIDIA_FILE + suffix: packed[:-20]})
        assert verdict(broken, "drv.nv.disk_vs_loaded").status == "UNKNOWN"


def test_dkms_tells_the_version_of_a_module_that_quick_does_not_unpack() -> None:
    machine = with_modules(wanting("rtx4090"), {NVIDIA_FILE + ".zst": b"\x28\xb5\x2f\xfd"})
    built = f"/var/lib/dkms/nvidia/580.65.06/{KERNEL}/x86_64"
    machine = machine.with_file(f"{built}/module/nvidia.ko.zst", b"")
    machine = machine.with_link(f"/var/lib/dkms/nvidia/kernel-{KERNEL}-x86_64", f"580.65.06/{KERNEL}/x86_64")
    said = verdict(machine, "drv.nv.disk_vs_loaded", level="quick")
    assert said.status == "WARN"
    assert "580.65.06 is on disk" in said.reason


@pytest.mark.proves("drv.amd.disk_vs_loaded", "PASS", on="tree")
def test_the_amdgpu_on_disk_is_the_loaded_one() -> None:
    machine = wanting("rx7900xtx").with_file("/sys/module/amdgpu/srcversion", f"{SOURCES}\n")
    machine = with_modules(machine, {AMD_FILE: a_module("amdgpu", srcversion=SOURCES)})
    assert verdict(machine, "drv.amd.disk_vs_loaded", level="quick").status == "PASS"


@pytest.mark.proves("drv.amd.disk_vs_loaded", "WARN", on="tree")
def test_another_amdgpu_on_disk() -> None:
    machine = wanting("rx7900xtx").with_file("/sys/module/amdgpu/srcversion", f"{SOURCES}\n")
    machine = with_modules(machine, {AMD_FILE: a_module("amdgpu", srcversion="0123456789ABCDEF0123456")})
    said = verdict(machine, "drv.amd.disk_vs_loaded")
    assert said.status == "WARN"
    assert "the initramfs is older" in said.reason


@pytest.mark.parametrize("content", [b"", b"\x7fELF", a_module("amdgpu", srcversion="??"), b"\0" * 4096])
@pytest.mark.proves("drv.amd.disk_vs_loaded", "UNKNOWN", on="tree")
def test_a_module_file_that_makes_no_sense(content: bytes) -> None:
    machine = wanting("rx7900xtx").with_file("/sys/module/amdgpu/srcversion", f"{SOURCES}\n")
    assert verdict(with_modules(machine, {AMD_FILE: content}), "drv.amd.disk_vs_loaded").status == "UNKNOWN"


def test_a_container_does_not_judge_the_hosts_modules() -> None:
    machine = wanting("rtx4090").with_file("/.dockerenv", "")
    said = verdict(machine, "drv.nv.disk_vs_loaded")
    assert said.status == "SKIP"
    assert "container" in said.reason


@pytest.mark.proves("drv.minimum_version", "PASS", on="tree")
@pytest.mark.proves("drv.minimum_version", "WARN", on="tree")
def test_a_minimum_by_the_first_two_numbers() -> None:
    gate, machine = "drv.minimum_version", wanting("rtx4090", "rx7900xtx")
    assert verdict(machine, gate).status == "SKIP"
    limits = {gate: {"nvidia_major": 570, "nvidia_minor": 86, "amd_major": 6, "amd_minor": 10}}
    good, old = verdicts(machine, gate, limits=limits)
    assert (good.status, good.reason) == ("PASS", f"nvidia {VERSION} is at least 570.86")
    assert (old.status, old.reason) == ("WARN", f"amdgpu {KERNEL} is older than 6.10")


def test_a_version_that_is_not_known_is_not_enough(shared: Path) -> None:
    host = open_recording(str(shared / "machines/lact/lact-amd-rx7900xtx.tar.xz"))
    said = verdict(host, "drv.minimum_version", limits={"drv.minimum_version": {"amd_major": 6}})
    assert said.status == "UNKNOWN"


def test_modinfo_is_asked_for_what_python_cannot_unpack() -> None:
    from tests.probes.memory_host import MemoryHost

    path = f"/lib/modules/{KERNEL}/{NVIDIA_FILE}.zst"
    host = MemoryHost(
        files={
            "/proc/sys/kernel/osrelease": KERNEL,
            f"/lib/modules/{KERNEL}/modules.dep": f"{NVIDIA_FILE}.zst:\n",
            "/sys/module/nvidia/version": VERSION,
            "/sys/bus/pci/devices/0000:01:00.0/class": "0x030000",
            "/sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de",
            "/sys/bus/pci/devices/0000:01:00.0/device": "0x2684",
        },
        links={"/sys/bus/pci/devices/0000:01:00.0/driver": "../../drivers/nvidia"},
        programs={
            ("/sbin/modinfo", path): Completed(
                returncode=0,
                stdout=(
                    f"filename:       {path}\nalias:          char-major-195-*\nversion:        580.65.06\n"
                    "license:        Dual MIT/GPL\nname:           nvidia\n"
                    f"vermagic:       {KERNEL} SMP preempt mod_unload modversions \n"
                    "signer:         workstation Secure Boot Module Signature key\nsignature:      1C:2D:\n\t\t3E:4F\n"
                ).encode(),
            )
        },
    )
    assert "580.65.06 is on disk" in verdict(host, "drv.nv.disk_vs_loaded").reason


def test_nothing_is_said_of_other_vendors_cards() -> None:
    assert verdict(a_machine().with_gpu("rx7900xtx"), "drv.nv.siblings").reason == "no NVIDIA GPU here"
