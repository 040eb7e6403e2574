"""Errors that machines log which are well."""

from __future__ import annotations

import pytest

from pytest_gpucoexist.gates.kernel_log.harmless import is_harmless
from pytest_gpucoexist.testing.builder import a_machine
from tests.gates.judging import verdict

GATE = "klog.unknown_gpu_error"
# Lines of people's logs: elFarto/nvidia-vaapi-driver#41, MrChromebox/firmware#74, and the drivers' own format strings.
KNOWN = (
    "i915 0000:00:02.0: [drm] *ERROR* CPU pipe A FIFO underrun: port,transcoder",
    "i915 0000:00:02.0: [drm] *ERROR* Failed to write source OUI",
    "i915 0000:00:02.0: [drm] *ERROR* AUX C/DDI C/PHY C: not done (status 0x00000000)",
    "[drm:drm_new_set_master] *ERROR* [nvidia-drm] [GPU ID 0x00000a00] Failed to grab modeset ownership",
    "[drm:nv_drm_master_set [nvidia_drm]] *ERROR* [nvidia-drm] [GPU ID 0x00000100] Failed to grab modeset ownership",
    "nvidia-gpu 0000:01:00.3: i2c timeout error e0000000",
    "amdgpu 0000:04:00.0: amdgpu: Secure display: Generic Failure.",
    "amdgpu 0000:04:00.0: amdgpu: SECUREDISPLAY: query securedisplay TA failed. ret 0x0",
)
SERIOUS = (
    "NVRM: Xid (PCI:0000:01:00): 79, pid=1, name=x, GPU has fallen off the bus.",
    "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring gfx_0.0.0 timeout, signaled seq=1, emitted seq=3",
    "NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x62:0x40:2393)",
    "i915 0000:00:02.0: [drm] *ERROR* GT0: GuC initialization failed -ENOEXEC",
    "amdgpu 0000:04:00.0: amdgpu: GPU reset begin!",
    "nvidia 0000:01:00.0: can't change power state from D3cold to D0 (config space inaccessible)",
)


def log(*lines: str) -> str:
    return "<5>[    0.000000] Linux version 6.8.0\n" + "".join(f"<3>[    5.000000] {line}\n" for line in lines)


def test_known_lines_are_no_unknown_errors() -> None:
    machine = a_machine().with_gpu("uhd770").with_gpu("rtx4090").with_gpu("rx7900xtx")
    said = verdict(machine.with_file("/var/log/dmesg", log(*KNOWN)), GATE)
    assert (said.status, said.reason) == ("PASS", "no unknown error of a GPU's driver in 9 lines")


@pytest.mark.parametrize("line", SERIOUS)
def test_serious_lines_are_not_harmless(line: str) -> None:
    assert not is_harmless(line)


def test_a_processors_gpu_on_which_nothing_computes_is_left_out() -> None:
    line = "i915 0000:00:02.0: [drm] *ERROR* the warp core is out of tune"
    machine = a_machine().with_gpu("uhd770").with_gpu("rtx4090").with_file("/var/log/dmesg", log(line))
    assert verdict(machine, GATE).status == "PASS"
    wanted = machine.with_file("/usr/lib/x86_64-linux-gnu/libze_loader.so.1", b"\x7fELF")
    assert verdict(wanted, GATE).status == "WARN"
    plain = a_machine().with_gpu("rtx4090").with_gpu("uhd770")
    line = "nvidia 0000:01:00.0: the warp core is out of tune"
    assert verdict(plain.with_file("/var/log/dmesg", log(line)), GATE).status == "WARN"
