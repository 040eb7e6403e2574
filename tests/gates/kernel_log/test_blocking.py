"""What takes a device out, and what does not any more: resets, reloads, reboots of a part."""

from __future__ import annotations

import pytest

from pytest_gpucoexist.gates.catalogue import all_gates
from pytest_gpucoexist.gates.runner import judge
from pytest_gpucoexist.gates.subject import Subject
from pytest_gpucoexist.probes import discover
from pytest_gpucoexist.testing.vendor_replies import MigInstance
from tests.gates.judging import judged
from tests.gates.kernel_log.logs import AMD, INTEL, NVIDIA, about, logged, one, said, says, workstation
from tests.gates.kernel_module.installed import wanting

RELOADED = "<6>[  900.000000] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.133.07  Fri Mar 14 13:12:07 UTC 2025"
LOST = "NVRM: Xid (PCI:0000:01:00): 79, pid=7992, GPU has fallen off the bus."


@pytest.mark.proves("klog.nv.xid", "FAIL", on="tree")
@pytest.mark.proves("klog.nv.fallen", "FAIL", on="tree")
def test_a_gpu_that_fell_off_the_bus_is_out_for_the_rest_of_the_boot() -> None:
    """system76/firmware-open#259: Xid 79, then every call fails; only a power cycle helped."""
    text = f"{LOST}\nNVRM: GPU 0000:01:00.0: GPU has fallen off the bus."
    judgement = judged(logged(text), "klog.nv.xid", "klog.nv.fallen", level="quick")
    assert judgement.fit is False
    assert set(judgement.unfit) == {NVIDIA}
    assert "Xid 79: the GPU no longer answers on PCIe, earlier this boot" in judgement.unfit[NVIDIA]
    verdict = next(each for each in judgement.verdicts if each.id == "klog.nv.xid")
    assert verdict.blocks
    assert verdict.evidence[0].found == LOST
    assert verdict.evidence[0].source.startswith("/var/log/dmesg line ")
    assert "power" in verdict.action


@pytest.mark.proves("klog.nv.xid", "WARN", on="tree")
def test_a_module_that_was_loaded_again_puts_it_behind() -> None:
    """Azure/azurehpc PR#648: a grep of the whole file kept a repaired node drained until the log was rotated."""
    judgement = said(logged(f"{LOST}\n{RELOADED}"), "klog.nv.xid")
    assert judgement.fit is True
    verdict = one(judgement, "WARN")
    assert "before 'NVRM: loading NVIDIA UNIX x86_64 Kernel Module" in verdict.reason
    assert [each.found for each in verdict.evidence] == [LOST, RELOADED.partition("] ")[2]]


@pytest.mark.parametrize("gate", ["klog.nv.fallen", "klog.nv.init", "klog.nv.bar"])
def test_what_the_driver_said_before_it_was_loaded_again_is_over(gate: str) -> None:
    lines = {
        "klog.nv.fallen": "NVRM: GPU at 0000:01:00.0 has fallen off the bus.",
        "klog.nv.init": "NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x26:0x56:1474)",
        "klog.nv.bar": "NVRM: The system BIOS may have misconfigured your GPU.",
    }
    assert one(said(logged(f"{lines[gate]}\n{RELOADED}"), gate), "WARN").blocks is False
    assert says(said(logged(f"{RELOADED}\n<3>[  950.0] {lines[gate]}"), gate), "FAIL")


def test_a_failure_after_the_reload_counts() -> None:
    late = f"<3>[ 1000.000000] {LOST}"
    assert set(said(logged(f"{RELOADED}\n{late}"), "klog.nv.xid").unfit) == {NVIDIA}


def test_the_driver_s_own_all_clear_puts_a_reset_behind() -> None:
    """Xid 154 tells what the driver wants done; "None" ends it (rupalis-nv/NVSentinel's syslog tests)."""
    wanted = "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
    done = "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
    assert set(said(logged(wanted), "klog.nv.xid").unfit) == {NVIDIA}
    assert said(logged(f"{wanted}\n{done}"), "klog.nv.xid").unfit == {}


def test_a_gpu_that_was_found_again_is_in() -> None:
    rescan = "<6>[  800.000000] pci 0000:01:00.0: [10de:2684] type 00 class 0x030000 PCIe Legacy Endpoint"
    assert said(logged(f"{LOST}\n{rescan}"), "klog.nv.xid").unfit == {}


