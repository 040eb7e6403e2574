"""The kernel's log from /dev/kmsg, journald and recorded files; what of it a record keeps."""

from __future__ import annotations

import errno
import json
import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings, strategies as st

from pytest_gpucoexist.host import local_host, open_recording
from pytest_gpucoexist.host.base import Completed, KernelLog, Node
from pytest_gpucoexist.host.kernel_lines import telling_lines
from pytest_gpucoexist.host.kernel_log import JOURNAL, journal_log, local_kernel_log, read_kmsg
from pytest_gpucoexist.host.recording import RecordingHost, write_recording
from pytest_gpucoexist.testing import a_machine
from tests.probes.memory_host import MemoryHost, fault

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

# What a Linux 6.8 gave at /dev/kmsg, one record a read.
RECORDS = [
    b"5,0,0,-;Linux version 6.8.0-60-generic (buildd@lcy02-amd64-098) #63-Ubuntu SMP\n",
    b"6,1,0,-;Command line: BOOT_IMAGE=/boot/vmlinuz root=UUID=9d1e6a3c-aaaa-4bbb-8ccc-123456789abc ro\n",
    b"6,2,140712,-;pci 0000:01:00.0: [10de:2684] type 00 class 0x030000\n SUBSYSTEM=pci\n DEVICE=+pci:0000:01:00.0\n",
]


def kmsg(*answers: bytes | int) -> Callable[[int, int], bytes]:
    """Answer reads one after the other, by a record or an errno; then there is no more."""
    left = list(answers)

    def read(_handle: int, _size: int) -> bytes:
        answer = left.pop(0) if left else errno.EAGAIN
        if isinstance(answer, int):
            raise fault(answer, "/dev/kmsg")
        return answer

    return read


@pytest.fixture
def device(tmp_path: Path) -> str:
    path = tmp_path / "kmsg"
    path.write_text("")
    return str(path)


def test_a_whole_buffer_is_read_record_by_record(device: str) -> None:
    log = read_kmsg(device, read=kmsg(*RECORDS))
    assert (log.status, log.complete, log.first_sequence, log.lost, log.detail) == ("ok", True, 0, 0, None)
    assert log.text == b"".join(RECORDS).decode()
    assert log.read_at_s is not None


def test_a_buffer_without_its_beginning_says_so(device: str) -> None:
    log = read_kmsg(device, read=kmsg(b"6,4711,99000000,-;usb 1-1: new device\n"))
    assert (log.complete, log.first_sequence, log.lost) == (False, 4711, 0)


def test_an_overrun_is_counted_and_reading_goes_on(device: str) -> None:
    log = read_kmsg(device, read=kmsg(RECORDS[0], errno.EPIPE, b"6,101,5,-;later\n", b"6,102,6,-;last\n"))
    assert (log.complete, log.lost) == (False, 100)
    assert log.text.endswith("6,101,5,-;later\n6,102,6,-;last\n")


def test_an_overrun_at_the_end_counts_as_one(device: str) -> None:
    assert read_kmsg(device, read=kmsg(RECORDS[0], errno.EPIPE)).lost == 1


def test_beyond_the_bound_the_oldest_records_go(device: str) -> None:
    records = [b"6,%d,%d,-;%s\n" % (number, number, b"x" * 100) for number in range(50)]
    log = read_kmsg(device, read=kmsg(*records), limit_bytes=1000)
    assert len(log.text) <= 1000
    assert log.complete is False
    assert log.first_sequence is not None
    assert log.first_sequence > 30
    assert log.text.rstrip().endswith("x")


def test_a_kernel_that_logs_without_end_does_not_hold_us(device: str) -> None:
    log = read_kmsg(device, read=lambda _handle, _size: b"6,1,1,-;again\n", limit_records=100)
    assert log.detail == "reading stopped after 100 records"


def test_another_error_ends_the_reading_and_keeps_what_was_read(device: str) -> None:
    log = read_kmsg(device, read=kmsg(RECORDS[0], errno.EINVAL))
    assert log.text == RECORDS[0].decode()
    assert "stopped early" in str(log.detail)


