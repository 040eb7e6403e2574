"""Whether the log is whole, how sessions and logs share a clock, and that nothing breaks whatever the log says."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings, strategies as st

from pytest_gpucoexist.gates.catalogue import all_gates
from pytest_gpucoexist.gates.kernel_log.evidence import log_evidence
from pytest_gpucoexist.gates.kernel_log.traces import crash_of, module_of
from pytest_gpucoexist.gates.runner import judge
from pytest_gpucoexist.gates.subject import Subject
from pytest_gpucoexist.host import local_host, open_recording
from pytest_gpucoexist.host.base import KernelLog
from pytest_gpucoexist.host.recording import RecordingHost, write_recording
from pytest_gpucoexist.probes import discover
from tests.gates.judging import judged, subject_of
from tests.gates.kernel_log.logs import AMD, BOOT, NVIDIA, logged, one, says, workstation

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucoexist.host.replay import ReplayHost

GATE = "klog.source_complete"
GATES = [gate for gate in all_gates() if gate.group == "kernel-log"]
KMSG = "".join(
    f"{6 if number else 5},{number},{number * 1000000},-;{text}\n"
    for number, text in enumerate(["Linux version 6.8.0-60-generic (x)", "pci 0000:01:00.0: hello", "usb 1-1: hello"])
)


def reading(log: KernelLog) -> ReplayHost:
    """The workstation with what /dev/kmsg gave."""
    host = workstation().host()
    host.kernel_log = lambda *, allow_programs=False: log  # type: ignore[method-assign]
    return host


def whole(text: str = KMSG, **changes: object) -> KernelLog:
    log = KernelLog(status="ok", text=text, source="/dev/kmsg", complete=True, first_sequence=0, read_at_s=5000.0)
    return replace(log, **changes)  # type: ignore[arg-type]


@pytest.mark.proves(GATE, "PASS", on="tree")
def test_a_buffer_from_its_first_record_on_is_whole() -> None:
    verdict = one(judged(reading(whole()), GATE, level="quick"), "PASS")
    assert verdict.evidence[0].found == "3 records, the first is number 0"


@pytest.mark.proves(GATE, "WARN", on="tree")
def test_a_buffer_that_went_round_is_told_with_the_remedy() -> None:
    verdict = one(judged(reading(whole(complete=False, first_sequence=4711)), GATE, level="quick"), "WARN")
    assert verdict.reason == "the kernel's log lacks the first 4711 records"
    assert "log_buf_len=16M" in verdict.fix[0].lines[0]


@pytest.mark.proves(GATE, "WARN", on="tree")
def test_records_overwritten_while_reading_are_counted() -> None:
    log = whole(complete=False, lost=17)
    verdict = one(judged(reading(log), GATE, level="quick"), "WARN")
    assert verdict.reason == "17 records of the kernel's log were overwritten while it was read"
    other = one(judged(reading(log), "klog.nv.xid", level="quick"), "UNKNOWN")
    assert "17 records were overwritten" in other.reason


def test_a_log_of_unknown_beginning_is_unknown() -> None:
    assert says(judged(reading(whole(complete=None)), GATE, level="quick"), "UNKNOWN")


def test_a_log_that_may_not_be_read_is_unknown_with_the_reason() -> None:
    log = KernelLog(status="denied", source="/dev/kmsg", detail="/dev/kmsg: kernel.dmesg_restrict is 1, so only root")
    for gate in (GATE, "klog.nv.xid", "klog.amd.reset"):
        verdict = one(judged(reading(log), gate, level="quick"), "UNKNOWN")
        assert "dmesg_restrict is 1" in verdict.reason


XID = "3,9,{micros},-;NVRM: Xid (PCI:0000:01:00): 94, pid=2503421, name=python3, Ch 00000008\n"


@pytest.mark.parametrize(("at_s", "status"), [(4899.0, "WARN"), (4901.0, "FAIL")])
def test_the_session_s_beginning_is_found_on_the_kernel_s_clock(at_s: float, status: str) -> None:
    host = reading(whole(KMSG + XID.format(micros=int(at_s * 1e6))))
    assert says(judged(host, "klog.nv.xid", level="quick", since_s=host.time() - 99), status)


def test_a_machine_that_was_suspended_is_judged_by_its_waking_time() -> None:
    """/proc/uptime counts sleep, the kernel's records do not: 4000 of 5000 s of uptime were asleep here."""
    host = reading(whole(KMSG + XID.format(micros=990 * 10**6), read_at_s=1000.0))
    assert says(judged(host, "klog.nv.xid", level="quick", since_s=host.time() - 60), "FAIL")


