"""Errors that the kernel has counted, and errors that the hardware has latched."""

from __future__ import annotations

import lzma
import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings, strategies as st

from pytest_gpucoexist.gates.pcie.config_space import UNCORRECTABLE as UNCORRECTABLE_NAMES
from pytest_gpucoexist.gates.pcie.errors import counters_of
from pytest_gpucoexist.host import open_recording
from pytest_gpucoexist.testing.builder import MachineBuilder, a_machine
from tests.gates.judging import verdict, verdicts
from tests.gates.pcie.trees import port_of, put, space

if TYPE_CHECKING:
    from pathlib import Path

COUNTERS = "pcie.aer_counters"
LATCHED = "pcie.aer_latched"

# What aer_stats_dev_attr (drivers/pci/pcie/aer.c) prints, from the recorded virtual workstation's kernel 6.1.
CORRECTABLE = ("RxErr", "BadTLP", "BadDLLP", "Rollover", "Timeout", "NonFatalErr", "CorrIntErr", "HeaderOF")
UNCORRECTABLE = (
    *("Undefined", "DLP", "SDES", "TLP", "FCP", "CmpltTO", "CmpltAbrt", "UnxCmplt", "RxOF", "MalfTLP", "ECRC"),
    *("UnsupReq", "ACSViol", "UncorrIntErr", "BlockedTLP", "AtomicOpBlocked", "TLPBlockedErr", "PoisonTLPBlocked"),
)


def table(names: tuple[str, ...], total: str, **counts: int) -> str:
    lines = [f"{name} {counts.get(name, 0)}" for name in names]
    return "\n".join([*lines, f"{total} {sum(counts.values())}"]) + "\n"


def counting(machine: MachineBuilder, who: str, **counts: dict[str, int]) -> MachineBuilder:
    """Give a function all three files; `fatal={"MalfTLP": 1}` and so on."""
    for kind, names, total in (
        ("correctable", CORRECTABLE, "TOTAL_ERR_COR"),
        ("fatal", UNCORRECTABLE, "TOTAL_ERR_FATAL"),
        ("nonfatal", UNCORRECTABLE, "TOTAL_ERR_NONFATAL"),
    ):
        machine = put(machine, who, f"aer_dev_{kind}", table(names, total, **counts.get(kind, {})))
    return machine


ONE = a_machine().with_gpu("rtx4090").with_file("/proc/uptime", "360000.51 2870000.10\n")


@pytest.mark.proves(COUNTERS, "PASS", on="tree")
def test_nothing_counted() -> None:
    machine = counting(counting(ONE, "nvidia0"), port_of(ONE, "nvidia0"))
    found = verdict(machine, COUNTERS)
    assert (found.status, found.reason) == ("PASS", "no uncorrected error counted since boot")
    assert found.evidence[0].found == "6 files, all within limits"


@pytest.mark.proves(COUNTERS, "PASS", on="recording")
@pytest.mark.parametrize(
    "name", ["vm-2node-switch.tar.gz", "lact/lact-amd-vega56.tar.xz", "procfs/procfs-amdgpu-i915.tar.xz"]
)
def test_recorded_counters(shared: Path, name: str) -> None:
    found = verdicts(open_recording(str(shared / "machines" / name)), COUNTERS)
    assert {each.status for each in found} - {"SKIP"} == {"PASS"}


@pytest.mark.proves(COUNTERS, "FAIL", on="tree")
@pytest.mark.parametrize(("kind", "name"), [("fatal", "MalfTLP"), ("nonfatal", "CmpltTO")])
def test_an_uncorrected_error_at_the_card_or_its_port(kind: str, name: str) -> None:
    for who in ("nvidia0", port_of(ONE, "nvidia0")):
        found = verdict(counting(ONE, who, **{kind: {name: 2}}), COUNTERS)
        assert found.status == "FAIL"
        assert "PCIe errors since boot: 2 at 0000:0" in found.reason
        assert f"({name} 2)" in found.reason
        assert found.devices == ("0000:01:00.0",)
        assert not found.blocks
        assert "Reseat" in found.action


