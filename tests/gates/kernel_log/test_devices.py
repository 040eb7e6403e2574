"""Lines that are judged beside what the machine is now: drivers, BARs, compute nodes, modules, rates of errors."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_gpucoexist.testing.builder import a_machine
from pytest_gpucoexist.testing.catalogue import CATALOGUE
from tests.gates.kernel_log.logs import AMD, NVIDIA, about, logged, one, said, says, workstation
from tests.gates.kernel_module.installed import wanting

NOT_CALLED = "NVRM: The NVIDIA probe routine was not called for 1 device(s)."
NO_DEVICE = "NVRM: No NVIDIA devices probed."


@pytest.mark.proves("klog.nv.probe", "FAIL", on="tree")
def test_nouveau_kept_the_driver_from_its_gpu() -> None:
    text = f"nouveau 0000:01:00.0: NVIDIA AD102 (192000a1)\n{NOT_CALLED}\n{NO_DEVICE}"
    machine = workstation().with_wrong_driver("nvidia0", "nouveau")
    verdict = one(said(logged(text, machine), "klog.nv.probe"), "FAIL")
    assert verdict.devices == (NVIDIA,)
    assert not verdict.blocks
    assert "nouveau" in verdict.reason


@pytest.mark.proves("klog.nv.probe", "WARN", on="tree")
def test_a_gpu_given_to_a_virtual_machine_is_a_warning() -> None:
    """wezterm/wezterm#3561."""
    machine = workstation().with_wrong_driver("nvidia0", "vfio-pci")
    assert one(said(logged(f"{NOT_CALLED}\n{NO_DEVICE}", machine), "klog.nv.probe"), "WARN").devices == (NVIDIA,)


@pytest.mark.proves("klog.nv.probe", "PASS", on="tree")
def test_a_gpu_that_has_its_driver_was_claimed_after_all() -> None:
    verdict = one(said(logged(NOT_CALLED), "klog.nv.probe"), "PASS")
    assert "no problem here" in verdict.reason


def test_nouveau_on_a_machine_without_nvidia_s_software_is_healthy() -> None:
    machine = a_machine().with_gpu("rtx3090", driver="nouveau")
    text = "nouveau 0000:01:00.0: NVIDIA GA102 (172000a1)\nnouveau 0000:01:00.0: DRM: VRAM: 24576 MiB"
    assert says(said(logged(text, machine), "klog.nv.probe"), "PASS")


@pytest.mark.parametrize(
    ("driver", "model", "gate", "firmware"),
    [
        ("amdgpu", "rx7900xtx", "klog.amd.init", "amdgpu/isp_4_1_0.bin"),
        ("nvidia", "rtx4090", "klog.nv.init", "nvidia/570.133.07/gsp_ga10x.bin"),
    ],
)
def test_firmware_is_missed_only_by_a_gpu_without_a_driver(driver: str, model: str, gate: str, firmware: str) -> None:
    machine = wanting(model)
    address = NVIDIA if driver == "nvidia" else "0000:03:00.0"
    text = f"{driver} {address}: Direct firmware load for {firmware} failed with error -2"
    assert said(logged(text, machine, boot=""), gate).verdicts[0].status in {"PASS", "UNKNOWN"}
    broken = machine.with_wrong_driver(f"{'nvidia' if driver == 'nvidia' else 'amd'}0", None)
    assert one(said(logged(text, broken, boot=""), gate), "FAIL").devices == (address,)


ATOMICS = "kfd kfd: amdgpu: skipped device 1002:744c, PCI rejects atomics 730<0"


COMPUTE_NODE = "/sys/devices/virtual/kfd/kfd/topology/nodes/1"


@pytest.mark.proves("klog.amd.kfd", "FAIL", on="tree")
def test_a_slot_without_atomics_costs_the_gpu_its_compute_node() -> None:
    """ROCm/legacy-rocm-build#1214, #910: the card works for displays and ROCm does not see it."""
    machine = wanting("rx7900xtx").without(COMPUTE_NODE)
    verdict = one(said(logged(ATOMICS, machine), "klog.amd.kfd"), "FAIL")
    assert len(verdict.devices) == 1
    assert "PCIe atomics" in verdict.reason
    assert verdict.action == "move the card to a slot that is wired to the processor"


