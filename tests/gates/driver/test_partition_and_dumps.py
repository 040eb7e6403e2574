"""Partitions of AMD's accelerators, and dumps of GPUs that crashed."""

from __future__ import annotations

import errno

import pytest

from pytest_gpucoexist.testing.builder import MachineBuilder, a_machine
from tests.gates.judging import verdict, verdicts
from tests.gates.kernel_module.installed import folder_of

PARTITION, DUMP = "drv.amd.partition", "drv.devcoredump"
DUMPS = "/sys/class/devcoredump"


def partitioned(*modes: tuple[str, str]) -> MachineBuilder:
    machine = a_machine()
    for _mode in modes:
        machine = machine.with_gpu("mi300x")
    addresses = [gpu for gpu in machine.host().list_dir("/sys/bus/pci/drivers/amdgpu") if ":" in gpu]
    for address, (compute, memory) in zip(addresses, modes, strict=True):
        folder = folder_of(machine, address)
        machine = machine.with_file(f"{folder}/current_compute_partition", f"{compute}\n")
        machine = machine.with_file(f"{folder}/current_memory_partition", f"{memory}\n")
    return machine


@pytest.mark.parametrize("mode", [("SPX", "NPS1"), ("CPX", "NPS4"), ("DPX", "NPS2")])
@pytest.mark.proves(PARTITION, "PASS", on="tree")
def test_one_mode_for_all_is_a_choice(mode: tuple[str, str]) -> None:
    said = verdict(partitioned(mode, mode), PARTITION)
    assert said.reason == f"its mode is {' '.join(mode)}"


@pytest.mark.proves(PARTITION, "WARN", on="tree")
def test_cards_of_one_model_that_differ() -> None:
    said = verdict(partitioned(("SPX", "NPS1"), ("CPX", "NPS1")), PARTITION)
    assert said.status == "WARN"
    assert said.reason == "cards of this model are partitioned differently: CPX NPS1, SPX NPS1"
    assert len(said.devices) == 2


@pytest.mark.proves(PARTITION, "UNKNOWN", on="tree")
def test_a_mode_that_makes_no_sense() -> None:
    assert verdict(partitioned(("UNKNOWN", "NPS1")), PARTITION).status == "UNKNOWN"
    assert verdict(partitioned(("SPX", "\x07")), PARTITION).status == "UNKNOWN"


def test_a_card_that_cannot_be_partitioned_and_one_that_sleeps() -> None:
    assert verdict(a_machine().with_gpu("rx7900xtx"), PARTITION).reason == "it cannot be partitioned"
    assert "asleep" in verdict(partitioned(("SPX", "NPS1")).sleep("amd0"), PARTITION).reason


def with_dumps(machine: MachineBuilder) -> MachineBuilder:
    """A kernel that keeps dumps: the class has the attribute `disabled` (drivers/base/devcoredump.c)."""
    return machine.with_file(f"{DUMPS}/disabled", "0\n")


@pytest.mark.proves(DUMP, "PASS", on="tree")
def test_no_dump() -> None:
    assert verdict(with_dumps(a_machine().with_gpu("rx7900xtx")), DUMP).reason == "no dump is kept"


@pytest.mark.proves(DUMP, "WARN", on="tree")
def test_a_dump_of_one_of_two_cards() -> None:
    machine = with_dumps(a_machine().with_gpu("rx7900xtx").with_gpu("arc-b580"))
    address = next(name for name in machine.host().list_dir("/sys/bus/pci/drivers/xe") if ":" in name)
    machine = machine.with_link(f"{DUMPS}/devcd1/failing_device", folder_of(machine, address))
    machine = machine.with_file(f"{DUMPS}/devcd1/data", "**** Xe Device Coredump ****\n")
    said = {each.devices: each for each in verdicts(machine, DUMP)}
    wrong = said[address,]
    assert wrong.status == "WARN"
    assert "crashed or hung" in wrong.reason
    assert wrong.fix[0].lines[1] == f"echo 1 | sudo tee {DUMPS}/devcd1/data"
    assert sorted(each.status for each in said.values()) == ["PASS", "WARN"]


def test_a_dump_of_another_kind_of_device_is_not_ours() -> None:
    machine = with_dumps(a_machine().with_gpu("rx7900xtx"))
    machine = machine.with_link(f"{DUMPS}/devcd1/failing_device", "/sys/devices/pci0000:00/0000:00:00.0")
    assert verdict(machine, DUMP).status == "PASS"


@pytest.mark.proves(DUMP, "PASS", on="tree")
@pytest.mark.proves(DUMP, "WARN", on="tree")
def test_the_error_state_of_i915() -> None:
    """The file says `No error state collected` (i915_sysfs.c), or begins with what the log said of the hang."""
    machine = a_machine().with_gpu("uhd770")
    path = f"{machine.host().resolve('/sys/class/drm/card0')}/error"
    assert verdict(machine.with_file(path, "No error state collected\n"), DUMP).status == "PASS"
    hang = "GPU HANG: ecode 12:1:85dffffb, in glxgears [3021]\nKernel: 6.8.0-60-generic x86_64\n"
    said = verdict(machine.with_file(path, hang), DUMP)
    assert said.status == "WARN"
    assert said.evidence[0].found == "GPU HANG: ecode 12:1:85dffffb, in glxgears [3021]"


@pytest.mark.proves(DUMP, "UNKNOWN", on="tree")
def test_an_error_state_that_only_root_may_read() -> None:
    machine = a_machine().with_gpu("uhd770").with_error("/sys/class/drm/card0/error", errno.EACCES)
    said = verdict(machine, DUMP)
    assert said.status == "UNKNOWN"
    assert "Permission denied" in said.reason
