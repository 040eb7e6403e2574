"""Each gate on lines that real machines printed: a good boot passes, and each kind of line does what it should."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_gpucoexist.gates.catalogue import gates_of_level
from tests.gates.kernel_log.logs import AMD, INTEL, NVIDIA, cut, logged, one, said, workstation

QUIET = sorted(
    gate.id
    for gate in gates_of_level("quick")
    if gate.group == "kernel-log" and gate.id not in {"klog.silent_hang", "klog.baseline"}
)
"""Gates that a good boot alone lets pass."""


@pytest.mark.parametrize(
    "gate", [pytest.param(each, marks=pytest.mark.proves(each, "PASS", on="tree")) for each in QUIET]
)
def test_a_good_boot_passes(gate: str) -> None:
    judgement = said(logged(""), gate)
    assert {each.status for each in judgement.verdicts} == {"PASS"}
    assert all(each.evidence for each in judgement.verdicts)


@pytest.mark.parametrize("gate", [each for each in QUIET if not each.startswith("klog.race")])
def test_no_log_is_unknown_and_says_why(gate: str) -> None:
    verdict = one(said(workstation(), gate), "UNKNOWN")
    assert verdict.reason == "the kernel's log could not be read: not recorded"
    assert not verdict.blocks


@pytest.mark.parametrize(
    "gate", [each for each in QUIET if not each.startswith("klog.race") and each != "klog.map_bdf"]
)
def test_nothing_found_in_half_a_log_is_unknown(gate: str) -> None:
    judgement = said(cut(""), gate)
    expected = {"WARN"} if gate == "klog.source_complete" else {"UNKNOWN"}
    assert {each.status for each in judgement.verdicts} == expected
    if gate not in {"klog.bert", "klog.unknown_gpu_error"}:
        assert "beginning of this boot" in judgement.verdicts[0].reason


def line(
    gate: str, text: str, status: str, words: str, key: str | None, *, now: bool = False, name: str, **more: Any
) -> Any:
    """One case: the line, what the gate says of it, about which device; `now`: in this session."""
    marks = pytest.mark.proves(gate, status, on="tree")
    return pytest.param(gate, text, status, words, key, now, more, marks=marks, id=f"{gate}-{name}")


CASES = [
    # facts/kernel_log_samples.jsonl names the reports; addresses are those of the workstation.
    line(
        "klog.nv.xid",
        "NVRM: Xid (PCI:0000:01:00): 109, pid=326, name=modprobe, channel 0x00000007, errorString CTX SWITCH TIMEOUT",
        "FAIL",
        "Xid 109: ",
        NVIDIA,
        now=True,
        name="now",
    ),
    line(
        "klog.nv.xid",
        "NVRM: Xid (PCI:0000:01:00): 109, pid=326, name=modprobe, channel 0x00000007, errorString CTX SWITCH TIMEOUT",
        "WARN",
        "earlier this boot, process modprobe (PID 326 of the host)",
        NVIDIA,
        name="earlier",
    ),
    line(
        "klog.nv.xid",
        "NVRM: Xid (PCI:0000:01:00): 13, pid='<unknown>', name=<unknown>, Graphics SM Warp Exception on (GPC 7)",
        "WARN",
        "Xid 13: ",
        NVIDIA,
        now=True,
        name="of-a-program",
    ),
    line(
        "klog.nv.fallen",
        "NVRM: GPU 0000:01:00.0: GPU has fallen off the bus.",
        "FAIL",
        "no longer answers on PCIe",
        NVIDIA,
        name="any-time",
    ),
    line(
        "klog.nv.fallen",
        "NVRM: krcRcAndNotifyAllChannels_IMPL: RC all channels for critical error 79.",
        "WARN",
        "a GPU that is gone",
        NVIDIA,
        name="calls-after-it",
    ),
    line(
        "klog.nv.api_mismatch",
        "NVRM: API mismatch: the client has the version 535.171.04, but\n"
        "NVRM: this kernel module has the version 570.133.07.  Please\n"
        "NVRM: make sure that this kernel module and all NVIDIA driver\n"
        "NVRM: components have the same version.",
        "FAIL",
        "different versions",
        NVIDIA,
        now=True,
        name="now",
    ),
    line(
        "klog.nv.api_mismatch",
        "NVRM: API mismatch: the client has the version 535.171.04, but",
        "WARN",
        "earlier this boot",
        NVIDIA,
        name="earlier",
    ),
    line(
        "klog.nv.init",
        "NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x22:0x56:667)\n"
        "NVRM: GPU 0000:01:00.0: rm_init_adapter failed, device minor number 0",
        "FAIL",
        "could not initialise this GPU, 2 times",
        NVIDIA,
        name="rminit",
    ),
    line(
        "klog.nv.bar",
        "NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:\n"
        "NVRM: BAR1 is 0M @ 0x0 (PCI:0000:01:00.0)",
        "FAIL",
        "no memory window",
        NVIDIA,
        name="no-bar",
    ),
    line(
        "klog.nv.nvlink",
        "NVRM: Xid (PCI:0000:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 (0x025525c6 0x00000000)",
        "FAIL",
        "Xid 149: ",
        NVIDIA,
        now=True,
        name="fatal-now",
    ),
    line(
        "klog.nv.nvlink",
        "NVRM: Xid (PCI:0000:01:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008)",
        "WARN",
        "Xid 145: ",
        NVIDIA,
        now=True,
        name="not-fatal",
    ),
    line(
        "klog.amd.hang",
        "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring comp_1.1.0 timeout, signaled seq=813605, emitted seq=813607",
        "FAIL",
        "a job on this engine of the GPU hung, in this session",
        AMD,
        now=True,
        name="now",
    ),
    line(
        "klog.amd.hang",
        "amdgpu 0000:04:00.0: amdgpu: ring gfx_0.0.0 timeout, but soft recovered",
        "WARN",
        "hung, in this session",
        AMD,
        now=True,
        name="soft-recovered",
    ),
    line(
        "klog.amd.page_fault",
        "amdgpu 0000:04:00.0: amdgpu: [gfxhub0] no-retry page fault (src_id:0 ring:88 vmid:4 pasid:32772)",
        "FAIL",
        "not mapped on the GPU, in this session",
        AMD,
        now=True,
        name="now",
    ),
    line(
        "klog.amd.page_fault",
        "amdgpu 0000:04:00.0: amdgpu: [gfxhub0] no-retry page fault (src_id:0 ring:88 vmid:4 pasid:32772)",
        "WARN",
        "earlier this boot",
        AMD,
        name="earlier",
    ),
    line(
        "klog.amd.init",
        "[drm:amdgpu_device_init [amdgpu]] *ERROR* hw_init of IP block <gfx_v11_0> failed -110\n"
        "amdgpu 0000:04:00.0: amdgpu: amdgpu_device_ip_init failed\n"
        "amdgpu 0000:04:00.0: amdgpu: Fatal error during GPU init",
        "FAIL",
        "a block of the GPU did not start",
        AMD,
        name="ip-block",
    ),
    line(
        "klog.amd.ras",
        "amdgpu 0000:04:00.0: amdgpu: uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!",
        "FAIL",
        "could not be corrected",
        AMD,
        name="uncorrectable",
    ),
    line(
        "klog.amd.ras",
        "amdgpu 0000:04:00.0: amdgpu: 3 correctable hardware errors detected in total in umc block",
        "WARN",
        "corrected errors",
        AMD,
        name="corrected",
    ),
    line(
        "klog.amd.ras",
        "[drm:amdgpu_ras_eeprom_init [amdgpu]] *ERROR* Failed to read EEPROM table header, res:-5",
        "UNKNOWN",
        "could not read the card's history",
        AMD,
        name="no-history",
    ),
    line(
        "klog.amd.thermal",
        "amdgpu 0000:04:00.0: amdgpu: ERROR: GPU over temperature range(SW CTF) detected!",
        "FAIL",
        "critical temperature",
        AMD,
        now=True,
        name="critical-now",
    ),
    line(
        "klog.amd.thermal",
        "amdgpu 0000:04:00.0: amdgpu: ERROR: GPU over temperature range(SW CTF) detected!",
        "WARN",
        "earlier this boot",
        AMD,
        name="critical-earlier",
    ),
    line(
        "klog.amd.smu",
        "amdgpu 0000:04:00.0: amdgpu: SMU: I'm not done with your previous command: SMN_C2PMSG_66:0x00000006",
        "WARN",
        "cannot be trusted",
        AMD,
        name="stuck",
    ),
    line(
        "klog.intel.hang",
        "xe 0000:07:00.0: [drm] Tile0: GT0: Timedout job: seqno=1523, lrc_seqno=1523, guc_id=9, flags=0x20 in ai [269]",
        "FAIL",
        "in this session",
        INTEL,
        now=True,
        name="job-timeout-now",
    ),
    line(
        "klog.intel.hang",
        "xe 0000:07:00.0: [drm] Tile0: GT0: Timedout job: seqno=1523, lrc_seqno=1523, guc_id=9, flags=0x20 in ai [269]",
        "WARN",
        "earlier this boot",
        INTEL,
        name="job-timeout-earlier",
    ),
    line(
        "klog.intel.reset",
        "xe 0000:07:00.0: [drm] Tile0: GT0: Engine reset: engine_class=ccs, logical_mask: 0x1, guc_id=2, state=0x3",
        "WARN",
        "in this session",
        INTEL,
        now=True,
        name="now",
    ),
    line(
        "klog.pci.aer",
        "pcieport 0000:00:01.1: AER: Uncorrectable (Non-Fatal) error received from 0000:01:00.0\n"
        "nvidia 0000:01:00.0: PCIe Bus Error: severity=Uncorrectable (Non-Fatal), type=Transaction Layer\n"
        "nvidia 0000:01:00.0: AER: can't recover (no error_detected callback)",
        "FAIL",
        "could not repair it, 2 times, in this session",
        NVIDIA,
        now=True,
        name="uncorrectable-now",
    ),
    line(
        "klog.pci.aer",
        "pcieport 0000:00:02.1: AER: Uncorrected (Fatal) error received: id=0010",
        "WARN",
        "earlier this boot",
        AMD,
        name="uncorrectable-earlier-on-a-port",
    ),
    line(
        "klog.pci.aer",
        "pciehp 0000:00:01.1:pcie24: Slot(6): Link Down",
        "FAIL",
        "in this session",
        NVIDIA,
        now=True,
        name="link-down",
    ),
    line(
        "klog.pci.power",
        "nvidia 0000:01:00.0: can't change power state from D3cold to D0 (config space inaccessible)",
        "FAIL",
        "did not wake up, in this session",
        NVIDIA,
        now=True,
        name="now",
    ),
    line(
        "klog.pci.power",
        "nvidia-gpu 0000:01:00.3: Refused to change power state, currently in D3",
        "WARN",
        "earlier this boot",
        NVIDIA,
        name="another-function-earlier",
    ),
    line(
        "klog.iommu",
        "nvidia 0000:01:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0003 address=0x80000040 flags=0x0020]",
        "FAIL",
        "the IOMMU refused",
        NVIDIA,
        now=True,
        name="amd-vi",
    ),
    line(
        "klog.iommu",
        "DMAR: [DMA Read NO_PASID] Request device [01:00.0] fault addr 0x7cd80000 [fault reason 0x01] Present bit",
        "WARN",
        "earlier this boot",
        NVIDIA,
        name="vt-d-earlier",
    ),
    line(
        "klog.swiotlb",
        "nvidia 0000:01:00.0: swiotlb buffer is full (sz: 2097152 bytes), total 32768 (slots), used 0 (slots)",
        "WARN",
        "bounce buffer",
        NVIDIA,
        name="full",
    ),
    line(
        "klog.host",
        "BUG: kernel NULL pointer dereference, address: 0000000000000030\n"
        "#PF: supervisor read access in kernel mode\n"
        "Oops: Oops: 0000 [#1] SMP NOPTI\n"
        "CPU: 0 UID: 1000 PID: 28651 Comm: python3.14 Tainted: G           O        6.18.24 #1-NixOS\n"
        "RIP: 0010:nvidia_vma_access+0x1b/0x350 [nvidia]",
        "FAIL",
        "in nvidia, earlier this boot",
        None,
        name="oops-in-a-driver",  # NVIDIA/open-gpu-kernel-modules#1107
    ),
    line(
        "klog.host",
        "watchdog: BUG: soft lockup - CPU#0 stuck for 27s! [cuda-EvtHandlr:2255424]",
        "FAIL",
        "in this session",
        None,
        now=True,
        name="lockup-now",
    ),
    line(
        "klog.host",
        "INFO: task jfsmount:136986 blocked for more than 120 seconds.",
        "WARN",
        "waits in the kernel",
        None,
        name="hung-task",
    ),
    line(
        "klog.unknown_gpu_error",
        "<3>[  100.000000] amdgpu 0000:04:00.0: amdgpu: flux capacitor lost its phase (3)",
        "WARN",
        "flux capacitor",
        None,
        name="new-wording",
    ),
    line(
        "klog.map_bdf",
        "NVRM: Xid (PCI:0000:4c:00): 79, pid=7992, GPU has fallen off the bus.",
        "WARN",
        "an NVIDIA GPU at 0000:4c:00, and nothing is there on the bus now",
        None,
        name="gone",
    ),
    line(
        "klog.baseline",
        "amdgpu 0000:04:00.0: amdgpu: [gfxhub0] no-retry page fault (src_id:0 ring:88 vmid:4 pasid:32772)",
        "WARN",
        "1 grave lines since the session began",
        AMD,
        now=True,
        name="new",
    ),
]


@pytest.mark.parametrize(("gate", "text", "status", "words", "key", "now", "more"), CASES)
def test_a_line_is_judged(
    gate: str, text: str, status: str, words: str, key: str | None, now: bool, more: dict[str, Any]
) -> None:
    machine = logged(text)
    judgement = said(machine, gate, session_s=50 if now else 4000 if gate == "klog.baseline" else None, **more)
    verdict = one(judgement, status)
    assert words in verdict.reason
    assert verdict.devices == (() if key is None else (key,))
    assert verdict.action or status == "UNKNOWN"
    assert any("line" in each.source for each in verdict.evidence)


@pytest.mark.proves("klog.baseline", "PASS", on="tree")
def test_old_lines_are_not_new() -> None:
    machine = logged("NVRM: Xid (PCI:0000:01:00): 79, pid=7992, GPU has fallen off the bus.")
    assert one(said(machine, "klog.baseline", session_s=4000), "PASS").reason == "no grave line since the session began"


def test_outside_of_a_session_nothing_is_new() -> None:
    assert one(said(logged(""), "klog.baseline"), "SKIP").reason == "outside of a session nothing in the log is new"


@pytest.mark.parametrize(
    "gate", ["klog.amd.page_fault", "klog.amd.hang", "klog.iommu", "klog.amd.thermal", "klog.intel.reset"]
)
def test_half_a_log_still_shows_that_a_session_had_none(gate: str) -> None:
    judgement = said(cut(""), gate, session_s=1000)
    assert {each.status for each in judgement.verdicts} == {"PASS"}
    assert "since the session began" in judgement.verdicts[0].reason


@pytest.mark.parametrize("gate", ["klog.nv.xid", "klog.amd.reset", "klog.nv.fallen", "klog.intel.hang"])
def test_half_a_log_does_not_show_that_a_boot_had_none(gate: str) -> None:
    judgement = said(cut(""), gate, session_s=1000)
    assert {each.status for each in judgement.verdicts} == {"UNKNOWN"}
    assert judgement.unfit == {}
