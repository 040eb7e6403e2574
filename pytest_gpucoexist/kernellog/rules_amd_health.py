"""What amdgpu prints of its firmware, memory errors, temperature and link.

Wording: drivers/gpu/drm/amd of Linux (amdgpu_ras.c, amdgpu_ras_eeprom.c, pm/swsmu, pm/powerplay, amdkfd),
in the forms of kernels from 4.15 to 6.x.
"""

from __future__ import annotations

from pytest_gpucoexist.kernellog.rule import BDF, Rule

__all__ = ["RULES"]

RULES: tuple[Rule, ...] = (
    Rule(
        id="amd.smu",
        vendor="amd",
        severity="warn",
        regex=(
            r"SMU: (?:I'm not done with your (?:previous )?command|No response msg_reg|response:0xFFFFFFFF)"
            r"|Failed to export SMU metrics table|SMU may be not in the right state|SMU is in hanged state"
            r"|failed to send (?:pre )?message [0-9a-f]+ (?:0x[0-9a-f]+ )?ret is|last message was failed ret is"
        ),
        anchors=(
            "SMU: ",
            "export SMU metrics",
            "SMU may be not in",
            "SMU is in hanged",
            "failed to send ",
            "message was failed ret",
        ),
        meaning="the power management firmware does not answer: sensors, clocks and fans cannot be trusted",
        action="reboot; update the VBIOS and linux-firmware if it comes back",
    ),
    Rule(
        id="amd.smu_ifver",
        vendor="amd",
        severity="info",
        regex=r"SMU driver if version not matched",
        anchors=("SMU driver if version",),
        meaning="driver and power firmware count their interface differently; harmless",
        action="",
    ),
    Rule(
        id="amd.qcm_fence",
        vendor="amd",
        severity="fail",
        earlier="warn",
        regex=(
            r"qcm fence wait loop timeout|The cp might be in an unrecoverable state|Failed to evict process queues"
            r"|Queue preemption time out"
        ),
        anchors=("qcm fence wait", "cp might be in an unrec", "evict process queues", "Queue preemption time out"),
        meaning="a compute queue could not be stopped",
        action="end the programs that hold the GPU; reboot if it is not reset",
    ),
    Rule(
        id="amd.ras_ue",
        vendor="amd",
        severity="fail",
        regex=(
            r"(?<!\d)(?P<n>[1-9]\d*)(?: new)? uncorrectable hardware errors? detected"
            r"|uncorrectable hardware error\((?P<ev>\w+)\) detected|Uncorrectable error detected in UMC"
        ),
        anchors=("uncorrectable hardware error", "Uncorrectable error detected in"),
        meaning="the GPU's memory or logic had an error that could not be corrected",
        action="reset the GPU and repeat the work; replace the card if it comes back",
    ),
    Rule(
        id="amd.ras_eeprom",
        vendor="amd",
        severity="info",
        regex=r"Failed to read EEPROM table header",
        anchors=("EEPROM table header",),
        meaning="the card's error history cannot be read (no SMBus on this slot); the GPU works",
        action="",
    ),
    Rule(
        id="amd.ras_ce",
        vendor="amd",
        severity="warn",
        regex=(
            r"(?<!\d)(?P<n>[1-9]\d*)(?: new)? correctable hardware errors? detected"
            r"(?: in total)? in (?P<blk>\w+) [Bb]lock"
        ),
        anchors=("correctable hardware error",),
        meaning="the GPU corrected errors in its memory or logic",
        action="watch whether the number grows",
    ),
    Rule(
        id="amd.ras_de",
        vendor="amd",
        severity="fail",
        regex=r"(?<!\d)(?P<n>[1-9]\d*)(?: new)? deferred hardware errors? detected",
        anchors=("deferred hardware error",),
        meaning="bad data lies in the GPU's memory and will hit whoever reads it",
        action="end the programs on the GPU and reset it",
    ),
    Rule(
        id="amd.poison",
        vendor="amd",
        severity="fail",
        regex=r"[Pp]oison is (?:consumed by|created)|Poison detected in (?:VCN|JPEG)",
        anchors=("oison is c", "Poison detected in"),
        meaning="bad data was created in, or read from, the GPU's memory",
        action="repeat the work after the reset; replace the card if it comes back",
    ),
    Rule(
        id="amd.bad_pages",
        vendor="amd",
        severity="fail",
        regex=(r"Saved bad pages (?P<n>\d+) reaches threshold value (?P<t>\d+)|RAS records:\d+ exceed threshold:\d+"),
        anchors=("Saved bad pages", "RAS records:"),
        meaning="the card has no more spare memory to replace bad pages with",
        action="replace the card",
    ),
    Rule(
        id="amd.aca",
        vendor="amd",
        severity="fail",
        regex=r"\[Hardware [Ee]rror\]:? Accelerator Check Architecture events logged",
        anchors=("Accelerator Check Architecture",),
        meaning="the GPU recorded a hardware error",
        action="read the record's lines; reset the GPU; replace it if it comes back",
    ),
    Rule(
        id="amd.ctf",
        vendor="amd",
        severity="fail",
        regex=(
            r"GPU over temperature range\(SW CTF\) detected|System is going to shutdown due to GPU (?:SW|HW) CTF"
            r"|GPU HW Critical Temperature Fault"
        ),
        anchors=(" CTF", "Critical Temperature Fault"),
        meaning="the GPU reached its critical temperature; the machine is switched off",
        action="repair the cooling before the next test",
    ),
    Rule(
        id="amd.overtemp",
        vendor="amd",
        severity="warn",
        regex=r"GPU over temperature range detected",
        anchors=("over temperature range detected",),
        meaning="the GPU was too hot",
        action="check fans, dust and air flow",
    ),
    Rule(
        id="amd.throttled",
        vendor="amd",
        severity="warn",
        regex=r"WARN: GPU (?:is throttled|thermal throttling temperature reached)",
        anchors=("WARN: GPU ",),
        meaning="the GPU slows itself down because of heat or power",
        action="check cooling and power limit; do not trust timings",
    ),
    Rule(
        id="amd.pci_err",
        vendor="amd",
        severity="fail",
        regex=(
            rf"(?:amdgpu {BDF}: (?:amdgpu: )?|\[drm\] )PCI error: detected callback"
            r"|\bamdgpu\b.*PCIe error recovery failed"
        ),
        anchors=("PCI error: detected callback", "PCIe error recovery failed"),
        meaning="a PCIe error reached amdgpu",
        action="reseat the card; lower the link generation in the BIOS; reboot",
    ),
)
