"""Every form in which a kernel log is saved gives the same messages."""

from __future__ import annotations

import json
import tarfile
from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist.kernellog.parse import parse_log
from pytest_gpucoexist.kernellog.report import findings_in

if TYPE_CHECKING:
    from pathlib import Path

XID = "NVRM: Xid (PCI:0000:44:00): 79, GPU has fallen off the bus"

FORMS = {
    "message alone": XID,
    "dmesg": f"[   12.345678] {XID}",
    "dmesg, thread that printed": f"[   12.345678][  T123] {XID}",
    "dmesg, processor that printed": f"[   12.345678][    C3] {XID}",
    "dmesg, thread and a space": f"[   12.345678] [  T123] {XID}",
    "dmesg -x": f"kern  :err   : [   12.345678] {XID}",
    "dmesg -x -T": f"kern  :err   : [Sun Feb 23 16:24:18 2025] {XID}",
    "dmesg -x --time-format iso": f"kern  :err   : 2025-02-23T16:24:18,345678+00:00 {XID}",
    "dmesg -r": f"<3>[   12.345678] {XID}",
    "dmesg -T": f"[Sun Feb 23 16:24:18 2025] {XID}",
    "dmesg -T in another language": f"[So Mär 23 16:24:18 2025] {XID}",
    "dmesg -d": f"[   12.345678 <    0.000012>] {XID}",
    "dmesg -d -T": f"[Sun Feb 23 16:24:18 2025 <    0.000012>] {XID}",
    "dmesg -e, first": f"[Nov30 08:11] {XID}",
    "dmesg -e, further": f"[  +0.000012] {XID}",
    "dmesg -H, coloured": f"\x1b[32m[  +0.000012] \x1b[0m\x1b[33mNVRM: \x1b[0m{XID[6:]}\x1b[0m",
    "dmesg --time-format iso": f"2025-02-23T16:24:18,345678+00:00 {XID}",
    "dmesg --json": json.dumps({"dmesg": [{"pri": 3, "time": 12.345678, "msg": XID}]}, indent=3),
    "dmesg --json -x": json.dumps({"dmesg": [{"fac": "kern", "pri": "err", "time": 12.3, "msg": XID}]}),
    "/dev/kmsg": f"3,339,12345678,-;{XID}\n SUBSYSTEM=pci\n DEVICE=+pci:0000:44:00.0",
    "/dev/kmsg with caller": f"3,339,12345678,-,caller=T123;{XID}",
    "console": f"<3>[   12.345678] {XID}",
    "journalctl -o short": f"Nov 30 12:00:00 host kernel: {XID}",
    "journalctl in another language": f"jan. 29 20:50:17 host kernel: {XID}",
    "journalctl -o short-precise": f"Nov 30 12:00:00.123456 host kernel: {XID}",
    "journalctl -o short-iso": f"2025-02-23T16:24:18+0100 host kernel: {XID}",
    "journalctl -o short-iso-precise": f"2025-02-23T16:24:18.123456+01:00 host kernel: {XID}",
    "journalctl -o short-full": f"Sun 2025-02-23 16:24:18 UTC host kernel: {XID}",
    "journalctl -o short-unix": f"1740327858.123456 host kernel: {XID}",
    "journalctl -o short-monotonic": f"[   12.345678] host kernel: {XID}",
    "journalctl -o short-delta": f"[   12.345678 <    0.000012 >] host kernel: {XID}",
    "journalctl --no-hostname": f"Nov 30 12:00:00 kernel: {XID}",
    "journalctl -o cat": XID,
    "journalctl -o json": json.dumps({"MESSAGE": XID, "_TRANSPORT": "kernel", "PRIORITY": "3"}),
    "journalctl -o json-pretty": json.dumps({"MESSAGE": XID, "_TRANSPORT": "kernel", "PRIORITY": "3"}, indent=8),
    "journalctl -o json-seq": "\x1e" + json.dumps({"MESSAGE": XID, "_TRANSPORT": "kernel"}) + "\n",
    "journalctl, message not UTF-8": json.dumps({"MESSAGE": list(XID.encode()), "_TRANSPORT": "kernel"}),
    "journalctl -o with-unit": f"Sun 2025-02-23 16:24:18 CET host kernel: {XID}",
    "syslog": f"Nov 30 12:00:00 host kernel: [   12.345678] {XID}",
    "syslog, stamp without spaces": f"Nov  3 12:00:00 host kernel: [12.345678] {XID}",
    "syslog, high precision": f"2025-02-23T16:24:18.123456+01:00 host kernel: [   12.345678] {XID}",
    "syslog with priority": f"<3>Nov 30 12:00:00 host kernel: {XID}",
    "busybox": f"Nov 30 12:00:00 host kern.err kernel: [   12.345678] {XID}",
    "OpenWrt logread": f"Sat Nov 30 12:00:00 2025 kern.err kernel: [   12.345678] {XID}",
    "RFC 5424": f"<3>1 2025-02-23T16:24:18.003Z host kernel - - - {XID}",
    "RFC 5424 with structured data": f'<3>1 2025-02-23T16:24:18.003Z host kernel - - [a@1 b="c"] {XID}',
    "kernel: alone": f"kernel: [   12.345678] {XID}",
    "CRLF": f"[   12.345678] {XID}\r\n",
    "NULs": f"\0\0\n[   12.345678] {XID}\0",
    "broken UTF-8": f"[   12.0] caf\udce9 \ufffd\n[   12.345678] {XID}",
}