@pytest.mark.proves("klog.amd.kfd", "PASS", on="tree")
def test_a_gpu_that_has_a_compute_node_was_not_skipped_for_good() -> None:
    assert says(said(logged(ATOMICS), "klog.amd.kfd"), "PASS")


def test_where_nobody_wants_rocm_a_skipped_gpu_is_no_problem() -> None:
    machine = a_machine().with_gpu("rx7900xtx").without(COMPUTE_NODE)
    assert says(said(logged(ATOMICS, machine), "klog.amd.kfd"), "PASS")


def test_a_skipped_gpu_of_another_kind_is_another_s() -> None:
    text = "kfd kfd: amdgpu: skipped device 1002:73ff, PCI rejects atomics 730<0"
    machine = wanting("rx7900xtx").without(COMPUTE_NODE)
    assert says(said(logged(text, machine), "klog.amd.kfd"), "PASS")


BAR = "pci 0000:01:00.0: BAR 1 [mem size 0x10000000 64bit pref]: failed to assign"


@pytest.mark.proves("klog.pci.bar", "FAIL", on="tree")
def test_a_gpu_whose_memory_window_got_no_address() -> None:
    """HeyMeco/Rockchip-pcie-devices#2: no room above 4 GiB; the driver never attaches."""
    machine = workstation().with_wrong_driver("nvidia0", None)
    verdict = one(said(logged(BAR, machine), "klog.pci.bar"), "FAIL")
    assert verdict.devices == (NVIDIA,)
    assert "Above 4G" in verdict.action


@pytest.mark.parametrize(
    "text",
    [
        BAR,
        "amdgpu 0000:04:00.0: BAR 0: no space for [mem size 0x200000000 64bit pref]",
        "pci 0000:01:00.1: BAR 0 [mem size 0x00004000]: failed to assign",
        "pcieport 0000:00:01.1: BAR 15: no space for [mem size 0x18000000 64bit pref]",
        "pci 0000:01:00.0: VF BAR 0 [mem size 0x00400000 64bit pref]: can't assign; no space",
    ],
    ids=["driver-is-bound", "resize-attempt", "audio-function", "port", "virtual-function"],
)
def test_windows_that_do_not_matter(text: str) -> None:
    assert {each.status for each in said(logged(text), "klog.pci.bar").verdicts} == {"PASS"}


def test_a_window_that_was_assigned_later_is_a_warning_at_most() -> None:
    machine = workstation().with_wrong_driver("nvidia0", None)
    text = f"{BAR}\npci 0000:01:00.0: BAR 1 [mem 0x1800000000-0x180fffffff 64bit pref]: assigned"
    assert {each.status for each in said(logged(text, machine), "klog.pci.bar").verdicts} <= {"PASS", "WARN"}


REJECTED = "nvidia: version magic '6.8.0-58-generic SMP mod_unload ' should be '6.8.0-60-generic SMP mod_unload '"


@pytest.mark.proves("klog.module", "FAIL", on="tree")
def test_a_module_for_another_kernel_is_not_loaded() -> None:
    """negativo17/nvidia-driver#97."""
    machine = workstation().with_wrong_driver("nvidia0", None).without("/sys/module/nvidia")
    verdict = one(said(logged(REJECTED, machine), "klog.module"), "FAIL")
    assert verdict.devices == (NVIDIA,)
    assert "built for another kernel, nvidia, earlier this boot" in verdict.reason


@pytest.mark.proves("klog.module", "PASS", on="tree")
def test_a_module_that_is_loaded_now_was_built_anew() -> None:
    assert {each.status for each in said(logged(REJECTED), "klog.module").verdicts} == {"PASS"}


def test_modules_of_others_are_nobody_s_business() -> None:
    text = "vboxdrv: version magic '6.8.0-58-generic SMP' should be '6.8.0-60-generic SMP'"
    assert {each.status for each in said(logged(text), "klog.module").verdicts} == {"PASS"}


@pytest.mark.proves("klog.module", "WARN", on="tree")
def test_a_refused_signature_without_a_name_matters_where_a_driver_is_missing() -> None:
    text = "PKCS#7 signature not signed with a trusted key"
    machine = workstation().with_wrong_driver("nvidia0", None)
    assert one(said(logged(text, machine), "klog.module"), "WARN").devices == (NVIDIA,)


