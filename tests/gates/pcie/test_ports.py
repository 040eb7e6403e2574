"""Atomics, peer traffic and packet sizes of ports; power saving; replays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings, strategies as st

from pytest_gpucoexist.gates.pcie.saving import policy_of
from pytest_gpucoexist.host import open_recording
from pytest_gpucoexist.testing.builder import MachineBuilder, a_machine
from tests.gates.judging import verdict, verdicts
from tests.gates.pcie.trees import folder_of, port_of, put, space

if TYPE_CHECKING:
    from pathlib import Path

ROOT_COMPLETES, ROUTES, MAY_SEND = 0x180, 0x40, 0x40


def with_atomics(
    *, root: int = ROOT_COMPLETES, switch: int = ROUTES, gpu: int = MAY_SEND, model: str = "rx7900xtx"
) -> MachineBuilder:
    machine = a_machine().with_gpu(model)
    for number, kind in enumerate(("root", "upstream", "downstream")):
        bits = root if kind == "root" else switch
        machine = put(machine, port_of(machine, "amd0", number), "config", space(kind=kind, capabilities2=bits))
    return put(machine, "amd0", "config", space(kind="legacy", control2=gpu))


@pytest.mark.proves("pcie.atomics", "PASS", on="tree")
def test_atomics_reach_the_processor() -> None:
    assert verdict(with_atomics(), "pcie.atomics").status == "PASS"


@pytest.mark.proves("pcie.atomics", "WARN", on="tree")
@pytest.mark.parametrize(
    ("machine", "words"),
    [
        (with_atomics(root=0x80), "the root port completes none at 0000:00:01.1"),
        (with_atomics(switch=0), "the switch does not route them at 0000:01:00.0"),
        (with_atomics(gpu=0), "the GPU may not send them (ReqEn-)"),
    ],
)
def test_each_place_where_atomics_can_be_lost(machine: MachineBuilder, words: str) -> None:
    found = verdict(machine, "pcie.atomics")
    assert found.status == "WARN"
    assert words in found.reason
    assert "belongs to the processor" in found.action


@pytest.mark.proves("pcie.atomics", "FAIL", on="tree")
def test_a_card_that_rocm_was_set_up_for_and_kfd_left_out() -> None:
    # `kfd kfd: amdgpu: skipped device 1002:67df, PCI rejects atomics` (amdkfd/kfd_device.c)
    machine = with_atomics(root=0).without("/sys/class/kfd")
    found = verdict(machine, "pcie.atomics", promised={"rocm": 1})
    assert found.status == "FAIL"
    assert found.reason.endswith("KFD has left it out")
    assert verdict(machine, "pcie.atomics").status == "WARN", "nobody wants ROCm here"


def test_atomics_are_not_known_without_root() -> None:
    machine = put(with_atomics(), port_of(with_atomics(), "amd0"), "config", space(kind="root", size=64))
    assert verdict(machine, "pcie.atomics").status == "UNKNOWN"
    assert verdict(a_machine().with_gpu("radeon-780m"), "pcie.atomics").status == "SKIP"


@pytest.mark.proves("pcie.atomics", "WARN", on="recording")
def test_the_emulated_root_port_completes_no_atomics(shared: Path) -> None:
    found = {
        each.status: each
        for each in verdicts(open_recording(str(shared / "machines/vm-2node-switch.tar.gz")), "pcie.atomics")
    }
    assert found["WARN"].devices == ("0000:84:00.0",)
    assert found["SKIP"].reason == "no PCI Express device: it has no such link"


def two_below_a_switch(acs: int | None) -> MachineBuilder:
    machine = a_machine().with_switch("board").with_gpu("rtx4090", under="board").with_gpu("rtx4090", under="board")
    for gpu in ("nvidia0", "nvidia1"):
        machine = put(machine, port_of(machine, gpu, 2), "config", space(kind="downstream", acs=acs))
    return machine


@pytest.mark.proves("pcie.acs", "PASS", on="tree")
@pytest.mark.parametrize("acs", [None, 0x01])
def test_peers_below_a_switch_talk_directly(acs: int | None) -> None:
    # HGX H100, `lspci -vvv`: ACSCtl: SrcValid+ TransBlk- ReqRedir- CmpltRedir-
    assert {each.status for each in verdicts(two_below_a_switch(acs), "pcie.acs")} == {"PASS"}


@pytest.mark.proves("pcie.acs", "WARN", on="tree")
def test_a_switch_that_redirects() -> None:
    found = verdicts(two_below_a_switch(0x1D), "pcie.acs")
    assert [each.status for each in found] == ["WARN", "WARN"]
    assert found[0].evidence[0].found == "ReqRedir and CmpltRedir set"
    assert found[0].devices == ("0000:03:00.0", "0000:04:00.0")
    assert "disable_acs_redir" in found[0].action


def test_acs_where_it_does_not_matter() -> None:
    apart = a_machine().with_gpu("rtx4090").with_gpu("rtx4090")
    assert verdict(apart, "pcie.acs").reason == "no two GPUs here share a PCIe switch"
    guest = two_below_a_switch(0x1D).with_file("/proc/cpuinfo", "flags\t\t: fpu hypervisor\n")
    assert verdict(guest, "pcie.acs").status == "SKIP"
    user = two_below_a_switch(0x1D)
    for gpu in ("nvidia0", "nvidia1"):
        user = put(user, port_of(user, gpu, 2), "config", space(kind="downstream", size=64))
    assert {each.status for each in verdicts(user, "pcie.acs")} == {"UNKNOWN"}


def with_payloads(port: int, gpu: int, supported: int = 2) -> MachineBuilder:
    machine = a_machine().with_gpu("rtx4090")
    machine = put(machine, "nvidia0", "config", space(payload_code=gpu, supported_code=supported))
    return put(machine, port_of(machine, "nvidia0"), "config", space(kind="root", payload_code=port))


@pytest.mark.proves("pcie.mps", "PASS", on="tree")
def test_packets_fit() -> None:
    found = verdict(with_payloads(1, 1), "pcie.mps")
    assert found.reason == "packets of 256 bytes fit along the path (at most 512); reads of 512 bytes"
    assert verdict(with_payloads(2, 0), "pcie.mps").status == "PASS"


@pytest.mark.proves("pcie.mps", "WARN", on="tree")
def test_packets_that_a_port_does_not_take() -> None:
    found = verdict(with_payloads(0, 1), "pcie.mps")
    assert found.status == "WARN"
    assert found.reason == "0000:01:00.0 sends packets of 256 bytes, the port above takes 128"
    guest = with_payloads(0, 1).with_file("/proc/cpuinfo", "flags\t\t: fpu hypervisor\n")
    assert verdict(guest, "pcie.mps").reason == "in a virtual machine: the port above is emulated"


@pytest.mark.proves("pcie.mps", "PASS", on="recording")
def test_recorded_packet_sizes(shared: Path) -> None:
    found = verdicts(open_recording(str(shared / "machines/vm-2node-switch.tar.gz")), "pcie.mps")
    assert {each.status for each in found} == {"PASS", "SKIP"}


POLICY = "/sys/module/pcie_aspm/parameters/policy"


@pytest.mark.proves("pcie.aspm", "PASS", on="tree")
def test_the_firmware_decides_about_power_saving() -> None:
    machine = a_machine().with_gpu("rtx4090").with_file(POLICY, "[default] performance powersave powersupersave \n")
    assert verdict(machine, "pcie.aspm").reason == "the policy is default"


@pytest.mark.proves("pcie.aspm", "WARN", on="tree")
def test_power_saving_at_any_cost() -> None:
    machine = a_machine().with_gpu("rtx4090").with_file(POLICY, "default performance [powersave] powersupersave \n")
    found = verdict(put(machine, "nvidia0", "link/l1_aspm", "1\n"), "pcie.aspm")
    assert found.status == "WARN"
    assert found.fix[0].lines == ("pcie_aspm.policy=default",)
    assert [each.found for each in found.evidence] == ["powersave", "1"]


def test_power_saving_that_cannot_be_read() -> None:
    machine = a_machine().with_gpu("rtx4090")
    assert verdict(machine, "pcie.aspm").status == "SKIP"
    assert verdict(machine.with_file(POLICY, "[fast] slow"), "pcie.aspm").status == "UNKNOWN"


@settings(max_examples=100)
@given(st.text(alphabet="[] defaultprnmcowsvu", max_size=60))
def test_any_policy(text: str) -> None:
    assert policy_of(text) in {None, "default", "performance", "powersave", "powersupersave"}


REPLAY = "pcie.replay.amd"


@pytest.mark.proves(REPLAY, "PASS", on="tree")
def test_few_replays() -> None:
    machine = a_machine().with_gpu("rx7900xtx").with_file("/proc/uptime", "360000.00 1.00\n")
    assert verdict(put(machine, "amd0", "pcie_replay_count", "0\n"), REPLAY).status == "PASS"
    # x16 at 16 GT/s: 16 a minute are within the standard's bit error rate.
    assert verdict(put(machine, "amd0", "pcie_replay_count", "90000\n"), REPLAY).status == "PASS"


@pytest.mark.proves(REPLAY, "WARN", on="tree")
def test_many_replays() -> None:
    machine = a_machine().with_gpu("rx7900xtx").with_file("/proc/uptime", "360000.00 1.00\n")
    found = verdict(put(machine, "amd0", "pcie_replay_count", "120000\n"), REPLAY)
    assert (found.status, found.reason) == ("WARN", "20 packets a minute are sent again (120000 since boot)")
    assert found.evidence[0].expected == "at most 16 a minute"


def test_replays_that_are_not_told() -> None:
    machine = a_machine().with_gpu("rx7900xtx")
    assert verdict(machine, REPLAY).status == "SKIP"
    assert verdict(put(machine, "amd0", "pcie_replay_count", "lots\n"), REPLAY).status == "UNKNOWN"
    assert verdict(put(machine, "amd0", "pcie_replay_count", "7\n"), REPLAY).status == "UNKNOWN", "no /proc/uptime"
    denied = put(machine, "amd0", "pcie_replay_count", "7\n")
    denied = denied.with_error(f"{folder_of(machine, 'amd0')}/pcie_replay_count", 13)
    assert verdict(denied, REPLAY).status == "UNKNOWN"


@pytest.mark.proves(REPLAY, "PASS", on="recording")
def test_a_recorded_count(shared: Path) -> None:
    assert verdict(open_recording(str(shared / "machines/lact/lact-amd-rx6900xt.tar.xz")), REPLAY).status == "PASS"