def test_wall_clocks_of_a_journal_tell_what_is_of_the_session() -> None:
    host = workstation().host()
    start = host.time()
    lines = ["2025-12-31T23:00:00+00:00 box kernel: Linux version 6.8.0 (x)"]
    text = "box kernel: NVRM: Xid (PCI:0000:01:00): 94, pid=2503421, name=python3, Ch 00000008"
    host = reading(whole("\n".join([*lines, f"2026-01-01T00:00:30+00:00 {text}"]), read_at_s=None))
    assert says(judged(host, "klog.nv.xid", level="quick", since_s=start + 10), "FAIL")
    assert says(judged(host, "klog.nv.xid", level="quick", since_s=start + 40), "WARN")
    assert says(judged(host, "klog.nv.xid", level="quick"), "WARN")


def test_all_gates_share_one_reading() -> None:
    calls = []
    host = reading(whole())
    host.kernel_log = lambda *, allow_programs=False: calls.append(allow_programs) or whole()  # type: ignore[method-assign, func-returns-value]
    judged(host, "klog.*", level="quick")
    assert calls == [False]
    judged(host, "klog.nv.*", level="standard")
    assert calls == [False, True]


def test_the_map_line_of_a_uuid_names_the_device() -> None:
    found = subject_of(logged("NVRM: GPU at PCI:0000:01:00: GPU-fa4e0000-0000-0000-0000-000000000001"), level="quick")
    assert log_evidence(found).log.status == "ok"


def test_this_machine_has_no_failed_verdict() -> None:
    host = local_host()
    judgement = judge(Subject(host=host, machine=discover(host)), gates=GATES)
    assert [verdict for verdict in judgement.verdicts if verdict.status in {"FAIL", "ERROR"}] == []


@pytest.mark.parametrize("gate", ["klog.nv.xid", "klog.amd.reset", "klog.race.card_order", GATE])
def test_the_recorded_virtual_machine_is_well(shared: Path, gate: str) -> None:
    judgement = judged(open_recording(str(shared / "machines" / "vm-2node-switch.tar.gz")), gate, level="quick")
    assert {verdict.status for verdict in judgement.verdicts} == {"PASS"}


@pytest.mark.proves("klog.nv.xid", "FAIL", on="recording")
def test_the_recorded_log_of_a_gpu_whose_gsp_hung(shared: Path) -> None:
    """leptonai/gpud PR#500: the recorded lines, on a machine with that GPU."""
    text = (shared / "machines/dmesg/gpud-dmesg-with-xid-119.log.txt").read_text(encoding="utf-8")
    machine = workstation().with_file("/var/log/dmesg", text.replace("0000:9b:00", "0000:01:00"))
    judgement = judged(machine, "klog.nv.xid", "klog.unknown_gpu_error", "klog.source_complete", level="quick")
    assert set(judgement.unfit) == {NVIDIA}
    assert "Xid 119" in judgement.unfit[NVIDIA]
    assert "nvidia-smi" in judgement.unfit[NVIDIA]


@pytest.mark.proves("klog.host", "WARN", on="recording")
@pytest.mark.proves("klog.race.late_registration", "PASS", on="recording")
def test_the_recorded_log_of_a_server_whose_gpus_are_well(shared: Path) -> None:
    """leptonai/gpud's test data: NVIDIA's module loaded twice by hand, and a panic that was only staged."""
    text = (shared / "machines/dmesg/gpud-dmesg.txt").read_text(encoding="utf-8")
    judgement = judged(workstation().with_file("/var/log/dmesg", text), "klog.*", level="quick")
    assert [each for each in judgement.verdicts if each.status in {"FAIL", "ERROR"}] == []
    assert judgement.unfit == {}


LINES = [
    *BOOT.splitlines(),
    "NVRM: Xid (PCI:0000:01:00): 79, pid=7992, GPU has fallen off the bus.",
    "NVRM: Xid (PCI:0000:01:00): 45, pid='<unknown>', name=<unknown>",
    "amdgpu 0000:04:00.0: amdgpu: GPU reset(1) failed",
    "amdgpu 0000:04:00.0: amdgpu: GPU reset(1) succeeded!",
    "xe 0000:07:00.0: [drm] *ERROR* CRITICAL: Xe has declared device 0000:07:00.0 as wedged.",
    "pcieport 0000:00:01.1: AER: Correctable error message received from 0000:01:00.0",
    "BERT: Error records from previous boot:",
    "[Hardware Error]:   device_id: 0000:00:02.1",
    "x86/amd: Previous system reset reason [0x08000800]: flood",
    "[drm] Initialized simpledrm 1.0.0 for simple-framebuffer.0 on minor 99999999",
    "kfd kfd: amdgpu: skipped device 1002:744c, PCI rejects atomics 730<0",
]
torn = st.builds(lambda line, at: line[:at], st.sampled_from(LINES), st.integers(0, 90))
garbage = st.text(alphabet=st.characters(codec="utf-8"), max_size=60)