def test_in_a_session_an_xid_that_policy_forgives_earlier_blocks() -> None:
    """madMAx43v3r/chia-gigahorse#301 ends like this: a copy engine fails while the GPU is in use."""
    copy = "NVRM: Xid (PCI:0000:01:00): 39, pid=13332, name=plot, Ch 00000010"
    assert set(said(logged(copy), "klog.nv.xid", session_s=50).unfit) == {NVIDIA}
    assert said(logged(copy), "klog.nv.xid", session_s=4000).unfit == {}
    assert said(logged(copy), "klog.nv.xid").unfit == {}


def test_clean_ups_are_not_counted_beside_their_cause() -> None:
    """NVIDIA/open-gpu-kernel-modules#1150: dozens of Xid 45 follow the one that matters."""
    chain = ["NVRM: Xid (PCI:0000:01:00): 62, pid='<unknown>', name=<unknown>, 2023b230 20238a3a"]
    chain += ["NVRM: Xid (PCI:0000:01:00): 45, pid=1818990, name=python3, Ch 00000001 caused by previous Xid 62"] * 3
    verdict = one(said(logged("\n".join(chain)), "klog.nv.xid"), "FAIL")
    assert "Xid 62" in verdict.reason
    assert "Xid 45" not in verdict.reason
    assert len(verdict.evidence) == 1


def test_a_program_s_own_faults_take_nothing_out() -> None:
    faults = "NVRM: Xid (PCI:0000:01:00): 31, pid=13332, name=train, Ch 00000010. MMU Fault: ENGINE CE2\n" * 3
    verdict = one(said(logged(faults), "klog.nv.xid", session_s=50), "WARN")
    assert "3 times, in this session, process train (PID 13332 of the host)" in verdict.reason


BEGIN = "<4>[  100.000000] amdgpu 0000:04:00.0: amdgpu: GPU reset begin!"
TRYING = "<6>[  101.000000] amdgpu 0000:04:00.0: amdgpu: GPU reset succeeded, trying to resume"
VRAM = "<3>[  101.100000] [drm] VRAM is lost due to GPU reset!"
FAILED = "<6>[  102.000000] amdgpu 0000:04:00.0: amdgpu: GPU reset(1) failed"
ENDED = "<6>[  102.100000] amdgpu 0000:04:00.0: amdgpu: GPU reset end with ret = -110"
DONE = "<6>[  102.000000] amdgpu 0000:04:00.0: amdgpu: GPU reset(1) succeeded!"


@pytest.mark.proves("klog.amd.reset", "FAIL", on="tree")
def test_a_reset_that_failed_takes_the_gpu_out() -> None:
    """ROCm/legacy-rocm-build#3766 and kernel bug 208411: "succeeded, trying to resume", and then it did not."""
    judgement = said(logged(f"{BEGIN}\n{TRYING}\n{VRAM}\n{FAILED}\n{ENDED}"), "klog.amd.reset")
    assert set(judgement.unfit) == {AMD}
    assert "a reset did not bring the GPU back, 2 times, earlier this boot" in judgement.unfit[AMD]
    blocking = next(each for each in judgement.verdicts if each.blocks)
    assert blocking.action.startswith("reboot")


@pytest.mark.proves("klog.amd.reset", "WARN", on="tree")
def test_a_reset_that_succeeded_is_a_warning() -> None:
    judgement = said(logged(f"{BEGIN}\n{TRYING}\n{VRAM}\n{DONE}"), "klog.amd.reset", session_s=50)
    assert judgement.fit is True
    verdict = about(judgement, AMD)
    assert verdict.status == "WARN"
    assert "GPU reset(1) succeeded!" in verdict.reason
    assert "in this session" in verdict.reason


def test_a_reset_in_this_session_without_an_end_fails_and_does_not_block() -> None:
    verdict = about(said(logged(BEGIN), "klog.amd.reset", session_s=50), AMD)
    assert (verdict.status, verdict.blocks) == ("FAIL", False)


def test_a_ring_s_own_reset_that_failed_is_over_when_the_whole_gpu_was_reset() -> None:
    ring = "<3>[  100.000000] amdgpu 0000:04:00.0: amdgpu: Ring gfx_0.0.0 reset failed"
    assert said(logged(f"{ring}\n{DONE}"), "klog.amd.reset").unfit == {}
    assert set(said(logged(ring), "klog.amd.reset").unfit) == {AMD}


