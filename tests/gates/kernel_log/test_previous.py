"""The boot before this one: what it left, and which driver it names."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist.host.base import Completed
from tests.gates.judging import judged
from tests.gates.kernel_log.logs import AMD, BOOT, about, logged, one, said, says, workstation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpucoexist.model.verdicts import Judgement
    from pytest_gpucoexist.testing.builder import MachineBuilder

GATE = "klog.silent_hang"
BACKEND = "/sys/module/pstore/parameters/backend"

# NVIDIA/open-gpu-kernel-modules#1107, as pstore keeps it: a first line with the kind and the part.
OOPS = """\
Oops#1 Part1
<1>[ 4711.100000] BUG: kernel NULL pointer dereference, address: 0000000000000030
<1>[ 4711.100001] #PF: supervisor read access in kernel mode
<4>[ 4711.100002] Oops: Oops: 0000 [#1] SMP NOPTI
<4>[ 4711.100003] CPU: 0 UID: 1000 PID: 28651 Comm: python3.14 Tainted: G           O        6.18.24 #1-NixOS
<4>[ 4711.100004] RIP: 0010:nvidia_vma_access+0x1b/0x350 [nvidia]
<4>[ 4711.100005] Modules linked in: nvidia_uvm(O) nvidia_drm(O) nvidia(O) amdgpu
"""


def stored(machine: MachineBuilder | None = None) -> MachineBuilder:
    """A machine whose kernel keeps dumps in EFI variables."""
    return (machine or logged("")).with_file(BACKEND, "efi_pstore\n")


@pytest.mark.proves(GATE, "WARN", on="tree")
def test_a_dump_in_pstore_names_the_driver() -> None:
    machine = stored().with_file("/sys/fs/pstore/dmesg-efi_pstore-176722000101001", OOPS)
    verdict = one(said(machine, GATE), "WARN")
    assert verdict.reason == (
        "the previous boot did not end in an orderly way:"
        " BUG: kernel NULL pointer dereference, address: 0000000000000030, in nvidia"
    )
    assert verdict.evidence[0].source == "/sys/fs/pstore/dmesg-efi_pstore-176722000101001"


@pytest.mark.proves(GATE, "PASS", on="tree")
def test_an_empty_pstore_with_a_backend_shows_no_crash() -> None:
    machine = stored().with_file("/sys/fs/pstore/.keep", "")
    verdict = one(said(machine, GATE), "PASS")
    assert any(each.source == "/sys/fs/pstore" and each.found == "nothing" for each in verdict.evidence)


def test_without_a_backend_an_empty_pstore_shows_nothing() -> None:
    assert says(said(logged("").with_file("/sys/fs/pstore/.keep", ""), GATE), "UNKNOWN")


def test_a_pstore_that_root_alone_may_list_leaves_it_open() -> None:
    machine = stored().with_file("/sys/fs/pstore/.keep", "").with_error("/sys/fs/pstore", errno.EACCES)
    verdict = one(said(machine, GATE), "UNKNOWN")
    assert any(each.found == "Permission denied" for each in verdict.evidence)


def test_what_systemd_moved_out_of_pstore_is_found() -> None:
    # The host's clock stands at 2026-01-01 00:00, its boot at 5000 s before: the dump is of an hour before that.
    machine = stored().with_file("/var/lib/systemd/pstore/1767217000/001/dmesg.txt", OOPS)
    assert "in nvidia" in one(said(machine, GATE), "WARN").reason


def test_a_dump_of_last_year_is_history() -> None:
    machine = stored().with_file("/sys/fs/pstore/dmesg-efi_pstore-173560000101001", OOPS)
    verdict = one(said(machine, GATE), "PASS")
    assert any(each.found == "1 older ones" for each in verdict.evidence)


def test_a_dump_at_shutdown_is_no_crash() -> None:
    text = "Shutdown#1 Part1\n<6>[ 4711.100000] reboot: Restarting system\n"
    machine = stored().with_file("/sys/fs/pstore/dmesg-efi_pstore-176722000101001", text)
    assert says(said(machine, GATE), "PASS")


@pytest.mark.parametrize("folder", ["202512312200", "127.0.0.1-2025-12-31-22:00:10"])
def test_kdump_s_log_is_read(folder: str) -> None:
    name = "dmesg.202512312200" if folder[0] == "2" else "vmcore-dmesg.txt"
    text = "[ 4711.1] amdgpu 0000:04:00.0: amdgpu: GPU reset begin!\n"
    text += "[ 4711.2] Kernel panic - not syncing: Fatal exception\n"
    text += "[ 4711.3] RIP: 0010:amdgpu_ring_write+0x1/0x10 [amdgpu]\n"
    verdict = one(said(logged("").with_file(f"/var/crash/{folder}/{name}", text), GATE), "WARN")
    assert "Kernel panic - not syncing: Fatal exception, in amdgpu" in verdict.reason


def test_a_program_s_dump_is_none_of_the_kernel() -> None:
    machine = stored().with_file("/sys/fs/pstore/.keep", "").with_file("/var/crash/_usr_bin_python3.12.1000.crash", "x")
    assert says(said(machine, GATE), "PASS")


# arch/x86/kernel/cpu/amd.c, as sonic-net/sonic-linux-kernel#514 and ROCm/amdgpu#226 show it.
FLOOD = "x86/amd: Previous system reset reason [0x08000800]: an uncorrected error caused a data fabric sync flood event"
ORDERLY = "x86/amd: Previous system reset reason [0x00080800]: software wrote 0x6 to reset control register 0xCF9"
FORCED = "x86/amd: Previous system reset reason [0x00000802]: power button was pressed for 4 seconds"
NOTHING = "x86/amd: Previous system reset reason [0x00000000]: Unknown"
PARITY = "x86/amd: Previous system reset reason [0x40080400]: a parity error occurred"


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ((FLOOD,), "WARN"),
        ((FORCED,), "WARN"),
        ((ORDERLY,), "PASS"),
        ((ORDERLY, PARITY), "PASS"),
        ((NOTHING,), "UNKNOWN"),
    ],
    ids=["sync-flood", "forced-off", "orderly", "left-over-bits", "unknown"],
)
def test_what_the_platform_says_about_the_last_reset(lines: tuple[str, ...], status: str) -> None:
    verdict = one(said(logged("\n".join(lines)), GATE), status)
    if status == "WARN":
        assert lines[0].partition("]: ")[2] in verdict.reason


LAST = ("journalctl", "--boot=-1", "--identifier=systemd-journald", "--lines=1", "--no-pager", "--output=cat")
KERNEL = ("journalctl", "--dmesg", "--boot=-1", "--lines=300", "--no-pager", "--output=short-monotonic")


def journal(last: str, kernel: str, *, stderr: str = "", level: str = "standard") -> Judgement:
    """Judge a machine whose journald kept the previous boot."""
    host = logged("").host()
    answers: dict[tuple[str, ...], Completed] = {
        LAST: Completed(returncode=0 if last else 1, stdout=last.encode(), stderr=stderr.encode()),
        KERNEL: Completed(returncode=0, stdout=kernel.encode()),
    }
    host.run = lambda argv, *, timeout_s=5.0: answers[tuple(argv)]  # type: ignore[method-assign]
    return judged(host, GATE, level=level)


def test_an_orderly_shutdown_stops_the_journal_last() -> None:
    assert says(journal("Journal stopped\n", "[ 90.1] box kernel: usb 1-1: hello\n"), "PASS")


def test_a_journal_that_breaks_off_is_told_with_its_last_line() -> None:
    """CachyOS/linux-cachyos#960: the machine froze, nothing was logged."""
    said_so = one(journal("Time spent on flushing\n", "[ 4711.1] box kernel: amdgpu 0000:04:00.0: hello\n"), "WARN")
    assert "breaks off without a shutdown" in said_so.reason
    assert any("amdgpu 0000:04:00.0: hello" in each.found for each in said_so.evidence)


def test_a_crash_in_the_journal_names_the_driver() -> None:
    kernel = "".join(f"[ 4711.1] box kernel: {line.partition('] ')[2] or line}\n" for line in OOPS.splitlines()[1:])
    assert "in nvidia" in one(journal("x", kernel), "WARN").reason


def test_a_journal_in_memory_does_not_know() -> None:
    text = "Specifying boot ID or boot offset has no effect, no persistent journal was found.\n"
    verdict = one(journal("", "", stderr=text), "UNKNOWN")
    assert any("no persistent journal" in each.found for each in verdict.evidence)


def test_a_quick_look_starts_no_program() -> None:
    host = logged("").host()
    host.run = None  # type: ignore[assignment, method-assign]
    assert judged(host, GATE, level="quick").verdicts[0].status == "UNKNOWN"


# The fields are those of drivers/firmware/efi/cper.c; the device that of olafkfreund/nixos_config#1820.
BERT = """\
<6>[    1.000000] BERT: Error records from previous boot:
<6>[    1.000001] [Hardware Error]: event severity: fatal
<6>[    1.000002] [Hardware Error]:  Error 0, type: fatal
<6>[    1.000003] [Hardware Error]:   section_type: PCIe error
<6>[    1.000004] [Hardware Error]:   port_type: 4, root port
<6>[    1.000005] [Hardware Error]:   device_id: {port}
<6>[    1.000006] [Hardware Error]:   vendor_id: 0x1022, device_id: 0x1483
<6>[    1.000007] [Hardware Error]:   aer_uncor_status: 0x00004000, aer_uncor_mask: 0x00000000
<6>[    1.000008] usb 1-1: the next message
"""


@pytest.mark.proves("klog.bert", "WARN", on="tree")
def test_a_boot_that_died_on_the_gpu_s_link() -> None:
    """olafkfreund/nixos_config#1820: completion timeout on the root port above an RX 7900 XTX."""
    judgement = said(logged("", boot=BOOT + BERT.format(port="0000:00:02.1")), "klog.bert")
    verdict = about(judgement, AMD)
    assert verdict.status == "WARN"
    assert verdict.reason == "the previous boot ended with a PCIe error at 0000:00:02.1"
    assert "fatal: PCIe error" in verdict.evidence[0].found


def test_the_previous_boot_s_record_is_no_error_of_this_one() -> None:
    assert says(said(logged("", boot=BOOT + BERT.format(port="0000:00:02.1")), "klog.host"), "PASS")


@pytest.mark.proves("klog.bert", "PASS", on="tree")
def test_a_record_about_something_else() -> None:
    assert says(said(logged("", boot=BOOT + BERT.format(port="0000:00:1c.5")), "klog.bert"), "PASS")
    crashlog = "BERT: Error records from previous boot:\n[Hardware Error]: event severity: fatal\n"
    crashlog += "[Hardware Error]:   section_type: Firmware Error Record Reference"
    verdict = one(said(logged(crashlog), "klog.bert"), "PASS")
    assert "Firmware Error Record Reference" in verdict.reason


def test_this_is_about_machines_with_a_workstation_s_files() -> None:
    assert says(said(workstation(), "klog.bert"), "UNKNOWN")


@pytest.mark.parametrize(
    ("failure", "found"),
    [(FileNotFoundError(errno.ENOENT, "No such file or directory"), "No such file"), (None, "no answer within 3 s")],
    ids=["not-installed", "hangs"],
)
def test_journalctl_that_does_not_answer_leaves_it_open(failure: OSError | None, found: str) -> None:
    host = logged("").host()

    def run(argv: Sequence[str], *, timeout_s: float = 5.0) -> Completed:
        if failure is not None:
            raise failure
        return Completed(returncode=None, timed_out=True)

    host.run = run  # type: ignore[method-assign]
    verdict = one(judged(host, GATE), "UNKNOWN")
    assert any(found in each.found for each in verdict.evidence)


def test_a_dump_that_cannot_be_read_is_still_a_dump() -> None:
    path = "/sys/fs/pstore/dmesg-efi_pstore-176722000101001"
    machine = stored().with_file(path, OOPS).with_error(path, errno.EACCES)
    assert "it left a dump" in one(said(machine, GATE), "WARN").reason


def test_a_memory_image_without_a_log_is_told() -> None:
    machine = logged("").with_file("/var/crash/202512312200/vmcore.202512312200", "x")
    assert "kdump saved its memory" in one(said(machine, GATE), "WARN").reason


def test_names_that_are_no_time_are_no_dumps() -> None:
    machine = stored().with_file("/sys/fs/pstore/.keep", "").with_file("/var/crash/202599992260/dmesg.1", OOPS)
    assert says(said(machine, GATE), "PASS")