@settings(max_examples=50)
@given(st.lists(st.one_of(garbage, st.sampled_from(LINES), torn), max_size=12), st.booleans())
def test_whatever_the_log_says_no_gate_breaks(lines: list[str], session: bool) -> None:
    host = reading(whole("\n".join(lines), complete=None))
    since = host.time() - 10 if session else None
    subject = Subject(host=host, machine=MACHINE, since_s=since)
    judgement = judge(subject, gates=GATES)
    assert [each.detail for each in judgement.verdicts if each.status == "ERROR"] == []
    # Nothing shows that such a log is whole: what it lacks is unknown.
    quiet = {each.status for each in judgement.verdicts if each.id in {"klog.nv.bar", "klog.swiotlb", GATE}}
    assert quiet <= {"UNKNOWN", "WARN", "FAIL"}


MACHINE = discover(workstation().host())


@settings(max_examples=50)
@given(st.text(max_size=300))
def test_any_text_is_searched_for_a_crash(text: str) -> None:
    assert crash_of(text) is None or isinstance(crash_of(text), str)
    assert module_of(text.splitlines()) is None or isinstance(module_of(text.splitlines()), str)


def test_callers_name_the_driver_where_no_register_does() -> None:
    frames = ["Call Trace:", " <TASK>", " ? _raw_spin_lock+0x1/0x10", " drm_sched_main+0x19a/0x440 [gpu_sched]"]
    assert module_of(frames) == "gpu_sched"
    assert module_of(["pc : amdgpu_ib_schedule+0x15f/0x5d0 [amdgpu]"]) == "amdgpu"
    assert module_of(["RIP: 0010:_nv012454rm+0x437/0x4b0 [nvidia 0123456789abcdef]"]) == "nvidia"
    assert module_of([]) is None


def test_a_record_of_the_judgement_says_the_same(tmp_path: Path) -> None:
    lines = "NVRM: Xid (PCI:0000:01:00): 31, pid=13332, name=train, Ch 00000010\n"
    lines += "amdgpu 0000:04:00.0: amdgpu: GPU reset(1) failed\n"
    lines += "BUG: kernel NULL pointer dereference, address: 0000000000000030\n"
    lines += "RIP: 0010:nvidia_vma_access+0x1b/0x350 [nvidia]"
    recording = RecordingHost(logged(lines).host())
    since = recording.time() - 4950
    before = judge(Subject(host=recording, machine=discover(recording), since_s=since), gates=GATES)
    path = str(tmp_path / "machine.tar.gz")
    write_recording(recording, path)
    replayed = open_recording(path)
    after = judge(Subject(host=replayed, machine=discover(replayed), since_s=since), gates=GATES)
    assert [(each.id, each.status, each.devices) for each in after.verdicts] == [
        (each.id, each.status, each.devices) for each in before.verdicts
    ]
    assert after.unfit.keys() == before.unfit.keys() == {AMD}


def test_lines_without_any_time_cannot_be_told_from_new_ones() -> None:
    host = reading(whole("Linux version 6.8.0 (x)\nNVRM: hello\n"))
    assert says(judged(host, "klog.baseline", level="quick", since_s=host.time() - 10), "UNKNOWN")


def test_a_session_whose_records_were_overwritten_is_unknown() -> None:
    host = reading(whole(KMSG, complete=False, lost=5))
    assert says(judged(host, "klog.baseline", level="quick", since_s=host.time() - 10), "UNKNOWN")


def test_an_empty_log_shows_nothing() -> None:
    assert says(judged(reading(whole("")), "klog.nv.xid", level="quick"), "UNKNOWN")


def test_an_uptime_that_makes_no_sense_leaves_all_lines_in_the_past() -> None:
    machine = logged("NVRM: Xid (PCI:0000:01:00): 94, pid=1, name=x, Ch 00000008").with_file("/proc/uptime", "soon\n")
    host = machine.host()
    assert says(judged(host, "klog.nv.xid", level="quick", since_s=host.time() - 4000), "WARN")