def corrected(count: int, *, port: str = "0000:00:01.1", every_s: float = 1.0, from_s: float = 100.0) -> str:
    """Corrected errors as a kernel 6.8 prints them (pop-os/pop#3363)."""
    lines = []
    for number in range(count):
        stamp = f"<4>[{from_s + number * every_s:12.6f}] "
        lines.append(f"{stamp}pcieport {port}: AER: Correctable error message received from {port}")
        lines.append(
            f"{stamp}pcieport {port}: PCIe Bus Error: severity=Correctable, type=Data Link Layer, (Transmitter ID)"
        )
        lines.append(f"{stamp}pcieport {port}:   device [1022:1453] error status/mask=00001000/00006000")
        lines.append(f"{stamp}pcieport {port}:    [12] Timeout")
    return "\n".join(lines)


@pytest.mark.proves("klog.pci.aer", "WARN", on="tree")
def test_many_corrected_errors_are_a_warning_with_their_rate() -> None:
    verdict = about(said(logged(corrected(12)), "klog.pci.aer", session_s=50), NVIDIA)
    assert verdict.status == "WARN"
    assert "up to 12 in one minute, in this session" in verdict.reason


@pytest.mark.proves("klog.pci.aer", "PASS", on="tree")
def test_few_corrected_errors_are_no_problem() -> None:
    verdict = about(said(logged(corrected(40, every_s=30)), "klog.pci.aer", session_s=50), NVIDIA)
    assert verdict.status == "PASS"
    assert "up to 2 in one minute" in verdict.reason


def test_too_many_in_this_session_fail() -> None:
    assert about(said(logged(corrected(20)), "klog.pci.aer", session_s=50), NVIDIA).status == "FAIL"
    assert about(said(logged(corrected(20)), "klog.pci.aer", session_s=4000), NVIDIA).status == "WARN"


def test_the_fastest_links_may_repair_twice_as_often() -> None:
    fast = replace(CATALOGUE["rtx4090"], speed_gtps=32.0)
    machine = a_machine().with_gpu(fast).with_file("/proc/uptime", "5000.00 1.00\n")
    assert about(said(logged(corrected(20), machine), "klog.pci.aer", session_s=50), NVIDIA).status == "WARN"
    assert about(said(logged(corrected(40), machine), "klog.pci.aer", session_s=50), NVIDIA).status == "FAIL"


def test_limits_are_those_of_the_suite() -> None:
    limits = {"klog.pci.aer": {"warn_per_minute": 100.0, "fail_per_minute": 200.0}}
    assert about(said(logged(corrected(20)), "klog.pci.aer", session_s=50, limits=limits), NVIDIA).status == "PASS"


def test_errors_of_a_port_above_concern_the_gpu_below() -> None:
    judgement = said(logged(corrected(12, port="0000:02:00.0")), "klog.pci.aer")
    assert about(judgement, AMD).status == "WARN"
    assert about(judgement, NVIDIA).status == "PASS"


def test_the_gpu_s_audio_function_reports_for_its_slot() -> None:
    """xCuri0/ReBarUEFI#11."""
    text = "snd_hda_intel 0000:01:00.1: PCIe Bus Error: severity=Correctable, type=Data Link Layer, (Receiver ID)"
    judgement = said(logged("\n".join([text] * 9)), "klog.pci.aer")
    assert about(judgement, NVIDIA).status == "WARN"


def test_errors_of_other_devices_are_nobody_s_business() -> None:
    judgement = said(logged(corrected(50, port="0000:00:1c.5")), "klog.pci.aer")
    assert {each.status for each in judgement.verdicts} == {"PASS"}


@pytest.mark.parametrize(
    ("module", "status"),
    [("amdgpu", "FAIL"), ("btrfs", "WARN")],
)
def test_an_old_oops_counts_where_it_was_a_gpu_s_driver(module: str, status: str) -> None:
    text = "BUG: kernel NULL pointer dereference, address: 0000000000000040\n"
    text += f"RIP: 0010:something+0x70/0x80 [{module}]\nCall Trace:\n <TASK>\n drm_sched_main+0x19a/0x440 [gpu_sched]"
    assert f"in {module}" in one(said(logged(text), "klog.host"), status).reason