@pytest.mark.parametrize("form", FORMS)
def test_a_form_is_read(form: str) -> None:
    messages = [record.message for record in parse_log(FORMS[form])]
    assert XID in messages
    (found,) = findings_in(FORMS[form])
    assert (found.rule, found.xid, found.pci_address) == ("nv.xid", 79, "0000:44:00.0")


def test_clocks_and_levels() -> None:
    def first(form: str) -> tuple[float | None, float | None, int | None]:
        record = next(record for record in parse_log(FORMS[form]) if record.message == XID)
        return record.time_s, record.wall_s, record.level

    assert first("dmesg") == (12.345678, None, None)
    assert first("dmesg -x") == (12.345678, None, 3)
    assert first("dmesg -r") == (12.345678, None, 3)
    assert first("/dev/kmsg") == (12.345678, None, 3)
    assert first("dmesg -T") == (None, 1740327858.0, None)
    assert first("dmesg -x --time-format iso") == (None, 1740327858.345678, 3)
    assert first("journalctl -o short-iso") == (None, 1740327858.0 - 3600, None)
    assert first("journalctl -o short-unix") == (None, 1740327858.123456, None)
    assert first("journalctl -o short-monotonic") == (12.345678, None, None)
    assert first("syslog, high precision") == (12.345678, 1740327858.123456 - 3600, None)
    assert first("dmesg --json") == (12.345678, None, 3)
    assert first("dmesg --json -x") == (12.3, None, 3)
    assert first("RFC 5424") == (None, 1740327858.003, 3)
    assert first("dmesg -e, further") == (None, None, None)


def test_kmsg_keeps_sequence_device_and_raw_line() -> None:
    (record,) = parse_log("6,339,5140900,-;amdgpu: something\n SUBSYSTEM=pci\n DEVICE=+pci:0000:03:00.0\n")
    assert (record.number, record.sequence, record.time_s, record.level) == (1, 339, 5.1409, 6)
    assert record.device == "0000:03:00.0"
    assert record.raw == "6,339,5140900,-;amdgpu: something"


def test_kmsg_escapes_are_undone_and_lines_split() -> None:
    records = parse_log(r"3,1,2,-;NVRM: The NVIDIA GPU 0000:b3:00.0\x0aNVRM: caf\xc3\xa9\x5c")
    assert [record.message for record in records] == ["NVRM: The NVIDIA GPU 0000:b3:00.0", "NVRM: café\\"]
    assert {record.sequence for record in records} == {1}


