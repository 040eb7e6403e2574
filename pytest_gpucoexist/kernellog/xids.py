"""What an NVIDIA Xid code means for a test session, by code.

Codes and names: NVIDIA's Xid catalogue (docs.nvidia.com/deploy/xid-errors) and `src/common/sdk/nvidia/inc/nverror.h` of
NVIDIA/open-gpu-kernel-modules. Severities: an error that a program causes fails that program's test and not the
machine (NVIDIA/DCGM's health watch, NVIDIA/k8s-device-plugin); one that the driver wants a reset for makes it unfit.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from pytest_gpucoexist.model.verdicts import Severity

__all__ = ["XIDS", "XidPolicy", "recovery_action", "xid_policy"]

XidSeverity = Literal["fail", "warn", "info", "by-word", "by-text"]

# "…changed from 0x0 (None) to 0x1 (GPU Reset Required)"
_RECOVERY = re.compile(r"changed from [^()]*\([^()]*\) to [^()]*\(([^()]*)\)")
_FATAL = re.compile(r"\b(Non-?fatal|Fatal)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class XidPolicy:
    """How one code is judged: in this session (`now`) and earlier in this boot (`before`).

    `by-word`: NVLink 5 events say Fatal or Nonfatal themselves. `by-text`: Xid 154 names a recovery action; None is
    good news.
    """

    xid: int
    name: str
    now: XidSeverity
    before: XidSeverity
    meaning: str
    action: str

    def severity(self, message: str, *, in_session: bool) -> Severity:
        """Judge a line that carries this code."""
        policy = self.now if in_session else self.before
        if policy == "by-word":
            word = _FATAL.search(message)
            # without the word nothing says that the link survived
            return "warn" if word is not None and word[1].lower().startswith("non") else "fail"
        if policy == "by-text":
            return "info" if recovery_action(message) in {"None", "none"} else "fail"
        return policy


def recovery_action(message: str) -> str | None:
    """Return the action that an Xid 154 changed to, such as `GPU Reset Required`."""
    match = _RECOVERY.search(message)
    return None if match is None else match[1].strip()


def xid_policy(xid: int) -> XidPolicy:
    """Return the policy of a code; for one that is not in the table, a warning that says so."""
    known = XIDS.get(xid)
    if known is not None:
        return known
    return _xid(
        xid, "unknown", "warn", "info", f"Xid {xid}, a code that is not in the table of this version",
        "look it up in NVIDIA's Xid catalogue; compare with what ran at that time",
    )  # fmt: skip


def _xid(xid: int, name: str, now: XidSeverity, before: XidSeverity, meaning: str, action: str) -> XidPolicy:
    return XidPolicy(xid=xid, name=name, now=now, before=before, meaning=meaning, action=action)


_TABLE = (
    _xid(
        8,
        "ROBUST_CHANNEL_FIFO_ERROR_IDLE_TIMEOUT",
        "fail",
        "warn",
        "the GPU made no progress on a channel",
        "look for another Xid right before it; run again",
    ),  # fmt: skip
    _xid(
        11,
        "ROBUST_CHANNEL_GR_ERROR_MISSING_HW",
        "warn",
        "info",
        "a program sent the GPU commands that it does not know",
        "look at that program",
    ),  # fmt: skip
    _xid(
        13,
        "ROBUST_CHANNEL_GR_EXCEPTION",
        "warn",
        "info",
        "a program's kernel failed: bad address, illegal instruction or assertion",
        "look at the program that ran; the machine is fine",
    ),  # fmt: skip
    _xid(14, "ROBUST_CHANNEL_FAKE_ERROR", "info", "info", "a code that the driver uses for tests", ""),
    _xid(
        31,
        "ROBUST_CHANNEL_FIFO_ERROR_MMU_ERR_FLT",
        "warn",
        "info",
        "a program or a copy engine touched memory that is not mapped",
        "look at the program; if a copy engine (CE) did it in a peer copy, turn peer access off or check the IOMMU",
    ),  # fmt: skip
    _xid(
        32,
        "ROBUST_CHANNEL_PBDMA_ERROR",
        "warn",
        "info",
        "a stream of commands to the GPU was broken",
        "look at the program; on an idle machine suspect the PCIe link",
    ),  # fmt: skip
    _xid(
        38,
        "ROBUST_CHANNEL_FECS_ERR_WATCHDOG_TIMEOUT",
        "warn",
        "info",
        "the engine's firmware did not answer in time",
        "update the driver; reset the GPU if it comes back",
    ),  # fmt: skip
    _xid(
        39,
        "ROBUST_CHANNEL_CE0_ERROR",
        "fail",
        "warn",
        "copy engine 0 failed",
        "check that transfers are correct on this GPU before trusting it",
    ),  # fmt: skip
    _xid(
        40,
        "ROBUST_CHANNEL_CE1_ERROR",
        "fail",
        "warn",
        "copy engine 1 failed",
        "check that transfers are correct on this GPU before trusting it",
    ),  # fmt: skip
    _xid(
        41,
        "ROBUST_CHANNEL_CE2_ERROR",
        "fail",
        "warn",
        "copy engine 2 failed",
        "check that transfers are correct on this GPU before trusting it",
    ),  # fmt: skip
    _xid(
        43,
        "ROBUST_CHANNEL_RESETCHANNEL_VERIF_ERROR",
        "warn",
        "info",
        "a program's channel was reset after its own fault",
        "look at the program that ran; the machine is fine",
    ),  # fmt: skip
    _xid(
        44,
        "ROBUST_CHANNEL_GR_FAULT_DURING_CTXSW",
        "warn",
        "info",
        "a fault while the GPU changed from one program to another",
        "look at the program that ran",
    ),  # fmt: skip
    _xid(
        45,
        "ROBUST_CHANNEL_PREEMPTIVE_REMOVAL",
        "info",
        "info",
        "a program's channel was cleaned up after another error or its end",
        "look for the Xid before it",
    ),  # fmt: skip
    _xid(46, "ROBUST_CHANNEL_GPU_TIMEOUT_ERROR", "fail", "fail", "the GPU stopped processing", "reset the GPU"),
    _xid(
        48,
        "ROBUST_CHANNEL_GPU_ECC_DBE",
        "fail",
        "fail",
        "an error in the GPU's memory could not be corrected (double bit)",
        "reset the GPU; watch for Xid 63 and 64; replace the card if it comes back",
    ),  # fmt: skip
    _xid(
        54,
        "SILENT_RUNNING_PWR_REDUCED_CLOCKING",
        "fail",
        "fail",
        "the card's power cable is missing",
        "plug the PCIe power cable in",
    ),  # fmt: skip
    _xid(56, "DISPLAY_CHANNEL_EXCEPTION", "warn", "info", "the display engine failed", "only displays are concerned"),
    _xid(
        57,
        "FB_LINK_TRAINING_FAILURE_ERROR",
        "fail",
        "fail",
        "the link to the GPU's memory could not be trained",
        "replace the card",
    ),  # fmt: skip
    _xid(58, "FB_MEMORY_ERROR", "fail", "fail", "an error in the GPU's memory", "replace the card if it comes back"),
    _xid(
        61,
        "PMU_BREAKPOINT",
        "warn",
        "warn",
        "the power management controller stopped at a breakpoint",
        "reset the GPU; update the driver",
    ),  # fmt: skip
    _xid(
        62,
        "PMU_HALT_ERROR",
        "fail",
        "fail",
        "the power management controller halted",
        "reset the GPU; power off and on; replace the card if it comes back",
    ),  # fmt: skip
    _xid(
        63,
        "INFOROM_DRAM_RETIREMENT_EVENT",
        "warn",
        "warn",
        "a bad memory row is to be replaced by a spare one",
        "reset the GPU so that the replacement takes effect",
    ),  # fmt: skip
    _xid(
        64,
        "INFOROM_DRAM_RETIREMENT_FAILURE",
        "fail",
        "fail",
        "a bad memory row could not be replaced",
        "replace the card",
    ),  # fmt: skip
    _xid(
        65,
        "ROBUST_CHANNEL_NVENC1_ERROR",
        "warn",
        "info",
        "the video encoder failed",
        "look at the program that encoded",
    ),  # fmt: skip
    _xid(
        66,
        "ROBUST_CHANNEL_FECS_ERR_REG_ACCESS_VIOLATION",
        "warn",
        "info",
        "the driver's firmware touched a register that it must not",
        "update the driver",
    ),  # fmt: skip
    _xid(
        67,
        "ROBUST_CHANNEL_FECS_ERR_VERIF_VIOLATION",
        "warn",
        "info",
        "the driver's firmware was refused",
        "update the driver",
    ),  # fmt: skip
    _xid(
        68,
        "ROBUST_CHANNEL_NVDEC0_ERROR",
        "warn",
        "info",
        "the video decoder failed",
        "look at the program that decoded",
    ),  # fmt: skip
    _xid(
        69,
        "ROBUST_CHANNEL_GR_CLASS_ERROR",
        "warn",
        "info",
        "a program used a graphics class wrongly",
        "look at that program",
    ),  # fmt: skip
    _xid(
        73,
        "ROBUST_CHANNEL_NVENC2_ERROR",
        "warn",
        "info",
        "the second video encoder failed",
        "look at the program that encoded",
    ),  # fmt: skip
    _xid(74, "NVLINK_ERROR", "fail", "warn", "an NVLink failed", "check the bridge; reset the GPUs on both ends"),
    _xid(78, "VGPU_START_ERROR", "fail", "warn", "a virtual GPU did not start", "check licence and version of vGPU"),
    _xid(
        79,
        "ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS",
        "fail",
        "fail",
        "the GPU no longer answers on PCIe",
        "power the machine off and on; check power, riser, temperature and ASPM",
    ),  # fmt: skip
    _xid(
        80,
        "PBDMA_PUSHBUFFER_CRC_MISMATCH",
        "fail",
        "warn",
        "commands reached the GPU damaged (checksum)",
        "check the PCIe link: seat, riser, generation",
    ),  # fmt: skip
    _xid(
        92,
        "EXCESSIVE_SBE_INTERRUPTS",
        "warn",
        "warn",
        "many memory errors were corrected",
        "watch the counters of remapped rows",
    ),  # fmt: skip
    _xid(
        93,
        "INFOROM_ERASE_LIMIT_EXCEEDED",
        "warn",
        "info",
        "the card's information store was written too often",
        "report it to the vendor",
    ),  # fmt: skip
    _xid(
        94,
        "ROBUST_CHANNEL_CONTAINED_ERROR",
        "fail",
        "warn",
        "a memory error that only its own program lost",
        "restart that program; reset the GPU when it is free",
    ),  # fmt: skip
    _xid(
        95,
        "ROBUST_CHANNEL_UNCONTAINED_ERROR",
        "fail",
        "fail",
        "a memory error that may have hit other programs too",
        "reset the GPU; replace the card if it comes back",
    ),  # fmt: skip
    _xid(
        109,
        "ROBUST_CHANNEL_CTXSW_TIMEOUT_ERROR",
        "fail",
        "warn",
        "the GPU could not change from one program to another in time",
        "reset the GPU",
    ),  # fmt: skip
    _xid(110, "SEC_FAULT_ERROR", "fail", "fail", "a security fault", "reset the GPU"),
    _xid(
        119,
        "GSP_RPC_TIMEOUT",
        "fail",
        "fail",
        "the GPU's system processor (GSP) does not answer; nvidia-smi may hang next",
        "reset the GPU or reboot",
    ),  # fmt: skip
    _xid(120, "GSP_ERROR", "fail", "fail", "the GPU's system processor (GSP) failed", "reset the GPU or reboot"),
    _xid(121, "C2C_ERROR", "info", "info", "an error between chips was corrected (Grace)", "watch it"),
    _xid(
        123,
        "SPI_PMU_RPC_WRITE_FAIL",
        "fail",
        "warn",
        "the power management controller could not be written to",
        "reset the GPU",
    ),  # fmt: skip
    _xid(136, "ALI_TRAINING_FAIL", "fail", "warn", "a link could not be trained", "reset the GPU"),
    _xid(
        137,
        "NVLINK_PRIV_ERR",
        "warn",
        "info",
        "an NVLink access was refused because of a fault on the other GPU",
        "look at the other GPU's messages",
    ),  # fmt: skip
    _xid(
        140,
        "UNRECOVERABLE_ECC_ERROR_ESCAPE",
        "fail",
        "fail",
        "a memory error escaped its containment",
        "reset the GPU",
    ),  # fmt: skip
    _xid(143, "GPU_INIT_ERROR", "fail", "fail", "the GPU did not initialise", "reset the GPU or reboot"),
    _xid(
        144,
        "NVLINK_SAW_ERROR",
        "by-word",
        "warn",
        "NVLink's SAW unit reported an event; the word Fatal or Nonfatal decides",
        "check the NVLink partner; reset the GPUs on both ends if it was fatal",
    ),  # fmt: skip
    _xid(
        145,
        "NVLINK_RLW_ERROR",
        "by-word",
        "warn",
        "NVLink's RLW unit reported an event; the word Fatal or Nonfatal decides",
        "check the NVLink partner; reset the GPUs on both ends if it was fatal",
    ),  # fmt: skip
    _xid(
        146,
        "NVLINK_TLW_ERROR",
        "by-word",
        "warn",
        "NVLink's TLW unit reported an event; the word Fatal or Nonfatal decides",
        "check the NVLink partner; reset the GPUs on both ends if it was fatal",
    ),  # fmt: skip
    _xid(
        147,
        "NVLINK_TREX_ERROR",
        "by-word",
        "warn",
        "NVLink's TREX unit reported an event; the word Fatal or Nonfatal decides",
        "check the NVLink partner; reset the GPUs on both ends if it was fatal",
    ),  # fmt: skip
    _xid(
        148,
        "NVLINK_NVLPW_CTRL_ERROR",
        "by-word",
        "warn",
        "NVLink's NVLPW unit reported an event; the word Fatal or Nonfatal decides",
        "check the NVLink partner; reset the GPUs on both ends if it was fatal",
    ),  # fmt: skip
    _xid(
        149,
        "NVLINK_NETIR_ERROR",
        "by-word",
        "warn",
        "NVLink's NETIR unit reported an event; the word Fatal or Nonfatal decides",
        "check the NVLink partner; reset the GPUs on both ends if it was fatal",
    ),  # fmt: skip
    _xid(
        150,
        "NVLINK_MSE_ERROR",
        "by-word",
        "warn",
        "NVLink's MSE unit reported an event; the word Fatal or Nonfatal decides",
        "check the NVLink partner; reset the GPUs on both ends if it was fatal",
    ),  # fmt: skip
    _xid(
        151,
        "ROBUST_CHANNEL_KEY_ROTATION_ERROR",
        "fail",
        "warn",
        "the keys of confidential computing could not be changed",
        "restart the virtual machine",
    ),  # fmt: skip
    _xid(
        154,
        "GPU_RECOVERY_ACTION_CHANGED",
        "by-text",
        "by-text",
        "the driver changed what it recommends to do with the GPU",
        "do what the line names in brackets",
    ),  # fmt: skip
    _xid(155, "NVLINK_SW_DEFINED_ERROR", "fail", "warn", "an error that NVLink's software defines", "reset the GPU"),
    _xid(156, "RESOURCE_RETIREMENT_EVENT", "warn", "warn", "a part of the GPU was retired", "reset the GPU"),
    _xid(
        157,
        "RESOURCE_RETIREMENT_FAILURE",
        "warn",
        "warn",
        "a part of the GPU could not be retired",
        "replace the card if it comes back",
    ),  # fmt: skip
    _xid(158, "GPU_FATAL_TIMEOUT", "fail", "fail", "the GPU did not answer in time, for good", "reset the GPU"),
    _xid(160, "CHANNEL_RETIREMENT_EVENT", "warn", "info", "a channel was retired", "watch it"),
    _xid(161, "CHANNEL_RETIREMENT_FAILURE", "warn", "warn", "a channel could not be retired", "watch it"),
    _xid(
        167,
        "PCIE_FATAL_TIMEOUT",
        "fail",
        "fail",
        "PCIe did not answer in time, for good",
        "power the machine off and on; check the PCIe path",
    ),  # fmt: skip
    _xid(
        168,
        "REDUCED_GPU_MEMORY_CAPACITY",
        "fail",
        "fail",
        "the GPU lost a part of its memory to errors",
        "replace the card",
    ),  # fmt: skip
    _xid(169, "SEC2_HALT_ERROR", "fail", "fail", "the security controller halted", "reset the GPU"),
    _xid(
        171,
        "UNCORRECTABLE_DRAM_ERROR",
        "fail",
        "fail",
        "details of Xid 48: the error was in DRAM",
        "as for Xid 48: reset the GPU; replace the card if it comes back",
    ),  # fmt: skip
    _xid(
        172,
        "UNCORRECTABLE_SRAM_ERROR",
        "fail",
        "fail",
        "details of Xid 48: the error was in SRAM",
        "as for Xid 48: reset the GPU; replace the card if it comes back",
    ),  # fmt: skip
)

XIDS: dict[int, XidPolicy] = {policy.xid: policy for policy in _TABLE}