def test_a_driver_that_came_up_again_puts_a_failed_reset_behind() -> None:
    again = "<6>[  400.000000] [drm] Initialized amdgpu 3.57.0 for 0000:04:00.0 on minor 1"
    assert said(logged(f"{FAILED}\n{again}"), "klog.amd.reset").unfit == {}


def test_a_hang_that_a_reset_ended_is_a_warning() -> None:
    ring = "<3>[   99.000000] [drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring comp_1.1.0 timeout, signaled seq=8"
    verdict = about(said(logged(f"{ring}\n{BEGIN}\n{DONE}"), "klog.amd.hang", session_s=50), AMD)
    assert verdict.status == "WARN"


@pytest.mark.proves("klog.intel.hang", "FAIL", on="tree")
def test_a_wedged_device_is_out() -> None:
    """geerlingguy/raspberry-pi-pcie-devices#695: xe gives the device up and refuses every submission from then on."""
    text = "xe 0000:07:00.0: [drm] *ERROR* CRITICAL: Xe has declared device 0000:07:00.0 as wedged.\n"
    text += "                IOCTLs and executions are blocked."
    judgement = said(logged(text), "klog.intel.hang")
    assert set(judgement.unfit) == {INTEL}
    bound = "<6>[  500.000000] [drm] Initialized xe 1.1.0 20201103 for 0000:07:00.0 on minor 2"
    assert said(logged(f"{text.splitlines()[0]}\n{bound}"), "klog.intel.hang").unfit == {}


def test_a_hang_of_an_intel_gpu_fails_and_blocks_nothing() -> None:
    """clearlinux/distribution#2907."""
    machine = wanting("uhd770").with_file("/proc/uptime", "5000.00 1.00\n")
    text = "i915 0000:00:02.0: [drm] GPU HANG: ecode 12:1:0020fffe, in xdg-desktop-por [1676]"
    verdict = one(said(logged(text, machine), "klog.intel.hang", session_s=50), "FAIL")
    assert verdict.devices == ("0000:00:02.0",)
    assert not verdict.blocks


def test_lines_about_somebody_else_s_gpu_are_nobody_s_business() -> None:
    """A container that holds one of two cards sees the whole host's log."""
    machine = wanting("rtx4090", "rtx4090").with_file("/proc/uptime", "5000.00 1.00\n")
    other = "NVRM: Xid (PCI:0000:02:00): 79, pid=7992, GPU has fallen off the bus."
    both = said(logged(other, machine), "klog.nv.xid")
    assert set(both.unfit) == {"0000:02:00.0"}
    assert about(both, NVIDIA).status == "PASS"
    alone = said(logged(other, machine.without_nodes("nvidia1").with_environ(container="docker")), "klog.nv.xid")
    assert alone.unfit == {}
    assert one(alone, "PASS").devices == (NVIDIA,)


def test_a_line_that_names_no_device_takes_out_no_more_than_one() -> None:
    reset = "[drm] GPU reset(3) failed"
    two = wanting("rx7900xtx", "rx7900xtx").with_file("/proc/uptime", "5000.00 1.00\n")
    verdict = one(said(logged(reset, two), "klog.amd.reset"), "FAIL")
    assert (verdict.devices, verdict.blocks) == ((), False)
    assert set(said(logged(reset), "klog.amd.reset").unfit) == {AMD}


def test_a_partitioned_gpu_is_out_with_all_its_instances() -> None:
    slices = [
        MigInstance(uuid=f"MIG-{number}", name="NVIDIA A100 MIG 1g.10gb", gi=number, memory_total_bytes=10 * 2**30)
        for number in (7, 8)
    ]
    host = logged(LOST, wanting("a100").with_mig("nvidia0", *slices)).host()
    machine = discover(host, ask={"nvidia"})
    gates = [gate for gate in all_gates() if gate.id == "klog.nv.xid"]
    judgement = judge(Subject(host=host, machine=machine), gates=gates)
    assert len(judgement.unfit) >= 2
    assert set(judgement.unfit) == {gpu.key for gpu in machine.gpus}


def test_nothing_is_said_twice_without_a_log() -> None:
    judgement = said(workstation(), "klog.nv.xid")
    assert judgement.fit is None
    assert one(judgement, "UNKNOWN").action.startswith("Run it as a user")
