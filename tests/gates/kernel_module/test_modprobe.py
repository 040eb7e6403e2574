"""The language of modprobe.d and of the kernel's command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings, strategies as st

from pytest_gpucoexist.gates.kernel_module.cmdline import blacklists, module_options, parse_cmdline, values
from pytest_gpucoexist.gates.kernel_module.modprobe import (
    effective_files,
    module_name,
    option_pairs,
    parse_file,
    refuses,
)
from pytest_gpucoexist.gates.kernel_module.rules import module_rules
from tests.gates.judging import subject_of
from tests.gates.kernel_module.installed import booted_with, wanting

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucoexist.gates.kernel_module.rules import ModuleRules
    from pytest_gpucoexist.testing.builder import MachineBuilder


def rules_of(machine: MachineBuilder) -> ModuleRules:
    return module_rules(subject_of(machine))


def with_conf(text: str, path: str = "/etc/modprobe.d/test.conf") -> MachineBuilder:
    return wanting("rtx4090").with_file(path, text)


def test_lines_of_a_file() -> None:
    text = (
        "# a comment \\\nblacklist hidden-by-the-comment\n"
        "\tblacklist  nvidia-drm # not a comment for modprobe\n"
        "options nvidia \\\n  NVreg_A=1 \\\n  NVreg_B=2\n"
        "blacklist\noptions lonely\nnonsense nouveau\n"
        "softdep nvidia post: nvidia-uvm\nremove nvidia /sbin/modprobe -r nvidia_drm\n"
        "alias char-major-195* nvidia\r\ninstall nouveau /bin/false"
    )
    found = [(each.command, each.module, each.value, each.line) for each in parse_file(text, "x.conf")]
    assert found == [
        ("blacklist", "nvidia_drm", "", 3),
        ("options", "nvidia", "NVreg_A=1   NVreg_B=2", 4),
        ("softdep", "nvidia", "post: nvidia-uvm", 10),
        ("remove", "nvidia", "/sbin/modprobe -r nvidia_drm", 11),
        ("alias", "char_major_195*", "nvidia", 12),
        ("install", "nouveau", "/bin/false", 13),
    ]


def test_names_and_patterns() -> None:
    assert module_name("snd-hda-intel") == "snd_hda_intel"
    assert module_name("pci:v000010DE-sv[0-9]") == "pci:v000010DE_sv[0-9]"


def test_the_first_folder_masks_a_file_and_names_give_the_order() -> None:
    files = effective_files(
        {
            "/etc/modprobe.d": ["z.conf", "nvidia.conf", ".hidden.conf", "old.conf.dpkg-bak"],
            "/run/modprobe.d": ["a.conf"],
            "/usr/lib/modprobe.d": ["nvidia.conf", "a.conf", "m.conf"],
        }
    )
    assert files == ["/run/modprobe.d/a.conf", "/usr/lib/modprobe.d/m.conf", "/etc/modprobe.d/nvidia.conf",
                     "/etc/modprobe.d/z.conf"]  # fmt: skip


def test_a_file_of_the_same_name_masks_the_distributions() -> None:
    machine = with_conf("blacklist nouveau\n", "/lib/modprobe.d/nvidia-graphics-drivers.conf")
    assert [block.strength for block in rules_of(machine).blocks("nouveau")] == ["alias"]
    masked = machine.with_file("/etc/modprobe.d/nvidia-graphics-drivers.conf", "# nothing\n")
    assert rules_of(masked).blocks("nouveau") == []


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("/bin/false", True),
        ("/usr/bin/true", True),
        (":", True),
        ("modprobe -i nvidia-current $CMDLINE_OPTS", False),
        ("/bin/false || modprobe -i nouveau", False),
        ("/sbin/modprobe --ignore-install nvidia; /bin/true", False),
    ],
)
def test_which_install_lines_refuse(value: str, expected: bool) -> None:
    (line,) = parse_file(f"install nvidia {value}", "x.conf")
    assert refuses(line) is expected


def test_blocks_by_strength() -> None:
    machine = with_conf(
        "blacklist nouveau\ninstall nouveau /bin/false\nalias nouveau off\nblacklist nouveau_but_longer\n"
    )
    machine = booted_with(
        machine, "module_blacklist=radeon,nouveau modprobe.blacklist=nouveau rd.driver.blacklist=nouveau"
    )
    blocks = rules_of(machine).blocks("nouveau")
    assert [(each.strength, each.text) for each in blocks] == [
        ("kernel", "module_blacklist=nouveau"),
        ("modprobe", "install nouveau /bin/false"),
        ("modprobe", "alias nouveau off"),
        ("alias", "modprobe.blacklist=nouveau"),
        ("alias", "blacklist nouveau"),
        ("initramfs", "rd.driver.blacklist=nouveau"),
    ]
    assert blocks[1].where == "/etc/modprobe.d/test.conf:2"


def test_options_of_several_files_and_the_command_line() -> None:
    machine = with_conf("options nvidia-drm modeset=0 fbdev=1\n", "/lib/modprobe.d/a.conf")
    machine = machine.with_file("/etc/modprobe.d/b.conf", "options nvidia_drm modeset=1\n")
    settings_ = rules_of(booted_with(machine, "nvidia-drm.fbdev=0", "nvidia_drm.other")).settings("nvidia-drm")
    assert {name: each.value for name, each in settings_.items()} == {"modeset": "1", "fbdev": "0", "other": "1"}
    assert settings_["modeset"].where == "/etc/modprobe.d/b.conf:1"
    assert settings_["fbdev"].where == "/proc/cmdline"


def test_pairs_of_options() -> None:
    assert option_pairs('NVreg_RegistryDwords="A=1;B=2 C" NVreg_B=0x1 flag "NVreg_C=0x02"') == {
        "NVreg_RegistryDwords": "A=1;B=2 C",
        "NVreg_B": "0x1",
        "flag": "1",
        "NVreg_C": "0x02",
    }


def test_the_command_line() -> None:
    text = 'BOOT_IMAGE=/vm root="LABEL=my root" "quoted arg=1 2" nomodeset i915.force_probe=!56a5 -- nouveau.modeset=0'
    arguments = parse_cmdline(text)
    assert [str(each) for each in arguments] == [
        "BOOT_IMAGE=/vm",
        "root=LABEL=my root",
        "quoted arg=1 2",
        "nomodeset",
        "i915.force_probe=!56a5",
    ]
    assert values(arguments, "nomodeset") == [""]
    assert module_options(arguments, "nouveau") == {}
    assert module_options(parse_cmdline("i915.force-probe=* i915.force_probe=!*"), "i915") == {"force_probe": "!*"}
    assert blacklists(parse_cmdline("module_blacklist=a-b,,c module_blacklist")) == [
        ("module_blacklist", "a_b"),
        ("module_blacklist", "c"),
    ]


def test_a_container_has_no_say_in_the_hosts_modules() -> None:
    machine = with_conf("blacklist nvidia\n").with_file("/.dockerenv", "")
    rules = rules_of(booted_with(machine, "module_blacklist=nouveau"))
    assert rules.blocks("nvidia") == []
    assert rules.blocks("nouveau")[0].strength == "kernel"
    assert "container" in (rules.unread or "")


def test_files_of_distributions(shared: Path) -> None:
    folder = shared / "machines/distro/modprobe.d"
    machine = wanting("rtx4090")
    for file in folder.iterdir():
        machine = machine.with_file(f"/usr/lib/modprobe.d/{file.name}", file.read_bytes())
    rules = rules_of(machine)
    assert [block.strength for block in rules.blocks("nouveau")] == ["alias"]
    assert rules.settings("nvidia-drm")["modeset"].value == "1"
    assert rules.settings("nvidia")["NVreg_TemporaryFilePath"].value == "/var/tmp"
    assert any(each.command == "softdep" and each.value == "post: nvidia-uvm nvidia-drm" for each in rules.directives)


texts = st.text(st.sampled_from("abinouveau dlkstf=-_\\\n#\"'[]*,.!\t\r\0é") | st.characters(), max_size=200)


@settings(max_examples=100)
@given(texts)
def test_no_text_breaks_the_parsers(text: str) -> None:
    for line in parse_file(text, "x.conf"):
        assert line.command
        assert line.module
        refuses(line)
        option_pairs(line.value)
    arguments = parse_cmdline(text)
    blacklists(arguments)
    assert all(each.name for each in arguments)
    module_options(arguments, "i915")


@settings(max_examples=50)
@given(st.binary(max_size=300))
def test_any_file_gives_rules(content: bytes) -> None:
    machine = wanting("rtx4090").with_file("/etc/modprobe.d/x.conf", content).with_file("/proc/cmdline", content)
    rules = rules_of(machine)
    rules.blocks("nouveau")
    rules.settings("nvidia")