def test_a_device_that_cannot_be_opened_raises(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        read_kmsg(str(tmp_path / "none"))


class _Refused(MemoryHost):
    """A machine whose /dev/kmsg may not be opened."""

    def stat(self, path: str) -> Node:
        raise fault(errno.EPERM, path)


def test_a_restricted_log_says_who_may_read_it() -> None:
    box = _Refused(files={"/proc/sys/kernel/dmesg_restrict": "1\n"})
    log = local_kernel_log(box, allow_programs=False)
    assert log.status == "denied"
    assert "dmesg_restrict is 1" in str(log.detail)
    assert "root" in str(log.detail)


def test_a_container_without_the_device_says_so() -> None:
    log = local_kernel_log(MemoryHost(files={"/proc/version": "x"}), allow_programs=False)
    assert (log.status, log.text) == ("absent", "")
    assert "containers usually have none" in str(log.detail)


@pytest.mark.parametrize(
    ("major", "minor"), [pytest.param(5, 1, id="console-as-in-kind"), pytest.param(1, 3, id="null-as-in-rootless")]
)
def test_what_is_no_log_device_is_never_read(major: int, minor: int) -> None:
    box = MemoryHost(nodes={"/dev/kmsg": Node(kind="chardev", mode=0o666, major=major, minor=minor)})
    log = local_kernel_log(box, allow_programs=False)
    assert log.status == "absent"
    assert "not the kernel's log device" in str(log.detail)


def entries(*fields: Mapping[str, object]) -> Completed:
    """What journalctl --output=json --reverse prints."""
    return Completed(returncode=0, stdout=b"".join(json.dumps(each).encode() + b"\n" for each in reversed(fields)))


FIRST = {
    "__CURSOR": "s=1;i=2;b=3",
    "PRIORITY": "5",
    "_SOURCE_MONOTONIC_TIMESTAMP": "0",
    "MESSAGE": "Linux version 6.8.0-60-generic (x)",
}
XID = {
    "PRIORITY": "3",
    "_SOURCE_MONOTONIC_TIMESTAMP": "812345678",
    "MESSAGE": "NVRM: Xid (PCI:0000:01:00): 79, pid=7992, GPU has fallen off the bus.",
}


def test_journald_gives_lines_as_dmesg_prints_them() -> None:
    log = journal_log(MemoryHost(programs={JOURNAL: entries(FIRST, XID)}))
    assert (log.status, log.source, log.complete) == ("ok", "journald", True)
    assert log.text == (
        "<5>[    0.000000] Linux version 6.8.0-60-generic (x)\n"
        "<3>[  812.345678] NVRM: Xid (PCI:0000:01:00): 79, pid=7992, GPU has fallen off the bus.\n"
    )


def test_a_journal_that_lost_the_beginning_is_not_complete() -> None:
    assert journal_log(MemoryHost(programs={JOURNAL: entries(XID)})).complete is False


def test_a_message_of_several_lines_and_one_of_bytes_keep_their_order() -> None:
    multi = {"PRIORITY": "3", "_SOURCE_MONOTONIC_TIMESTAMP": "5000000", "MESSAGE": "one\ntwo"}
    raw = {"PRIORITY": "3", "_SOURCE_MONOTONIC_TIMESTAMP": "6000000", "MESSAGE": list(b"three")}
    text = journal_log(MemoryHost(programs={JOURNAL: entries(FIRST, multi, raw)})).text
    assert [line.rpartition(" ")[2] for line in text.splitlines()[1:]] == ["one", "two", "three"]


def test_journald_s_refusal_names_the_groups() -> None:
    said = b"Hint: You are currently not seeing messages from other users and the system.\n"
    log = journal_log(MemoryHost(programs={JOURNAL: Completed(returncode=1, stderr=said)}))
    assert log.status == "denied"
    assert "adm and systemd-journal" in str(log.detail)


def test_without_journalctl_both_reasons_are_told() -> None:
    log = local_kernel_log(MemoryHost(files={"/proc/version": "x"}), allow_programs=True)
    assert log.status == "absent"
    assert "/dev/kmsg" in str(log.detail)
    assert "journalctl: " in str(log.detail)


def test_a_quick_reading_starts_no_program() -> None:
    box = MemoryHost(files={"/proc/version": "x"}, programs={JOURNAL: entries(FIRST)})
    assert local_kernel_log(box, allow_programs=False).status == "absent"
    assert local_kernel_log(box, allow_programs=True).source == "journald"


@pytest.mark.parametrize("path", ["/var/log/dmesg", "/var/log/kern.log", "/dmesg", "/extra/dmesg.txt"])
def test_a_log_file_of_a_recorded_tree_is_used(path: str) -> None:
    text = "[    0.000000] Linux version 6.8.0 (x)\n[    1.000000] pci 0000:01:00.0: found\n"
    log = a_machine().with_file(path, text).host().kernel_log()
    assert (log.status, log.source, log.complete) == ("ok", path, True)
    assert log.text == text.rstrip()


def test_of_a_log_of_several_boots_the_last_one_counts() -> None:
    boots = "kernel: Linux version 6.1.0 (x)\nkernel: old\nkernel: Linux version 6.8.0 (x)\nkernel: new\n"
    log = a_machine().with_file("/var/log/kern.log", boots).host().kernel_log()
    assert log.text == "kernel: Linux version 6.8.0 (x)\nkernel: new"


def test_a_tree_without_a_log_says_that_none_was_recorded() -> None:
    log = a_machine().host().kernel_log()
    assert (log.status, log.detail) == ("absent", "not recorded")


def test_the_recorded_virtual_machine_has_its_log(shared: Path) -> None:
    log = open_recording(str(shared / "machines" / "vm-2node-switch.tar.gz")).kernel_log()
    assert (log.status, log.complete) == ("ok", True)
    assert log.text.count("\n") > 600


def test_this_machine_answers_with_a_log_or_a_reason() -> None:
    log = local_host().kernel_log()
    if log.status == "ok":
        assert log.source == "/dev/kmsg"
        assert log.read_at_s is not None
    else:
        assert log.detail


PERSONAL = {
    "host": "atlas17",
    "user": "gwendolyn",
    "program": "secret_model",
    "serial": "1320119012345",
    "mac": "3c:ec:ef:12:34:56",
    "uuid": "GPU-40670ec8-4ac2-7b57-421b-0443b19cbf10",
    "disk": "9d1e6a3c-aaaa-4bbb-8ccc-123456789abc",
    "keyboard": "Gwendolyns Keyboard",
    "network": "131.107.9.200",
    "unit": "secret-backup.service",
}
LOG = "".join(
    f"{line}\n"
    for line in (
        "5,0,0,-;Linux version 6.8.0-60-generic (buildd@lcy02-amd64-098)",
        f"6,1,0,-;Command line: BOOT_IMAGE=/vmlinuz root=UUID={PERSONAL['disk']} ro iommu=pt amdgpu.runpm=0",
        f"6,2,1000000,-;input: {PERSONAL['keyboard']} as /devices/pci0000:00/0000:00:14.0/usb1/1-1",
        f"30,3,2000000,-;systemd[1]: Starting {PERSONAL['unit']}, amdgpu pci",
        f"6,4,2000000,-;[UFW BLOCK] IN=eth0 SRC={PERSONAL['network']} pci",
        f"3,5,3000000,-;NVRM: GPU at PCI:0000:01:00: {PERSONAL['uuid']}",
        f"3,6,3000001,-;NVRM: GPU Board Serial Number: {PERSONAL['serial']}",
        f"3,7,3000002,-;NVRM: Xid (PCI:0000:01:00): 31, pid=13332, name={PERSONAL['program']}, Ch 00000010",
        f"4,8,4000000,-;amdgpu 0000:03:00.0: amdgpu: in process {PERSONAL['program']} pid 9 thread secret_model pid 9)",
        f"4,9,4000000,-;INFO: task {PERSONAL['program']}:136986 blocked for more than 120 seconds.",
        f"4,10,4000000,-;{PERSONAL['program']}[2536443]: segfault at 7f797fe00000 ip 00007f7c in libnccl.so.2[7f]",
        f"4,11,4000000,-;CPU: 17 PID: 2024380 Comm: {PERSONAL['program']} Tainted: P OE, nvidia",
        f"4,12,5000000,-;nvidia-peermem /home/{PERSONAL['user']}/x {PERSONAL['mac']} {PERSONAL['host']}",
        "4,13,6000000,-;pci 0000:01:00.0: BAR 1 [mem size 0x10000000 64bit pref]: failed to assign",
        " SUBSYSTEM=pci",
        " DEVICE=+pci:0000:01:00.0",
    )
)


class _Logging(MemoryHost):
    def kernel_log(self, *, allow_programs: bool = False) -> KernelLog:
        return KernelLog(status="ok", text=LOG, source="/dev/kmsg", complete=True, first_sequence=0, read_at_s=7.0)


def test_a_record_keeps_the_log_and_names_nobody(tmp_path: Path) -> None:
    host = RecordingHost(
        _Logging(name=PERSONAL["host"], environ={"USER": PERSONAL["user"]}, files={"/proc/version": "x"})
    )
    assert host.kernel_log().text == LOG
    path = str(tmp_path / "machine.tar.gz")
    write_recording(host, path, key=b"0123456789abcdef")
    log = open_recording(path).kernel_log()
    assert (log.status, log.source, log.complete, log.first_sequence, log.read_at_s) == (
        "ok",
        "/dev/kmsg",
        True,
        0,
        7.0,
    )
    for what, value in PERSONAL.items():
        assert value.lower() not in log.text.lower(), what
    assert "Xid (PCI:0000:01:00): 31, pid=13332, name=process-" in log.text
    assert "Command line: ro iommu=pt amdgpu.runpm=0" in log.text
    assert " DEVICE=+pci:0000:01:00.0" in log.text


@pytest.mark.parametrize(
    "path", ["/sys/fs/pstore/dmesg-efi_pstore-176722000101001", "/var/lib/systemd/pstore/1767217000/001/dmesg.txt"]
)
def test_dumps_of_a_crashed_boot_are_cleaned_as_well(tmp_path: Path, path: str) -> None:
    host = RecordingHost(MemoryHost(files={path: f"Oops#1 Part1\n{LOG}", "/proc/version": "x"}))
    host.read_text(path)
    archive = str(tmp_path / "machine.tar.gz")
    write_recording(host, archive)
    text = open_recording(archive).read_text(path)
    assert text.startswith("Oops#1 Part1\n5,0,0,-;Linux version")
    assert PERSONAL["program"] not in text
    assert PERSONAL["keyboard"] not in text


def test_a_record_keeps_why_there_was_no_log(tmp_path: Path) -> None:
    host = RecordingHost(MemoryHost(files={"/proc/version": "x"}))
    host.kernel_log()
    path = str(tmp_path / "machine.tar.gz")
    write_recording(host, path)
    log = open_recording(path).kernel_log()
    assert (log.status, log.detail) == ("absent", "no kernel log in memory")


def test_what_journald_told_is_cleaned_as_well(tmp_path: Path) -> None:
    argv = ("journalctl", "--dmesg", "--boot=-1")
    lines = f"[    5.000000] box kernel: NVRM: Xid (PCI:0000:01:00): 31, pid=1, name={PERSONAL['program']}, Ch\n"
    lines += f"[    6.000000] box kernel: input: {PERSONAL['keyboard']} as /devices/pci0000:00\n"
    inner = MemoryHost(files={"/proc/version": "x"}, programs={argv: Completed(returncode=0, stdout=lines.encode())})
    host = RecordingHost(inner)
    host.run(argv)
    path = str(tmp_path / "machine.tar.gz")
    write_recording(host, path)
    said = open_recording(path).run(argv).stdout.decode()
    assert "Xid (PCI:0000:01:00): 31" in said
    assert PERSONAL["program"] not in said
    assert PERSONAL["keyboard"] not in said


@settings(max_examples=60)
@given(st.lists(st.binary(max_size=80), max_size=20))
def test_any_records_are_read(device_records: list[bytes]) -> None:
    log = read_kmsg(os.devnull, read=kmsg(*[record for record in device_records if record]))
    assert log.status == "ok"
    assert log.lost == 0


@settings(max_examples=60)
@given(st.binary(max_size=400))
def test_any_answer_of_journalctl_is_survived(data: bytes) -> None:
    log = journal_log(MemoryHost(programs={JOURNAL: Completed(returncode=0, stdout=data)}))
    assert log.status in {"ok", "absent"}
    assert log.complete is not True


@settings(max_examples=60)
@given(st.text(max_size=400))
def test_any_text_is_cleaned(text: str) -> None:
    assert set(telling_lines(text).split("\n")) <= {*text.split("\n"), ""}


def test_a_device_of_the_right_number_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = KernelLog(status="ok", text="x", source="/dev/kmsg", complete=True)
    monkeypatch.setattr("pytest_gpucoexist.host.kernel_log.read_kmsg", lambda _path: whole)
    box = MemoryHost(nodes={"/dev/kmsg": Node(kind="chardev", mode=0o644, major=1, minor=11)})
    assert local_kernel_log(box, allow_programs=True) is whole


@pytest.mark.parametrize(("journal", "source"), [(entries(FIRST, XID), "journald"), (entries(XID), "/dev/kmsg")])
def test_a_buffer_that_went_round_is_completed_from_the_journal(
    monkeypatch: pytest.MonkeyPatch, journal: Completed, source: str
) -> None:
    half = KernelLog(status="ok", text="x", source="/dev/kmsg", complete=False, first_sequence=99)
    monkeypatch.setattr("pytest_gpucoexist.host.kernel_log.read_kmsg", lambda _path: half)
    box = MemoryHost(
        nodes={"/dev/kmsg": Node(kind="chardev", mode=0o644, major=1, minor=11)}, programs={JOURNAL: journal}
    )
    assert local_kernel_log(box, allow_programs=True).source == source
    assert local_kernel_log(box, allow_programs=False).source == "/dev/kmsg"


def test_a_device_that_breaks_or_is_forbidden_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(path: str) -> KernelLog:
        raise fault(errno.EIO, path)

    monkeypatch.setattr("pytest_gpucoexist.host.kernel_log.read_kmsg", broken)
    box = MemoryHost(nodes={"/dev/kmsg": Node(kind="chardev", mode=0o644, major=1, minor=11)})
    log = local_kernel_log(box, allow_programs=False)
    assert (log.status, log.detail) == ("broken", "/dev/kmsg: Input/output error")
    assert "this user may not open it" in str(local_kernel_log(_Refused(), allow_programs=False).detail)


def test_a_journal_that_hangs_is_broken() -> None:
    log = journal_log(MemoryHost(programs={JOURNAL: Completed(returncode=None, timed_out=True)}))
    assert (log.status, log.detail) == ("broken", "no answer within 3 s")
