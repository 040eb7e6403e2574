"""What amdgpu and amdkfd print of hangs, resets, faults and start-up.

Wording: drivers/gpu/drm/amd of Linux (amdgpu_job.c, amdgpu_device.c, gmc_v*.c, mes_v*.c, amdkfd), kernels
from 4.15 to 6.x.
"""

from __future__ import annotations

from pytest_gpucoexist.kernellog.rule import BDF, Rule

__all__ = ["RULES"]

RULES: tuple[Rule, ...] = (
    Rule(
        id="amd.ring_timeout",
        vendor="amd",
        severity="fail",
        earlier="warn",
        regex=r"(?:amdgpu|\bdrm\b).*\bring (?P<ring>[\w.]+) timeout",
        anchors=(" timeout",),
        meaning="a job on this engine of the GPU hung",
        action="look for the reset that follows; update kernel and linux-firmware; reboot if the reset failed",
    ),
    Rule(
        id="amd.reset_failed",
        vendor="amd",
        severity="fail",
        regex=(
            r"GPU reset(?:\(\d+\))? (?:failed|end with ret = -)|Ring \S+ reset fail(?:ed|ure)|Mode[12] reset failed"
            r"|GPU (?:psp )?mode[12] reset failed|ASIC reset failed with error|GPU Recovery Failed|BACO reset failed"
            r"|GPU pre asic reset failed|psp mode ?1 reset failed"
        ),
        anchors=("GPU reset", "reset fail", "GPU Recovery Failed"),
        meaning="a reset did not bring the GPU back",
        action="reboot; power off and on if that does not help",
    ),
    Rule(
        id="amd.reset_ok",
        vendor="amd",
        severity="warn",
        regex=r"GPU reset(?:\(\d+\))? succeeded|Ring \S+ reset succe(?:eded|ss)",
        anchors=("GPU reset", " reset succe"),
        meaning="the GPU was reset; contexts and memory from before the reset are lost",
        action="restart every program that had used the GPU; look for the hang before it",
    ),
    Rule(
        id="amd.reset_begin",
        vendor="amd",
        severity="fail",
        earlier="warn",
        regex=r"amdgpu.*GPU reset begin",
        anchors=("GPU reset begin",),
        meaning="the driver resets the GPU",
        action="restart every program that had used the GPU; look for the hang before it",
    ),
    Rule(
        id="amd.vram_lost",
        vendor="amd",
        severity="fail",
        earlier="warn",
        regex=r"VRAM is lost due to GPU reset|\*ERROR\* VRAM is lost!",
        anchors=("VRAM is lost",),
        meaning="everything in the GPU's memory was lost in a reset",
        action="restart every program that had used the GPU",
    ),
    Rule(
        id="amd.cs_parser",
        vendor="amd",
        severity="warn",
        regex=r"\*ERROR\* Failed to initialize parser -125",
        anchors=("initialize parser -125",),
        meaning="a program still submits work with a context from before a reset",
        action="restart that program",
    ),
    Rule(
        id="amd.cs_nomem",
        vendor="amd",
        severity="warn",
        regex=r"Not enough memory for command submission",
        anchors=("Not enough memory for command",),
        meaning="buffers could not be placed for a submission; also seen when another vendor's dma-buf was imported",
        action="free GPU memory; do not import another vendor's buffers, copy through host memory",
    ),
    Rule(
        id="amd.mes",
        vendor="amd",
        severity="fail",
        earlier="warn",
        regex=(
            r"MES(?:\(\d+\))? (?:\w+ )?failed to respon(?:d to|se) msg=|MES might be in unrecoverable state"
            r"|MES ring buffer is full|hardware queue (?:from|to) MES\b"
        ),
        anchors=("MES failed", "failed to respon", "MES might be in", "MES ring buffer", "hardware queue "),
        meaning="the scheduler firmware (MES) of the GPU hangs",
        action="update linux-firmware and kernel; reboot",
    ),
    Rule(
        id="amd.ring_test",
        vendor="amd",
        severity="fail",
        earlier="warn",
        regex=(
            r"(?:\*ERROR\*|amdgpu:) ring \S+ test failed \(-?\d+\)|\*ERROR\* amdgpu: ring \d+ test failed"
            r"|IB test failed on \S+ \(-?\d+\)|\bib ring test failed \(-?\d+\)|\bamdgpu\b.*IB test timed out"
        ),
        anchors=(" test failed", "IB test timed out"),
        meaning="an engine failed its own test at start-up or after a reset",
        action="update linux-firmware and kernel; power off and on",
    ),
    Rule(
        id="amd.page_fault",
        vendor="amd",
        severity="fail",
        earlier="warn",
        regex=(
            r"\[(?P<hub>\w+)\] (?:retry |no-retry |VMC )?page fault \(src_id:\d+ ring:\d+ vmid:\d+ pasid:\d+"
            r"|GPU fault detected: \d+ 0x"
        ),
        anchors=("page fault (src_id", "GPU fault detected:"),
        meaning="a program's kernel or copy touched memory that is not mapped on the GPU",
        action="look at the named process; if it copied between GPUs, turn peer access off",
    ),
    Rule(
        id="amd.l2_fault",
        vendor="amd",
        severity="fail",
        earlier="warn",
        regex=(
            r"\b(?:GC|MM)?VM_L2_PROTECTION_FAULT_STATUS(?:_LO32)?:0x"
            r"|VM_CONTEXT1_PROTECTION_FAULT_STATUS\s+0x|\bVM fault \(0x[0-9a-f]+, vmid"
        ),
        anchors=("PROTECTION_FAULT_STATUS", "VM fault (0x"),
        meaning="details of a page fault on the GPU",
        action="see the page fault line before it",
    ),
    Rule(
        id="amd.kfd_atomics",
        vendor="amd",
        severity="fail",
        regex=r"\bkfd\b.*skipped device (?P<id>[0-9a-f]{4}:[0-9a-f]{4}), PCI rejects atomics",
        anchors=("PCI rejects atomics",),
        meaning="the slot or a bridge above it lacks PCIe atomics: ROCm cannot use this GPU there",
        action="move the card to a slot that is wired to the processor",
    ),
    Rule(
        id="amd.kfd_unsupported",
        vendor="amd",
        severity="fail",
        regex=r"kfd kfd: (?:amdgpu: )?(?:GC IP )?\S+\s+(?:VF )?not supported in kfd",
        anchors=("not supported in kfd",),
        meaning="this GPU generation has no compute support in the kernel",
        action="use another GPU for ROCm; hide this one with ROCR_VISIBLE_DEVICES",
    ),
    Rule(
        id="amd.kfd_added",
        vendor="amd",
        severity="info",
        regex=r"kfd kfd: (?:amdgpu: )?added device (?P<id>[0-9a-f]{4}:[0-9a-f]{4})",
        anchors=("added device",),
        meaning="a GPU was registered for compute",
        action="",
    ),
    Rule(
        id="amd.ipblock_init",
        vendor="amd",
        severity="fail",
        regex=r"(?:hw_init|sw_init|late_init|resume|suspend) of IP block <(?P<ip>\w+)> failed (?P<err>-?\d+)",
        anchors=(" of IP block <",),
        meaning="a block of the GPU did not start",
        action="update linux-firmware; power off and on; reseat the card",
    ),
    Rule(
        id="amd.psp",
        vendor="amd",
        severity="fail",
        regex=r"PSP (?:firmware loading failed|create ring failed|load \w+(?: \w+)? failed|resume failed)",
        anchors=("PSP firmware loading", "PSP create ring", "PSP load", "PSP resume"),
        meaning="the GPU's security processor did not take its firmware",
        action="update linux-firmware to the kernel's version; power off and on",
    ),
    Rule(
        id="amd.init_fatal",
        vendor="amd",
        severity="fail",
        regex=(
            rf"Fatal error during GPU init|amdgpu_device_ip_init failed|amdgpu: probe of {BDF} failed with error -\d+"
            r"|probe with driver amdgpu failed with error"
        ),
        anchors=("Fatal error during GPU", "amdgpu_device_ip_init", "amdgpu: probe of", "probe with driver amdgpu"),
        meaning="amdgpu did not attach to the GPU",
        action="read the amdgpu lines right before this one: they say why",
    ),
)
