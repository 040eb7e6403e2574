"""Lines of modprobe.d and of the kernel's command line against what is loaded."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist.testing.builder import a_machine
from tests.gates.judging import judged, verdict
from tests.gates.kernel_module.installed import a_module, booted_with, wanting, with_modules

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucoexist.testing.builder import MachineBuilder

GATE = "kmod.blacklist_conflict"
CONF = "/etc/modprobe.d/gpu.conf"
NOUVEAU = "kernel/drivers/gpu/drm/nouveau/nouveau.ko"


def with_nouveau(machine: MachineBuilder) -> MachineBuilder:
    """A kernel that has nouveau, as every distribution's."""
    return with_modules(machine, {NOUVEAU: a_module("nouveau"), "updates/dkms/nvidia.ko": a_module("nvidia")})


@pytest.mark.parametrize(
    "line",
    ["blacklist nouveau", "install nouveau /bin/false", "alias nouveau off", "options nouveau modeset=0"],
)
@pytest.mark.proves(GATE, "PASS", on="tree")
def test_nouveau_kept_out_by_a_line(line: str) -> None:
    said = verdict(with_nouveau(wanting("rtx4090")).with_file(CONF, f"{line}\n"), GATE)
    assert said.status == "PASS"
    assert said.reason == "no line keeps NVIDIA's driver out"


@pytest.mark.parametrize("argument", ["modprobe.blacklist=nouveau", "module_blacklist=nouveau", "nouveau.modeset=0"])
def test_nouveau_kept_out_by_the_command_line(argument: str) -> None:
    machine = booted_with(with_nouveau(wanting("rtx4090")), "rd.driver.blacklist=nouveau", argument)
    assert verdict(machine, GATE).status == "PASS"


@pytest.mark.proves(GATE, "PASS", on="tree")
def test_what_the_driver_packages_of_a_distribution_write(shared: Path) -> None:
    machine = with_nouveau(wanting("rtx4090"))
    for file in (shared / "machines/distro/modprobe.d").iterdir():
        machine = machine.with_file(f"/usr/lib/modprobe.d/{file.name}", file.read_bytes())
    assert verdict(machine, GATE).status == "PASS"


@pytest.mark.proves(GATE, "WARN", on="tree")
def test_nouveau_may_win_at_the_next_boot() -> None:
    said = verdict(with_nouveau(wanting("rtx4090")), GATE)
    assert said.status == "WARN"
    assert said.reason == (
        "nouveau may take the NVIDIA card at the next boot: this kernel has it, and no line keeps it out"
    )
    assert said.fix[0].path == "/etc/modprobe.d/blacklist-nouveau.conf"


def test_a_line_for_the_initramfs_alone_is_not_enough() -> None:
    said = verdict(booted_with(with_nouveau(wanting("rtx4090")), "rd.driver.blacklist=nouveau"), GATE)
    assert said.status == "WARN"
    assert "only the initramfs keeps it out (rd.driver.blacklist=nouveau)" in said.reason


def test_a_kernel_without_nouveau_needs_no_line() -> None:
    machine = with_modules(wanting("rtx4090"), {"updates/dkms/nvidia.ko": a_module("nvidia")})
    assert verdict(machine, GATE).status == "PASS"


def test_nova_core_of_a_newer_kernel() -> None:
    """Ubuntu's kernel has nova_core (beclab/Olares#3963): a line about nouveau does not keep it out."""
    files = {"kernel/drivers/gpu/nova-core/nova-core.ko": a_module("nova_core"), NOUVEAU: a_module("nouveau")}
    machine = with_modules(wanting("rtx4090"), files).with_file(CONF, "blacklist nouveau\n")
    said = verdict(machine, GATE)
    assert said.reason.startswith("nova_core may take the NVIDIA card")
    assert said.fix[0].lines == ("blacklist nova_core", "blacklist nova_drm")


