"""Open or proprietary modules, and the firmware of their version."""

from __future__ import annotations

import pytest

from tests.gates.judging import verdict, verdicts
from tests.gates.kernel_module.installed import wanting

VERSION_FILE = "/proc/driver/nvidia/version"
# As the proprietary module prints it (nv-procfs.c, `NVRM version: %s`).
PROPRIETARY = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.133.07  Fri Mar 14 12:57:14 UTC 2025\n"
    "GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04)\n"
)
FIRMWARE = "/lib/firmware/nvidia/570.133.07"


@pytest.mark.proves("drv.nv.flavor", "PASS", on="tree")
def test_modules_that_can_run_the_card() -> None:
    assert verdict(wanting("rtx4090"), "drv.nv.flavor").reason == "the open kernel modules 570.133.07 are loaded"
    said = verdict(wanting("rtx4090").with_file(VERSION_FILE, PROPRIETARY), "drv.nv.flavor")
    assert said.reason == "the proprietary kernel modules 570.133.07 are loaded"


@pytest.mark.proves("drv.nv.flavor", "WARN", on="tree")
def test_blackwell_under_the_proprietary_modules() -> None:
    """The kernel then says `NVRM: installed in this system requires use of the NVIDIA open kernel modules.`"""
    machine = wanting().with_gpu("rtx4090", device_id="0x2b85").with_file(VERSION_FILE, PROPRIETARY)
    said = verdict(machine, "drv.nv.flavor")
    assert said.status == "WARN"
    assert said.reason == "the proprietary modules 570.133.07 cannot run Blackwell: it needs the open ones"


def test_a_card_before_turing_under_the_open_modules() -> None:
    machine = wanting("rtx3090").with_gpu("rtx4090", device_id="0x1b80", driver=None)
    said = verdicts(machine, "drv.nv.flavor")
    assert sorted(each.status for each in said) == ["PASS", "WARN"]


@pytest.mark.parametrize("text", ["", "NVRM version:", "\xff" * 40, "NVRM version: NVIDIA UNIX"])
@pytest.mark.proves("drv.nv.flavor", "UNKNOWN", on="tree")
def test_a_version_file_that_makes_no_sense(text: str) -> None:
    assert verdict(wanting("rtx4090").with_file(VERSION_FILE, text), "drv.nv.flavor").status == "UNKNOWN"


@pytest.mark.proves("drv.nv.gsp_fw", "PASS", on="tree")
def test_firmware_of_the_loaded_version() -> None:
    machine = wanting("rtx4090").with_file(f"{FIRMWARE}/gsp_ga10x.bin", b"").with_file(f"{FIRMWARE}/gsp_tu10x.bin", b"")
    said = verdict(machine, "drv.nv.gsp_fw")
    assert said.status == "PASS"
    assert said.evidence[1].found == "gsp_ga10x.bin, gsp_tu10x.bin"


@pytest.mark.proves("drv.nv.gsp_fw", "FAIL", on="tree")
def test_firmware_of_another_version_only() -> None:
    """ublue-os/bazzite#2668: `failed with error -2` loading nvidia/570.144/gsp_ga10x.bin."""
    said = verdict(wanting("rtx4090").with_file("/lib/firmware/nvidia/580.65.06/gsp_ga10x.bin", b""), "drv.nv.gsp_fw")
    assert said.status == "FAIL"
    assert not said.blocks
    assert said.reason == "the GSP firmware of the loaded driver 570.133.07 is not installed"
    assert said.evidence[1].found == "versions: 580.65.06"


def test_firmware_where_a_container_platform_puts_it() -> None:
    machine = wanting("rtx4090").with_file(
        "/sys/module/firmware_class/parameters/path", "/run/nvidia/driver/firmware\n"
    )
    machine = machine.with_file("/run/nvidia/driver/firmware/nvidia/570.133.07/gsp_ga10x.bin", b"")
    assert verdict(machine.with_file("/lib/firmware/regulatory.db", b""), "drv.nv.gsp_fw").status == "PASS"


def test_a_card_that_uses_no_firmware() -> None:
    machine = wanting("rtx4090").with_file(VERSION_FILE, PROPRIETARY).with_file("/lib/firmware/regulatory.db", b"")
    machine = machine.with_file("/proc/driver/nvidia/gpus/0000:01:00.0/information", "Model: \t\t X\n")
    assert verdict(machine, "drv.nv.gsp_fw").status == "SKIP"


@pytest.mark.proves("drv.nv.gsp_fw", "UNKNOWN", on="tree")
def test_no_firmware_folder_at_all_is_unknown() -> None:
    assert verdict(wanting("rtx4090"), "drv.nv.gsp_fw").status == "UNKNOWN"


def test_a_container_does_not_hold_the_hosts_firmware() -> None:
    machine = wanting("rtx4090").with_file("/.dockerenv", "").with_file("/lib/firmware/README", "")
    assert verdict(machine, "drv.nv.gsp_fw").status == "SKIP"