@pytest.mark.proves(COUNTERS, "WARN", on="tree")
def test_what_enumeration_leaves_behind_and_what_others_share_only_warns() -> None:
    few = verdict(counting(ONE, "nvidia0", nonfatal={"UnsupReq": 3}), COUNTERS)
    assert (few.status, "turned away: 3 at 0000:01:00.0 (UnsupReq 3)" in few.reason) == ("PASS", True)
    found = verdict(counting(ONE, "nvidia0", nonfatal={"UnsupReq": 300}), COUNTERS)
    assert found.status == "WARN"
    assert "no data lost" in found.reason
    board = a_machine().with_switch("board").with_gpu("rtx4090", under="board")
    root = port_of(board, "nvidia0")
    shared_port = verdict(counting(board, root, fatal={"MalfTLP": 1}), COUNTERS)
    assert shared_port.status == "WARN"
    assert "other devices share it" in shared_port.reason
    egpu = put(ONE, "nvidia0", "removable", "removable\n")
    unplugged = verdict(counting(egpu, port_of(egpu, "nvidia0"), fatal={"SDES": 1}), COUNTERS)
    assert unplugged.status == "WARN"
    assert "unplugged" in unplugged.reason


@pytest.mark.proves(COUNTERS, "WARN", on="tree")
def test_corrected_errors_count_by_the_minute() -> None:
    # 6,000 minutes of uptime: 60,000 errors are ten a minute.
    noisy = counting(ONE, port_of(ONE, "nvidia0"), correctable={"RxErr": 59000, "Timeout": 1000})
    found = verdict(noisy, COUNTERS)
    assert found.status == "WARN"
    assert found.reason.startswith("10 corrected PCIe errors a minute since boot: 60000 at 0000:00:01.1 (RxErr 59000")
    assert verdict(noisy, COUNTERS, limits={COUNTERS: {"corrected_per_minute": 20}}).status == "PASS"
    few = counting(ONE, "nvidia0", correctable={"RxErr": 50}).with_file("/proc/uptime", "20.00 100.00\n")
    assert verdict(few, COUNTERS).status == "PASS", "a minute after boot says nothing about a rate"
    assert verdict(noisy.with_file("/proc/uptime", "soon"), COUNTERS).status == "UNKNOWN"


def test_no_counters_and_counters_that_make_no_sense() -> None:
    assert verdict(ONE, COUNTERS).status == "SKIP"
    garbage = put(ONE, "nvidia0", "aer_dev_fatal", "RxErr many\n")
    assert verdict(garbage, COUNTERS).status == "UNKNOWN"
    partly = put(counting(ONE, "nvidia0"), "nvidia0", "aer_dev_fatal", "")
    assert {each.status for each in verdicts(partly, COUNTERS)} == {"UNKNOWN"}
    worse = put(counting(ONE, "nvidia0", fatal={"DLP": 1}), "nvidia0", "aer_dev_nonfatal", "no")
    assert {each.status for each in verdicts(worse, COUNTERS)} == {"FAIL", "UNKNOWN"}


def test_counters_of_older_kernels() -> None:
    # Before 5.2 the names were sentences (aer_correctable_error_string, drivers/pci/pcie/aer.c).
    assert counters_of("Receiver Error 3\nBad TLP 0\nTOTAL_ERR_COR 3\n") == (3, {"Receiver Error": 3})
    assert counters_of("RxErr 0\n") is None


@settings(max_examples=100)
@given(st.text(max_size=60))
def test_any_counters(text: str) -> None:
    found = counters_of(text)
    assert found is None or "TOTAL_ERR_" in text


@pytest.mark.proves(LATCHED, "PASS", on="tree")
def test_nothing_latched() -> None:
    machine = put(ONE, "nvidia0", "config", space())
    found = verdict(put(machine, port_of(ONE, "nvidia0"), "config", space(kind="root")), LATCHED)
    assert (found.status, found.evidence[0].found) == ("PASS", "no error latched in 2 functions on the path")


@pytest.mark.proves(LATCHED, "PASS", on="recording")
def test_recorded_registers(shared: Path) -> None:
    found = verdicts(open_recording(str(shared / "machines/lact/lact-intel-b580.tar.xz")), LATCHED)
    assert [each.status for each in found] == ["PASS"]