@pytest.mark.parametrize(
    ("conf", "arguments", "how"),
    [
        ("blacklist nvidia\n", "", "`blacklist nvidia`, so it no longer loads by itself"),
        ("install nvidia /bin/true\n", "", "so modprobe refuses it, by name too"),
        ("", "module_blacklist=nvidia", "so the kernel refuses it whoever loads it"),
    ],
)
@pytest.mark.proves(GATE, "WARN", on="tree")
def test_a_driver_that_is_kept_out(conf: str, arguments: str, how: str) -> None:
    machine = wanting("rtx4090").with_wrong_driver("nvidia0", None).with_file(CONF, f"{conf}blacklist nouveau\n")
    said = verdict(booted_with(machine, arguments), GATE)
    assert said.status == "WARN"
    assert said.reason.startswith("nvidia is kept out: ")
    assert said.reason.endswith(how)
    expected = "# remove module_blacklist=nvidia from" if arguments else f"sudo sed -i '1s/^/# /' {CONF}"
    assert said.fix[0].lines[0].startswith(expected)


@pytest.mark.proves(GATE, "WARN", on="tree")
def test_a_blacklist_that_contradicts_what_is_loaded() -> None:
    """`blacklist` drops aliases only: the driver came by name or from the initramfs, and may not come again."""
    said = verdict(wanting("rx7900xtx").with_file(CONF, "# display\nblacklist amdgpu\n"), GATE)
    assert said.status == "WARN"
    assert said.reason.startswith(f"amdgpu is loaded although {CONF}:2 says `blacklist amdgpu`")


@pytest.mark.proves(GATE, "WARN", on="tree")
def test_nouveau_is_loaded_in_spite_of_its_blacklist() -> None:
    machine = wanting("rtx4090").with_wrong_driver("nvidia0", "nouveau").with_file(CONF, "blacklist nouveau\n")
    said = verdict(machine, GATE)
    assert said.reason.startswith(f"nouveau holds a card although {CONF}:1 says `blacklist nouveau`")
    assert said.fix[0].lines[0] == "sudo update-initramfs -u"


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ('ID=fedora\nVERSION_ID="42"', "sudo dracut --force"),
        ('ID="rocky"\nID_LIKE="rhel centos fedora"', "sudo dracut --force"),
        ("ID=arch", "sudo mkinitcpio -P"),
        ("ID=pop\nID_LIKE='ubuntu debian'", "sudo update-initramfs -u"),
        ('ID="opensuse-tumbleweed"', "sudo dracut --force"),
        ("ID=nixos", "# rebuild the initramfs with the tool of this distribution"),
    ],
)
def test_the_rebuild_in_the_words_of_the_distribution(line: str, command: str) -> None:
    machine = wanting("rtx4090").with_wrong_driver("nvidia0", "nouveau").with_file(CONF, "blacklist nouveau\n")
    said = verdict(machine.with_file("/etc/os-release", f"{line}\n"), GATE)
    assert said.fix[0].lines[0] == command


def test_nomodeset_keeps_amdgpu_from_its_card() -> None:
    machine = booted_with(wanting("rx7900xtx").with_wrong_driver("amd0", None), "nomodeset")
    said = verdict(machine, GATE)
    assert said.reason == "the kernel was booted with nomodeset, with which amdgpu drives no GPU"
    assert verdict(booted_with(wanting("rx7900xtx"), "nomodeset"), GATE).status == "PASS"


def test_modeset_0_for_amdgpu() -> None:
    machine = wanting("rx7900xtx").with_wrong_driver("amd0", None).with_file(CONF, "options amdgpu modeset=0\n")
    assert verdict(machine, GATE).reason == f"{CONF}:1 sets modeset=0 for amdgpu: it takes no GPU"


def test_one_of_intels_two_drivers_may_be_kept_out() -> None:
    assert verdict(wanting("arc-b580").with_file(CONF, "blacklist i915\n"), GATE).status == "PASS"
    assert verdict(wanting("arc-b580").with_file(CONF, "blacklist xe\n"), GATE).status == "WARN"


def test_debians_install_line_is_no_refusal() -> None:
    line = "install nvidia modprobe -i nvidia-current $CMDLINE_OPTS\nblacklist nouveau\n"
    assert verdict(wanting("rtx4090").with_file(CONF, line), GATE).status == "PASS"


def test_nobody_asks_for_the_card() -> None:
    said = verdict(a_machine().with_gpu("rtx4090", driver="nouveau").with_file(CONF, "blacklist nvidia\n"), GATE)
    assert said.status == "SKIP"


