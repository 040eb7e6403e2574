"""Lines that keep drivers out, in modprobe.d and on the kernel's command line, against what is loaded."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.vm.guest.drivers import load, loaded, unload_all
from tests.vm.guest.judging import verdicts
from tests.vm.guest.system import BUS, RADEON0, kernel_log, read, run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FOLDER = "/etc/modprobe.d"


@pytest.fixture
def modprobe_d() -> Iterator[Callable[[str, str], None]]:
    """Write files of modprobe.d, which are gone after the test."""
    written: list[str] = []

    def add(name: str, text: str) -> None:
        written.append(f"{FOLDER}/{name}")
        with open(written[-1], "w", encoding="utf-8") as file:
            file.write(text)

    yield add
    for path in written:
        os.unlink(path)


@pytest.mark.proves("kmod.blacklist_conflict", "PASS", on="vm")
@pytest.mark.proves("kmod.nv.foreign_loaded", "PASS", on="vm")
@pytest.mark.proves("kmod.nv.required", "PASS", on="vm")
def test_nouveau_is_kept_out_as_it_should(modprobe_d: Callable[[str, str], None]) -> None:
    modprobe_d("blacklist-nouveau.conf", "blacklist nouveau\noptions nouveau modeset=0\n")
    load("nvidia", "nvidia-uvm")
    settings = {"promised": {"nvidia": 1}}
    for gate in ("kmod.blacklist_conflict", "kmod.nv.foreign_loaded", "kmod.nv.required"):
        (verdict,) = verdicts(gate, **settings)
        assert verdict.status == "PASS", verdict


@pytest.mark.proves("kmod.blacklist_conflict", "WARN", on="vm")
def test_a_line_against_the_driver_that_is_loaded(modprobe_d: Callable[[str, str], None]) -> None:
    modprobe_d("mistake.conf", "# for the virtual machine\nblacklist nvidia\n")
    load("nvidia")
    found = verdicts("kmod.blacklist_conflict", promised={"nvidia": 1})
    (verdict,) = (each for each in found if "nvidia is loaded" in each.reason)
    assert verdict.status == "WARN"
    assert f"{FOLDER}/mistake.conf:2 says `blacklist nvidia`" in verdict.reason
    assert "may be missing after a reboot" in verdict.reason
    assert f"sudo sed -i '2s/^/# /' {FOLDER}/mistake.conf" in verdict.fix[0].lines


@pytest.mark.proves("kmod.nv.required", "FAIL", on="vm")
def test_a_line_that_refuses_a_module_by_name(modprobe_d: Callable[[str, str], None]) -> None:
    modprobe_d("no-cuda.conf", "install nvidia_uvm /bin/false\n")
    load("nvidia")
    assert "nvidia_uvm" not in loaded()
    assert run("modprobe", "nvidia-uvm", check=False).returncode != 0
    assert "nvidia_uvm" not in loaded()
    (verdict,) = verdicts("kmod.nv.required")
    assert verdict.status == "FAIL"
    assert "nvidia_uvm is not loaded" in verdict.reason
    assert f"{FOLDER}/no-cuda.conf:1 says: install nvidia_uvm /bin/false" in verdict.reason


@pytest.mark.proves("kmod.nv.foreign_loaded", "WARN", on="vm")
def test_nouveau_and_nvidia_are_both_loaded() -> None:
    load("nvidia", "nouveau")
    assert {"nouveau", "nvidia"} <= set(loaded())
    (verdict,) = verdicts("kmod.nv.foreign_loaded")
    assert verdict.status == "WARN"
    assert "nouveau is loaded beside nvidia and holds no card" in verdict.reason
    assert verdict.fix[0].path == "/etc/modprobe.d/blacklist-nouveau.conf"
    assert "blacklist nouveau" in verdict.fix[0].lines


@pytest.mark.proves("kmod.blacklist_conflict", "WARN", on="vm")
def test_the_command_line_keeps_a_driver_from_loading_by_itself() -> None:
    """The machine is booted with `modprobe.blacklist=amdgpu`."""
    unload_all()
    alias = read(f"{BUS}/{RADEON0}/modalias")
    run("modprobe", "--use-blacklist", alias, check=False)
    assert "amdgpu" not in loaded()
    (kept_out,) = verdicts("kmod.blacklist_conflict", promised={"amd": 1})
    assert kept_out.status == "WARN"
    assert "amdgpu is kept out: /proc/cmdline says `modprobe.blacklist=amdgpu`" in kept_out.reason
    load("amdgpu")
    (by_name,) = verdicts("kmod.blacklist_conflict", promised={"amd": 1})
    assert by_name.status == "WARN"
    assert "amdgpu is loaded although /proc/cmdline says `modprobe.blacklist=amdgpu`" in by_name.reason
    assert "boot loader" in by_name.fix[0].lines[0]


def test_the_kernel_refuses_a_module_whoever_loads_it() -> None:
    """The machine is booted with `module_blacklist=radeon`."""
    assert run("modprobe", "radeon", check=False).returncode != 0
    assert "Module radeon is blacklisted" in kernel_log()
