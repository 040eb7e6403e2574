"""What surrounds a line: the session, the device, and what came after."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist.kernellog.classify import classify
from pytest_gpucoexist.kernellog.parse import parse_log
from pytest_gpucoexist.kernellog.places import normal_address
from pytest_gpucoexist.kernellog.report import findings_in, judge_text
from pytest_gpucoexist.kernellog.xids import XIDS, recovery_action, xid_policy

if TYPE_CHECKING:
    from pytest_gpucoexist.kernellog.classify import LogFinding


def _judged(text: str, since_s: float | None = None) -> list[tuple[str, str]]:
    return [(found.rule, found.severity) for found in classify(parse_log(text), since_s=since_s)]


def _only(text: str) -> LogFinding:
    (found,) = findings_in(text)
    return found


# --- the session


@pytest.mark.parametrize(
    ("line", "before", "now"),
    [
        ("NVRM: Xid (PCI:0000:01:00): 13, pid=1, name=x, Graphics Exception", "info", "warn"),
        ("NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.", "fail", "fail"),
        ("NVRM: Xid (PCI:0000:01:00): 94, pid=1, name=x, Contained", "warn", "fail"),
        ("NVRM: Xid (PCI:0000:01:00): 149, NETIR Fatal XC0", "warn", "fail"),
        ("NVRM: Xid (PCI:0000:01:00): 999, pid=1, name=x, new", "info", "warn"),
        ("amdgpu 0000:08:00.0: amdgpu: GPU reset begin!", "warn", "fail"),
        ("amdgpu 0000:08:00.0: amdgpu: ring gfx_0.0.0 timeout, signaled seq=1, emitted seq=3", "warn", "fail"),
        ("amdgpu 0000:08:00.0: amdgpu: GPU reset(2) failed", "fail", "fail"),
        ("nvidia 0000:07:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x3 address=0x1]", "warn", "fail"),
        ("kfd kfd: amdgpu: skipped device 1002:67df, PCI rejects atomics", "fail", "fail"),
    ],
)  # fmt: skip
def test_before_the_session_and_in_it(line: str, before: str, now: str) -> None:
    text = f"[   10.0] {line}\n[  200.0] {line}\n"
    assert [severity for _, severity in _judged(text, since_s=100.0)] == [before, now]
    assert [severity for _, severity in _judged(text)] == [now, now]


def test_a_record_without_a_boot_clock_counts_as_of_now() -> None:
    assert _judged("amdgpu 0000:08:00.0: amdgpu: GPU reset begin!", since_s=100.0) == [("amd.reset_begin", "fail")]


def test_an_older_recommendation_gives_way_to_a_newer() -> None:
    changed = "154, GPU recovery action changed from"
    text = (
        f"[ 10.0] NVRM: Xid (PCI:0000:01:00): {changed} 0x0 (None) to 0x1 (GPU Reset Required)\n"
        f"[ 20.0] NVRM: Xid (PCI:0000:02:00): {changed} 0x0 (None) to 0x4 (Drain and Reset)\n"
        f"[ 30.0] NVRM: Xid (PCI:0000:01:00): {changed} 0x1 (GPU Reset Required) to 0x0 (None)\n"
    )
    assert [severity for _, severity in _judged(text, since_s=100.0)] == ["info", "fail", "info"]
    assert recovery_action(text.split("\n")[1]) == "Drain and Reset"


def test_unknown_codes_say_so() -> None:
    assert 999 not in XIDS
    assert "999" in xid_policy(999).meaning
    assert "not in the table" in _only("NVRM: Xid (PCI:0000:01:00): 999, pid=1, name=x, new").meaning


# --- the device


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0000:44:00", "0000:44:00.0"),
        ("00000000:44:00.1", "0000:44:00.1"),
        ("44:00.0", "0000:44:00.0"),
        ("10000:01:00.0", "10000:01:00.0"),
        ("0002:00", "0000:02:00.0"),
        ("0000:C1:00.0", "0000:c1:00.0"),
        ("0001:ab:cd", "0001:ab:cd.0"),  # no such device, but a test of NVSentinel has it
        ("nonsense", None),
    ],
)
def test_addresses_are_written_as_sysfs_does(text: str, address: str | None) -> None:
    assert normal_address(text) == address


def test_what_looks_like_an_address_is_none() -> None:
    for text in ("at 12:34:56 INFO: task x:1 blocked for more than 120 seconds.", "kfd kfd: added device 1002:7551"):
        assert _only(text).pci_address is None


def test_a_line_is_mapped_to_the_function_that_exists() -> None:
    known = ("0000:01:00.0", "0000:44:00.0")
    text = (
        "NVRM: Xid (PCI:0000:44:00): 79, gone\n"
        "snd_hda_intel 0000:01:00.1: AER: can't recover (no error_detected callback)\n"
        "snd_hda_intel 0000:02:00.1: AER: can't recover (no error_detected callback)\n"
    )
    found = classify(parse_log(text), functions=known)
    assert [finding.pci_address for finding in found] == ["0000:44:00.0", "0000:01:00.0", "0000:02:00.1"]


def test_a_line_with_a_uuid_alone_is_mapped() -> None:
    uuid = "GPU-fa4e0000-0000-0000-0000-000000000001"
    line = f"NVRM: GSP task hung on {uuid}"
    assert _only(line).pci_address is None
    (found,) = classify(parse_log(line), uuids={uuid: "0000:9b:00.0"})
    assert found.pci_address == "0000:9b:00.0"
    assert _only(f"NVRM: GPU at PCI:0000:9b:00: {uuid}\n{line}").pci_address == "0000:9b:00.0"


def test_the_device_of_kmsg_is_used() -> None:
    found = _only("3,1,2,-;[drm] VRAM is lost due to GPU reset!\n SUBSYSTEM=pci\n DEVICE=+pci:0000:08:00.0")
    assert found.pci_address == "0000:08:00.0"
    assert _only("3,1,2,-;[drm] VRAM is lost due to GPU reset!\n DEVICE=+pci:nonsense").pci_address is None


def test_a_message_of_several_lines_names_its_device_once() -> None:
    lines = [
        "NVRM: The NVIDIA GPU 0000:44:00.0",
        "NVRM: (PCI ID: 10de:2330) installed in this system has",
        "NVRM: fallen off the bus and is not responding to commands.",
    ]
    for stamp in ("", "[ 5.25] ", "Nov 30 12:00:00 host kernel: "):
        found = _only("\n".join(stamp + line for line in lines))
        assert (found.rule, found.pci_address) == ("nv.fallen_off_bus", "0000:44:00.0")


def test_bar_messages_name_their_device_in_the_next_line() -> None:
    text = (
        "NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:\n"
        "NVRM: BAR1 is 0M @ 0x0 (PCI:0000:0a:00.0)"
    )
    assert [found.pci_address for found in findings_in(text)] == ["0000:0a:00.0"] * 2


def test_another_story_lends_no_device() -> None:
    text = (
        "[   1.0] NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x62:0x40:2393)\n"
        "[  90.0] NVRM: The NVIDIA probe routine failed for 1 device(s).\n"
    )
    assert [found.pci_address for found in findings_in(text)] == ["0000:01:00.0", None]
    bare = "NVRM: GPU at 0000:01:00.0 has fallen off the bus.\nNVRM: The NVIDIA probe routine failed for 1 device(s)."
    assert [found.pci_address for found in findings_in(bare)] == ["0000:01:00.0", None]


def test_drm_lines_take_the_device_of_the_driver_beside_them() -> None:
    text = (
        "[  10.0] [drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring gfx timeout, signaled seq=1, emitted seq=3\n"
        "[  10.1] amdgpu 0000:08:00.0: amdgpu: GPU reset begin!\n"
        "[  90.0] [drm] VRAM is lost due to GPU reset!\n"
    )
    assert [found.pci_address for found in findings_in(text)] == ["0000:08:00.0", "0000:08:00.0", None]
    two = text.replace("[  90.0]", "[  10.2] amdgpu 0000:09:00.0: amdgpu: MODE1 reset\n[  10.3]")
    assert [found.pci_address for found in findings_in(two)] == [None, "0000:08:00.0", None]


def test_a_firmware_record_names_its_device_below() -> None:
    text = (
        "{1}[Hardware Error]: Hardware error from APEI Generic Hardware Error Source: 1\n"
        "{1}[Hardware Error]: event severity: recoverable\n"
        "{1}[Hardware Error]:   section_type: PCIe error\n"
        "{1}[Hardware Error]:   device_id: 0000:5e:00.0\n"
        "{1}[Hardware Error]:   vendor_id: 0x144d, device_id: 0xa808\n"
    )
    assert [(found.rule, found.pci_address) for found in findings_in(text)] == [("sys.apei_pcie", "0000:5e:00.0")] * 2


def test_the_vendor_is_that_of_the_driver_in_the_line() -> None:
    assert _only("nvidia 0000:01:00.0: AER: can't recover (no error_detected callback)").vendor == "nvidia"
    assert _only("amdgpu 0000:2d:00.0: swiotlb buffer is full (sz: 2097152 bytes)").vendor == "amd"
    assert _only("xe 0000:03:00.0: Direct firmware load for xe/bmg_guc_70.bin failed with error -2").vendor == "intel"
    assert _only("sched: RT throttling activated").vendor == "any"


def test_process_and_pid() -> None:
    found = _only("NVRM: Xid (PCI:0000:38:00): 43, pid=2924364, name=pt_main_thread, Ch 00000008")
    assert (found.pid, found.process) == (2924364, "pt_main_thread")
    found = _only("NVRM: Xid (PCI:0000:0a:00): 45, pid='<unknown>', name=<unknown>, Ch 00000008")
    assert (found.pid, found.process) == (None, None)
    assert _only("NVRM: krcRcAndNotifyAllChannels_IMPL: RC all channels for critical error 79.").xid == 79


# --- what came after


def test_a_window_that_was_assigned_later_is_a_warning() -> None:
    text = (
        "pci 0000:01:00.0: BAR 1: no space for [mem size 0x10000000 64bit pref]\n"
        "pci 0000:01:00.0: BAR 3: no space for [mem size 0x02000000 64bit pref]\n"
        "pci 0000:01:00.0: BAR 1: assigned [mem 0x4000000000-0x400fffffff 64bit pref]\n"
    )
    assert _judged(text) == [("pci.bar_mem", "warn"), ("pci.bar_mem", "fail")]
    new = (
        "pci 0000:01:00.0: BAR 1 [mem size 0x10000000 64bit pref]: can't assign; no space\n"
        "pci 0000:01:00.0: BAR 1 [mem 0x4000000000-0x400fffffff 64bit pref]: assigned\n"
    )
    assert _judged(new) == [("pci.bar_mem", "warn")]


def test_firmware_that_the_driver_did_without_is_a_warning() -> None:
    missing = "amdgpu 0000:03:00.0: Direct firmware load for amdgpu/isp_4_1_1.bin failed with error -2\n"
    assert _judged(missing) == [("fw.missing", "fail")]
    assert _judged(missing + "[drm] Initialized amdgpu 3.57.0 for 0000:03:00.0 on minor 1") == [("fw.missing", "warn")]
    assert _judged(missing + "[drm] Initialized amdgpu 3.57.0 for 0000:09:00.0 on minor 1") == [("fw.missing", "fail")]


def test_a_device_that_woke_late_is_a_warning() -> None:
    waiting = "amdgpu 0000:03:00.0: not ready 1023ms after resume; waiting\n"
    assert _judged(waiting) == [("pci.d3cold", "fail")]
    assert _judged(waiting + "amdgpu 0000:03:00.0: ready 2047ms after resume") == [("pci.d3cold", "warn")]


# --- the report


def test_the_json_has_the_fields_that_were_asked_for() -> None:
    line = "Nov 30 12:00:00 host kernel: NVRM: Xid (PCI:0000:44:00): 79, GPU has fallen off the bus"
    (entry,) = judge_text(f"{line}\r\n")["findings"]
    assert list(entry) == ["line", "rule", "severity", "vendor", "pci_address", "xid", "meaning", "action"]
    assert entry["line"] == line
    assert (entry["rule"], entry["severity"], entry["vendor"]) == ("nv.xid", "fail", "nvidia")
    assert (entry["pci_address"], entry["xid"]) == ("0000:44:00.0", 79)
    assert judge_text("") == {"findings": []}