def test_a_container_judges_the_command_line_alone() -> None:
    machine = wanting("rtx4090").with_file(CONF, "blacklist nvidia\n").with_file("/.dockerenv", "")
    said = verdict(machine, GATE)
    assert said.status == "PASS"
    assert "modprobe.d is the host's" in said.reason


@pytest.mark.proves(GATE, "UNKNOWN", on="tree")
def test_a_file_that_cannot_be_read_may_say_anything() -> None:
    machine = wanting("rx7900xtx").with_file(CONF, "").with_error(CONF, errno.EACCES)
    said = verdict(machine, GATE)
    assert said.status == "UNKNOWN"
    assert CONF in said.reason


FOREIGN = "kmod.nv.foreign_loaded"


@pytest.mark.proves(FOREIGN, "PASS", on="tree")
def test_only_nvidia_is_loaded() -> None:
    assert verdict(wanting("rtx4090"), FOREIGN).reason == "only nvidia is loaded"


@pytest.mark.proves(FOREIGN, "WARN", on="tree")
def test_nouveau_and_nvidia_are_both_loaded() -> None:
    said = verdict(wanting("rtx4090").with_file("/sys/module/nouveau/initstate", "live\n"), FOREIGN)
    assert said.status == "WARN"
    assert said.reason == "nouveau is loaded beside nvidia and holds no card"


def test_nouveau_with_a_card_of_its_own() -> None:
    machine = wanting("rtx4090").with_gpu("rtx3090", driver="nouveau")
    assert verdict(machine, FOREIGN).status == "PASS"
    assert judged(a_machine().with_gpu("rtx4090", driver="nouveau"), FOREIGN).by_gate() == {FOREIGN: "SKIP"}


@pytest.mark.proves(FOREIGN, "UNKNOWN", on="tree")
def test_a_state_that_makes_no_sense() -> None:
    machine = wanting("rtx4090").with_file("/sys/module/nouveau/initstate", "?\n")
    assert verdict(machine, FOREIGN).status == "UNKNOWN"


ONE = "kmod.intel.one_driver"


def intel(model: str, arguments: str, status: str, words: str) -> object:
    return pytest.param(model, arguments, status, words, marks=pytest.mark.proves(ONE, status, on="tree"))


@pytest.mark.parametrize(
    ("model", "arguments", "status", "words"),
    [
        intel("uhd770", "", "PASS", "i915 holds it"),
        intel("arc-b580", "", "PASS", "xe holds it"),
        intel("arc-b580", "xe.force_probe=e20b", "PASS", "xe holds it"),
        intel("uhd770", "i915.force_probe=*", "PASS", "i915 holds it"),
        intel("uhd770", "xe.force_probe=a780", "WARN", "xe.force_probe asks xe to take it, and i915 does"),
        intel("uhd770", "i915.force_probe=!a780", "WARN", "i915 holds it although its force_probe forbids a780"),
    ],
)
def test_the_driver_that_force_probe_asks_for(model: str, arguments: str, status: str, words: str) -> None:
    said = verdict(booted_with(wanting(model), arguments), ONE)
    assert (said.status, said.reason) == (status, words)


def test_xe_forced_on_an_older_gpu() -> None:
    machine = wanting().with_gpu("uhd770", driver="xe")
    said = verdict(booted_with(machine, "i915.force_probe=!a780", "xe.force_probe=a780"), ONE)
    assert said.reason == "xe was forced on a780, which it does not support by itself"


def test_only_half_of_the_pair() -> None:
    machine = wanting().with_gpu("uhd770", driver=None).with_file(CONF, "options i915 force_probe=!a780\n")
    said = verdict(machine, ONE)
    assert said.status == "WARN"
    assert said.action == "add xe.force_probe=a780, or allow i915"


@pytest.mark.proves(ONE, "UNKNOWN", on="tree")
def test_an_id_that_makes_no_sense() -> None:
    machine = wanting("uhd770")
    path = machine.host().resolve("/sys/bus/pci/devices/0000:00:02.0")
    machine = machine.with_file(f"{path}/device", "?\n").without(f"{path}/uevent")
    assert verdict(machine, ONE).status == "UNKNOWN"