def test_rsyslog_joins_are_split() -> None:
    line = (
        "Nov 30 12:00:00 host kernel: [  5.0] NVRM: API mismatch: the client has the version 570.1, but"
        "#012NVRM: this kernel module has the version 570.2.  Please#012NVRM: make sure"
    )
    records = parse_log(line)
    assert len(records) == 3
    assert records[1].message.startswith("NVRM: this kernel module")
    assert {record.number for record in records} == {1}
    (found,) = findings_in(line)
    assert (found.rule, found.line) == ("nv.api_mismatch", line)


def test_indented_lines_belong_to_the_record_before() -> None:
    text = (
        "[ 1843.308145] NVRM: The NVIDIA GPU 0000:b3:00.0\n"
        "               NVRM: (PCI ID: 10de:26b5) installed in this system has\n"
        "               NVRM: fallen off the bus and is not responding to commands.\n"
    )
    records = parse_log(text)
    assert [record.time_s for record in records] == [1843.308145] * 3
    assert records[2].message == "NVRM: fallen off the bus and is not responding to commands."
    (found,) = findings_in(text)
    assert (found.rule, found.pci_address, found.number) == ("nv.fallen_off_bus", "0000:b3:00.0", 3)


def test_a_program_keeps_its_name_and_loses_its_host() -> None:
    (record,) = parse_log("Nov 30 12:00:00 host modprobe[12]: ERROR: could not insert 'nvidia'")
    assert record.message == "modprobe[12]: ERROR: could not insert 'nvidia'"


def test_dmesg_prints_no_host() -> None:
    (record,) = parse_log("[    1.5] usb 1-1: new device")
    assert record.message == "usb 1-1: new device"
    (record,) = parse_log("2025-02-23T16:24:18,345678+00:00 usb 1-1: new device")
    assert record.message == "usb 1-1: new device"


def test_json_lines_that_are_torn_cost_only_themselves() -> None:
    good = json.dumps({"MESSAGE": XID, "_TRANSPORT": "kernel"})
    records = parse_log(f"{good}\n{good[:30]}\n{good}\n")
    assert [record.message for record in records].count(XID) == 2
    assert [record.number for record in records] == [1, 2, 3]


def test_nothing_gives_nothing() -> None:
    assert parse_log("") == ()
    assert parse_log("\n\0\r\n  \n") == ()


def test_the_recorded_logs(shared: Path) -> None:
    found = {}
    for path in sorted((shared / "machines" / "dmesg").iterdir()):
        findings = findings_in(path.read_text(encoding="utf-8", errors="replace"))
        found[path.name] = {(finding.rule, finding.severity, finding.pci_address) for finding in findings}
    assert found == {
        "gpud-dmesg-with-xid-119.log.txt": {("nv.xid", "fail", "0000:9b:00.0")},
        "gpud-dmesg.txt": {
            ("mod.sig_taint", "info", None),
            ("nv.loaded", "info", None),
            ("sys.oops", "fail", None),  # a panic that was made on purpose, in a pstore record
        },
        "gpud-fabricmanager.log.txt": set(),
        "gpud-kmsg.2.peermem.log.txt": {("nv.peermem", "warn", None)},
    }


@pytest.mark.parametrize("name", ["extra/dmesg.txt", "extra/dmesg-x.txt"])
def test_a_whole_boot_with_stand_in_drivers_has_no_problem(shared: Path, name: str) -> None:
    with tarfile.open(shared / "machines" / "vm-2node-switch.tar.gz") as archive:
        member = archive.extractfile(next(member for member in archive if member.name.endswith(name)))
        assert member is not None
        text = member.read().decode("utf-8")
    records = parse_log(text)
    assert len(records) > 700
    assert all(record.time_s is not None or record.wall_s is not None for record in records)
    assert {found.severity for found in findings_in(text)} == {"info"}