def test_a_program_s_own_crash_is_no_crash_of_the_host() -> None:
    text = "<6>[  100.0] traps: python3[123] general protection fault ip:7f00 sp:7ffe error:0 in libfoo.so[7f00+1000]\n"
    text += "<4>[  101.0] Out of memory: Killed process 4711 (train) total-vm:1kB, anon-rss:1kB, file-rss:0kB"
    verdict = one(said(logged(text), "klog.host"), "PASS")
    assert "no problem here" in verdict.reason
    assert says(said(logged(text), "klog.host", session_s=50), "WARN")


def test_continuations_of_a_known_message_are_not_unknown_errors() -> None:
    text = "NVRM: GPU at PCI:0000:01:00: GPU-fa4e0000-0000-0000-0000-000000000001\n"
    text += "NVRM: Xid (PCI:0000:01:00): 119, pid=20, name=nvidia-smi, Timeout after 6s of waiting for RPC response\n"
    text += "NVRM: GPU0 GSP RPC buffer contains function 103 (GSP_RM_ALLOC) and data 0x0000000000002081\n"
    text += "NVRM: GPU0 RPC history (CPU -> GSP):"
    found = said(logged(text), "klog.unknown_gpu_error").verdicts[0]
    assert "RPC history" not in str(found)


def test_a_log_without_levels_leaves_unknown_errors_open() -> None:
    boot = "[    0.000000] Linux version 6.8.0 (x)\n"
    assert says(said(logged("[    5.000000] usb 1-1: hello", boot=boot), "klog.unknown_gpu_error"), "UNKNOWN")
    named = "[    5.000000] [drm:amdgpu_foo [amdgpu]] *ERROR* something new went wrong"
    assert says(said(logged(named, boot=boot), "klog.unknown_gpu_error"), "WARN")


DECLINED = "xe 0000:00:02.0: Your graphics device 56a1 is not officially supported"


def test_a_gpu_that_one_driver_declined_and_the_other_took_is_well() -> None:
    """geerlingguy/raspberry-pi-pcie-devices#510: xe declines what i915 drives."""
    assert says(said(logged(DECLINED, wanting("uhd770")), "klog.intel.hang"), "PASS")


@pytest.mark.parametrize(("software", "status"), [(True, "FAIL"), (False, "WARN")])
def test_a_gpu_that_no_driver_took_fails_where_it_is_wanted(software: bool, status: str) -> None:
    """NixOS/nixpkgs#448998."""
    machine = (wanting("uhd770") if software else a_machine().with_gpu("uhd770")).with_wrong_driver("intel0", None)
    text = "xe 0000:00:02.0: probe with driver xe failed with error -105"
    verdict = one(said(logged(text, machine), "klog.intel.hang"), status)
    assert not verdict.blocks


def test_links_without_a_bridge_are_no_problem_at_boot() -> None:
    text = "NVRM: knvlinkUpdatePostRxDetectLinkMask_IMPL: Failed to update Rx Detect Link mask!"
    assert says(said(logged(text), "klog.nv.nvlink"), "PASS")
    assert says(said(logged(text), "klog.nv.nvlink", session_s=50), "WARN")


def test_a_refused_module_of_a_vendor_without_a_gpu_here_is_no_problem() -> None:
    text = "amdgpu: disagrees about version of symbol drm_sched_init"
    assert says(said(logged(text, wanting("rtx4090")), "klog.module"), "PASS")


def test_a_page_budget_that_is_used_up_outlives_resets() -> None:
    text = "amdgpu 0000:04:00.0: amdgpu: Saved bad pages 24 reaches threshold value 24\n"
    text += "amdgpu 0000:04:00.0: amdgpu: GPU reset(1) succeeded!"
    assert says(said(logged(text), "klog.amd.ras"), "FAIL")


def test_a_driver_that_registered_a_gpu_which_is_not_there_any_more() -> None:
    text = "<6>[   20.0] [drm] Initialized nvidia-drm 0.0.0 20160202 for 0000:0d:00.0 on minor 4"
    verdict = one(said(logged(text), "klog.map_bdf"), "WARN")
    assert verdict.reason == (
        "the kernel's log speaks of an NVIDIA GPU at 0000:0d:00, and nothing is there on the bus now"
    )


def test_a_machine_without_a_bus_has_nothing_to_compare() -> None:
    machine = a_machine().with_gpu("rtx4090").without("/sys/bus/pci/devices")
    assert {each.status for each in said(logged("", machine), "klog.map_bdf").verdicts} == {"SKIP"}
