"""Displays, an integrated GPU beside cards, and the CPUs' clock."""

from __future__ import annotations

import pytest

from pytest_gpucoexist.testing.builder import MachineBuilder, a_machine
from tests.gates.judging import verdict, verdicts

ONE = a_machine().with_gpu("rtx4090")
BARE_APU = a_machine().with_gpu("radeon-780m").with_gpu("rx7900xtx").with_environ(HOME="/home/u")
APU = BARE_APU.with_file("/opt/rocm/.info/version", "6.4.1-83\n")
POLICY = "/sys/devices/system/cpu/cpufreq/policy{}"


def connector(machine: MachineBuilder, name: str, status: str) -> MachineBuilder:
    """A connector as drm_sysfs.c shows it: a folder of the card, and a link in the class."""
    folder = f"/sys/devices/virtual/fake/{name}"
    return machine.with_file(f"{folder}/status", status).with_link(f"/sys/class/drm/{name}", folder)


@pytest.mark.proves("topo.boot_display", "PASS", on="tree")
def test_no_monitor() -> None:
    machine = connector(connector(ONE, "card0-DP-1", "disconnected\n"), "card0-HDMI-A-1", "disconnected\n")
    assert verdict(machine, "topo.boot_display").reason == "no monitor is connected to it"
    assert "was not the display at boot" in verdict(ONE, "topo.boot_display").reason
    assert verdict(a_machine().with_gpu("a100"), "topo.boot_display").reason == "its class is not that of a display"


@pytest.mark.proves("topo.boot_display", "WARN", on="tree")
def test_a_gpu_that_drives_a_monitor() -> None:
    machine = connector(connector(ONE, "card0-DP-1", "connected\n"), "card0-Writeback-1", "unknown\n")
    said = verdict(machine, "topo.boot_display")
    assert said.reason == "it drives a display (DP-1)"
    # A connector of another card is not this one's.
    assert verdict(connector(ONE, "card1-DP-1", "connected\n"), "topo.boot_display").status == "PASS"


def test_the_display_of_a_processor_is_nobodys_test_gpu() -> None:
    machine = connector(a_machine().with_gpu("uhd770"), "card0-eDP-1", "connected\n")
    said = verdict(machine, "topo.boot_display")
    assert (said.status, said.reason) == (
        "SKIP",
        "it drives a display (eDP-1), and nothing here asks for Intel GPUs",
    )


@pytest.mark.parametrize("text", ["", "perhaps", "\0"])
def test_a_connector_that_makes_no_sense_is_unknown(text: str) -> None:
    assert verdict(connector(ONE, "card0-DP-1", text), "topo.boot_display").status == "UNKNOWN"
    boot = a_machine().with_gpu("rtx4090", boot_vga=True)
    assert verdict(boot, "topo.boot_display").status == "UNKNOWN"


@pytest.mark.proves("topo.igpu_visible", "WARN", on="tree")
def test_an_integrated_gpu_beside_a_card() -> None:
    # lemonade-sdk/lemonade#1921: the APU is in the list, and programs for the card crash on it.
    said = verdict(APU, "topo.igpu_visible")
    (card,) = [each.partition(": ")[2].split()[0] for each in said.evidence[0].found.split(", ") if "discrete" in each]
    assert f"the processor's own GPU ({'amd1' if card == 'amd0' else 'amd0'}" in said.reason
    line = said.fix[0].lines[0]
    assert line.startswith("export ROCR_VISIBLE_DEVICES=GPU-")
    hidden = APU.with_environ(ROCR_VISIBLE_DEVICES=line.partition("=")[2])
    assert verdict(hidden, "topo.igpu_visible").reason == "the integrated GPU and the cards are not both visible"


@pytest.mark.proves("topo.igpu_visible", "PASS", on="tree")
def test_cards_alone_and_an_apu_alone() -> None:
    assert verdict(a_machine().with_gpu("mi210"), "topo.igpu_visible").status == "PASS"
    assert verdict(a_machine().with_gpu("radeon-780m"), "topo.igpu_visible").status == "PASS"
    assert verdict(BARE_APU, "topo.igpu_visible").reason.endswith("nothing here uses ROCm")
    wheel = BARE_APU.with_distribution("torch", "2.7.1+rocm6.3")
    assert verdict(wheel, "topo.igpu_visible").status == "WARN"


@pytest.mark.proves("topo.cpu_governor", "PASS", on="tree")
@pytest.mark.parametrize(
    ("governor", "driver"),
    [
        ("performance", "acpi-cpufreq"),
        ("schedutil", "amd-pstate"),
        ("powersave", "intel_pstate"),
        ("powersave", "amd-pstate-epp"),
    ],
)
def test_cpus_that_follow_the_load(governor: str, driver: str) -> None:
    machine = ONE.with_file(f"{POLICY.format(0)}/scaling_governor", f"{governor}\n")
    machine = machine.with_file(f"{POLICY.format(0)}/scaling_driver", f"{driver}\n")
    assert verdict(machine, "topo.cpu_governor").reason == f"the CPUs follow the load (1 {governor})"


@pytest.mark.proves("topo.cpu_governor", "WARN", on="tree")
def test_cpus_at_their_lowest_clock() -> None:
    machine = ONE
    for number, governor in enumerate(("performance", "powersave")):
        machine = machine.with_file(f"{POLICY.format(number)}/scaling_governor", f"{governor}\n")
        machine = machine.with_file(f"{POLICY.format(number)}/scaling_driver", "acpi-cpufreq\n")
    said = verdict(machine, "topo.cpu_governor")
    assert said.reason == "the governor powersave of acpi-cpufreq keeps CPUs at their lowest clock"
    assert said.fix[0].lines == ("sudo cpupower frequency-set -g performance",)


@pytest.mark.parametrize("text", ["", "?", "a b", "\0", "x" * 99])
def test_a_governor_that_makes_no_sense_is_unknown(text: str) -> None:
    machine = ONE.with_file(f"{POLICY.format(0)}/scaling_governor", text)
    assert verdict(machine, "topo.cpu_governor").status == "UNKNOWN"
    (said,) = verdicts(ONE, "topo.cpu_governor")
    assert said.status == "SKIP"
