"""Machines with a kernel log: a workstation whose boot went well, and what came after.

Lines are of real machines; where they come from stands beside them. Addresses are changed to those of the machine here.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from tests.gates.judging import judged
from tests.gates.kernel_module.installed import wanting

if TYPE_CHECKING:
    from pytest_gpucoexist.model.verdicts import Judgement, Verdict
    from pytest_gpucoexist.testing.builder import MachineBuilder

__all__ = ["AMD", "BOOT", "INTEL", "NVIDIA", "UPTIME_S", "about", "cut", "logged", "one", "said", "says", "workstation"]

NVIDIA, AMD, INTEL = "0000:01:00.0", "0000:04:00.0", "0000:07:00.0"
UPTIME_S = 5000.0
_TIMED = re.compile(r"(?:<\d+>)?\[ *\d")

# What drivers print on machines that work: CachyOS/linux-cachyos#552, linux-usb bug 208337, and the distributions' 6.8.
BOOT = """\
<5>[    0.000000] Linux version 6.8.0-60-generic (buildd@lcy02-amd64-098) (gcc 13.3.0) #63-Ubuntu SMP PREEMPT_DYNAMIC
<6>[    0.000000] Command line: BOOT_IMAGE=/boot/vmlinuz-6.8.0-60-generic ro quiet iommu=pt
<6>[    0.512345] iommu: Default domain type: Passthrough (set via kernel command line)
<6>[    0.612345] pci 0000:01:00.0: [10de:2684] type 00 class 0x030000 PCIe Legacy Endpoint
<6>[    0.612400] pci 0000:04:00.0: [1002:744c] type 00 class 0x030000 PCIe Legacy Endpoint
<6>[    0.612400] pci 0000:00:15.0: BAR 13: no space for [io  size 0x1000]
<6>[    0.712345] pcieport 0000:00:01.1: AER: enabled with IRQ 28
<6>[    1.102345] ACPI: bus type drm_connector registered
<6>[    2.202345] Console: switching to colour dummy device 80x25
<6>[    2.302345] [drm] amdgpu kernel modesetting enabled.
<6>[    2.402345] amdgpu 0000:04:00.0: enabling device (0006 -> 0007)
<6>[    2.502345] [drm] initializing kernel modesetting (IP DISCOVERY 0x1002:0x744C 0x1DA2:0xE471 0xC8).
<6>[    3.102345] amdgpu 0000:04:00.0: amdgpu: SMU is initialized successfully!
<6>[    3.202345] kfd kfd: amdgpu: added device 1002:744c
<6>[    3.302345] [drm] Initialized amdgpu 3.57.0 20150101 for 0000:04:00.0 on minor 1
<6>[    3.402345] fbcon: amdgpudrmfb (fb0) is primary device
<6>[    3.502345] amdgpu 0000:04:00.0: [drm] fb0: amdgpudrmfb frame buffer device
<6>[    3.602345] xe 0000:07:00.0: [drm] Using GuC firmware from xe/bmg_guc_70.bin version 70.44.1
<6>[    3.702345] [drm] Initialized xe 1.1.0 20201103 for 0000:07:00.0 on minor 2
<4>[    4.102345] nvidia: loading out-of-tree module taints kernel.
<4>[    4.112345] nvidia: module verification failed: signature and/or required key missing - tainting kernel
<6>[    4.202345] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.133.07  Fri Mar 14 13:12:07 UTC 2025
<6>[    4.302345] [drm] [nvidia-drm] [GPU ID 0x00000100] Loading driver
<6>[    5.102345] [drm] Initialized nvidia-drm 0.0.0 20160202 for 0000:01:00.0 on minor 0
<6>[    6.102345] usb 1-1: new high-speed USB device number 2 using xhci_hcd
"""


def workstation() -> MachineBuilder:
    """One GPU of each vendor, each with its driver and its driver software."""
    return wanting("rtx4090", "rx7900xtx", "arc-b580").with_file("/proc/uptime", f"{UPTIME_S:.2f} 9000.00\n")


def logged(text: str, machine: MachineBuilder | None = None, *, boot: str = BOOT) -> MachineBuilder:
    """The workstation after a good boot, with these lines behind; a line without a time is of 100 s after the boot."""
    lines = [line if _TIMED.match(line) else f"<3>[  100.000000] {line}" for line in text.splitlines()]
    return (machine or workstation()).with_file("/var/log/dmesg", boot + "".join(f"{line}\n" for line in lines))


def cut(text: str) -> MachineBuilder:
    """The workstation with a log whose beginning was overwritten."""
    return logged(text, boot="<6>[   90.000000] usb 1-2: new high-speed USB device number 3 using xhci_hcd\n")


def said(machine: MachineBuilder, gate: str, *, session_s: float | None = None, **subject: Any) -> Judgement:
    """Judge by one gate; `session_s`: seconds after the boot when the session began."""
    if session_s is not None:
        subject["since_s"] = machine.host().time() - (UPTIME_S - session_s)
    return judged(machine, gate, **{"level": "quick", **subject})


def one(judgement: Judgement, status: str) -> Verdict:
    """Return the only verdict of a status."""
    (verdict,) = [each for each in judgement.verdicts if each.status == status]
    return verdict


def about(judgement: Judgement, key: str) -> Verdict:
    """Return the only verdict about a device."""
    (verdict,) = [each for each in judgement.verdicts if key in each.devices]
    return verdict


def says(judgement: Judgement, status: str) -> bool:
    """Whether exactly one verdict has a status."""
    return one(judgement, status).status == status