@pytest.mark.proves(LATCHED, "WARN", on="tree")
def test_errors_in_silicon_that_the_log_does_not_have() -> None:
    # minisforum-docs/MS-02-Ultra#32: eGPU 0x00004000 (completion timeout), the bridge above it 0x00040000 (malformed
    # TLP), Device Status with fatal detected, and a kernel log without a word.
    machine = put(ONE, "nvidia0", "config", space(aer=(0x4000, 0, 0x3000), device_status=0b0011))
    port = port_of(ONE, "nvidia0")
    machine = put(machine, port, "config", space(kind="root", aer=(0x40000, 0, 0x41), device_status=0b0101))
    found = verdict(machine, LATCHED)
    assert found.status == "WARN"
    assert found.reason == f"uncorrected PCIe errors are latched: CmpltTO at 0000:01:00.0; MalfTLP at {port}"
    assert "setpci" in found.action


@pytest.mark.proves(LATCHED, "WARN", on="tree")
def test_a_device_without_aer_says_it_in_its_status() -> None:
    machine = put(ONE, "nvidia0", "config", space(aer=None, device_status=0b0100))
    assert verdict(machine, LATCHED).reason == (
        "uncorrected PCIe errors are latched: fatal error detected at 0000:01:00.0"
    )


def test_unsupported_requests_are_everyday() -> None:
    # A healthy HGX H100 has seven functions like this: DevSta: CorrErr+ NonFatalErr+ FatalErr- UnsupReq+, and
    # UESta: … UnsupReq+ (`lspci -vvv`, 517 functions).
    machine = put(ONE, "nvidia0", "config", space(aer=(1 << 20, 0, 0x2000), device_status=0b1011))
    assert verdict(machine, LATCHED).status == "PASS"


@pytest.mark.proves(LATCHED, "PASS", on="recording")
@pytest.mark.parametrize("name", ["gpud-lspci-vvv.txt.xz", "stelline-puget-threadripper-pro-wrx90.txt"])
def test_registers_of_healthy_machines_as_lspci_printed_them(shared: Path, name: str) -> None:
    """An HGX H100 with 517 functions, a workstation with two RTX 6000 Ada: no register is held against them."""
    path = shared / "machines/lspci" / name
    data = lzma.decompress(path.read_bytes()) if name.endswith(".xz") else path.read_bytes()
    statuses = set()
    for block in re.split(r"\n\n", data.decode()):
        status = re.search(r"DevSta:\s*(.*)", block)
        if status is not None:
            latched = re.search(r"UESta:\s*(.*)", block)
            statuses.add((_bits(status[1], DEVICE_STATUS), _bits(latched[1], UNCORRECTABLE_BITS) if latched else None))
    assert len(statuses) > 1
    for device_status, uncorrectable in statuses:
        aer = None if uncorrectable is None else (uncorrectable, 0, 0)
        machine = put(ONE, "nvidia0", "config", space(aer=aer, device_status=device_status))
        assert verdict(machine, LATCHED).status == "PASS", (device_status, uncorrectable)


DEVICE_STATUS = {"CorrErr": 0, "NonFatalErr": 1, "FatalErr": 2, "UnsupReq": 3}
UNCORRECTABLE_BITS = {name: bit for bit, name in UNCORRECTABLE_NAMES.items()}


def _bits(text: str, names: dict[str, int]) -> int:
    return sum(1 << bit for name, bit in names.items() if re.search(rf"\b{name}\+", text))


def test_without_root_nothing_is_known_and_a_sleeping_gpu_is_left_alone() -> None:
    found = verdict(put(ONE, "nvidia0", "config", space(size=64)), LATCHED)
    assert (found.status, found.reason) == (
        "UNKNOWN",
        "its error registers cannot be read: only its first 64 bytes may be read without root",
    )
    asleep = put(a_machine().with_gpu("rtx4090").sleep("nvidia0"), "nvidia0", "config", space(aer=(0x4000, 0, 0)))
    assert verdict(asleep, LATCHED).status == "SKIP"
