"""NVIDIA's Xid codes: severity in this session, severity earlier in this boot, meaning, action.

Codes: NVIDIA's Xid catalogue (docs.nvidia.com/deploy/xid-errors) and `src/common/sdk/nvidia/inc/nverror.h` of
NVIDIA/open-gpu-kernel-modules. Severities: an error that a program causes fails that program's test, not the machine
(NVIDIA/DCGM's health watch, NVIDIA/k8s-device-plugin); one after which the driver wants a reset makes the GPU unfit.
"""

from __future__ import annotations

from typing import Literal

__all__ = ["ROWS", "XidSeverity"]

XidSeverity = Literal["fail", "warn", "info", "by-word", "by-text"]
"""`by-word`: NVLink 5 events say Fatal or Nonfatal themselves. `by-text`: Xid 154 names what it recommends."""

PROGRAM = "look at the program that ran; the machine is fine"
RESET = "reset the GPU"
REBOOT = "reset the GPU or reboot"
REPLACE = "replace the card if it comes back"
WATCH = "watch it"
NVLINK = "check the NVLink partner; reset the GPUs on both ends if it was fatal"
COPIES = "check that transfers are correct on this GPU before trusting it"
DRIVER = "update the driver"
PCIE = "power the machine off and on; check seat, riser, power, temperature and ASPM"
MEMORY = "reset the GPU; replace the card if it comes back"
NOTHING = ""

ROWS: tuple[tuple[int, XidSeverity, XidSeverity, str, str], ...] = (
    (8, "fail", "warn", "the GPU made no progress on a channel", "look for another Xid right before it; run again"),
    (11, "warn", "info", "a program sent the GPU commands that it does not know", PROGRAM),
    (13, "warn", "info", "a program's kernel failed: bad address, illegal instruction or assertion", PROGRAM),
    (14, "info", "info", "a code that the driver uses for tests", NOTHING),
    (
        31,
        "warn",
        "info",
        "a program or a copy engine touched memory that is not mapped",
        "look at the program; if a copy engine (CE) did it in a peer copy, turn peer access off or check the IOMMU",
    ),
    (
        32,
        "warn",
        "info",
        "a stream of commands to the GPU was broken",
        "look at the program; on an idle machine suspect the PCIe link",
    ),
    (
        38,
        "warn",
        "info",
        "the engine's firmware did not answer in time",
        "update the driver; reset the GPU if it comes back",
    ),
    (39, "fail", "warn", "copy engine 0 failed", COPIES),
    (40, "fail", "warn", "copy engine 1 failed", COPIES),
    (41, "fail", "warn", "copy engine 2 failed", COPIES),
    (43, "warn", "info", "a program's channel was reset after its own fault", PROGRAM),
    (44, "warn", "info", "a fault while the GPU changed from one program to another", PROGRAM),
    (
        45,
        "info",
        "info",
        "a program's channel was cleaned up after another error or its end",
        "look for the Xid before it",
    ),
    (46, "fail", "fail", "the GPU stopped processing", RESET),
    (48, "fail", "fail", "an error in the GPU's memory could not be corrected (double bit)", MEMORY),
    (54, "fail", "fail", "the card's power cable is missing", "plug the PCIe power cable in"),
    (56, "warn", "info", "the display engine failed", "only displays are concerned"),
    (57, "fail", "fail", "the link to the GPU's memory could not be trained", "replace the card"),
    (58, "fail", "fail", "an error in the GPU's memory", REPLACE),
    (61, "warn", "warn", "the power management controller stopped at a breakpoint", "reset the GPU; update the driver"),
    (
        62,
        "fail",
        "fail",
        "the power management controller halted",
        "reset the GPU; power off and on; replace the card if it comes back",
    ),
    (
        63,
        "warn",
        "warn",
        "a bad memory row is to be replaced by a spare one",
        "reset the GPU so that the replacement takes effect",
    ),
    (64, "fail", "fail", "a bad memory row could not be replaced", "replace the card"),
    (65, "warn", "info", "the video encoder failed", PROGRAM),
    (66, "warn", "info", "the driver's firmware touched a register that it must not", DRIVER),
    (67, "warn", "info", "the driver's firmware was refused", DRIVER),
    (68, "warn", "info", "the video decoder failed", PROGRAM),
    (69, "warn", "info", "a program used a graphics class wrongly", PROGRAM),
    (73, "warn", "info", "the second video encoder failed", PROGRAM),
    (74, "fail", "warn", "an NVLink failed", "check the bridge; reset the GPUs on both ends"),
    (78, "fail", "warn", "a virtual GPU did not start", "check licence and version of vGPU"),
    (79, "fail", "fail", "the GPU no longer answers on PCIe", PCIE),
    (80, "fail", "warn", "commands reached the GPU damaged (checksum)", "check the PCIe link: seat, riser, generation"),
    (92, "warn", "warn", "many memory errors were corrected", "watch the counters of remapped rows"),
    (93, "warn", "info", "the card's information store was written too often", "report it to the vendor"),
    (
        94,
        "fail",
        "warn",
        "a memory error that only its own program lost",
        "restart that program; reset the GPU when it is free",
    ),
    (95, "fail", "fail", "a memory error that may have hit other programs too", MEMORY),
    (109, "fail", "warn", "the GPU could not change from one program to another in time", RESET),
    (110, "fail", "fail", "a security fault", RESET),
    (119, "fail", "fail", "the GPU's system processor (GSP) does not answer; nvidia-smi may hang next", REBOOT),
    (120, "fail", "fail", "the GPU's system processor (GSP) failed", REBOOT),
    (121, "info", "info", "an error between chips was corrected (Grace)", WATCH),
    (123, "fail", "warn", "the power management controller could not be written to", RESET),
    (136, "fail", "warn", "a link could not be trained", RESET),
    (
        137,
        "warn",
        "info",
        "an NVLink access was refused because of a fault on the other GPU",
        "look at the other GPU's messages",
    ),
    (140, "fail", "fail", "a memory error escaped its containment", RESET),
    (143, "fail", "fail", "the GPU did not initialise", REBOOT),
    (144, "by-word", "warn", "NVLink's SAW unit reported an event", NVLINK),
    (145, "by-word", "warn", "NVLink's RLW unit reported an event", NVLINK),
    (146, "by-word", "warn", "NVLink's TLW unit reported an event", NVLINK),
    (147, "by-word", "warn", "NVLink's TREX unit reported an event", NVLINK),
    (148, "by-word", "warn", "NVLink's NVLPW unit reported an event", NVLINK),
    (149, "by-word", "warn", "NVLink's NETIR unit reported an event", NVLINK),
    (150, "by-word", "warn", "NVLink's MSE unit reported an event", NVLINK),
    (151, "fail", "warn", "the keys of confidential computing could not be changed", "restart the virtual machine"),
    (
        154,
        "by-text",
        "by-text",
        "the driver changed what it recommends to do with the GPU",
        "do what the line names in brackets",
    ),
    (155, "fail", "warn", "an error that NVLink's software defines", RESET),
    (156, "warn", "warn", "a part of the GPU was retired", RESET),
    (157, "warn", "warn", "a part of the GPU could not be retired", REPLACE),
    (158, "fail", "fail", "the GPU did not answer in time, for good", RESET),
    (160, "warn", "info", "a channel was retired", WATCH),
    (161, "warn", "warn", "a channel could not be retired", WATCH),
    (167, "fail", "fail", "PCIe did not answer in time, for good", PCIE),
    (168, "fail", "fail", "the GPU lost a part of its memory to errors", "replace the card"),
    (169, "fail", "fail", "the security controller halted", RESET),
    (171, "fail", "fail", "details of Xid 48: the error was in DRAM", MEMORY),
    (172, "fail", "fail", "details of Xid 48: the error was in SRAM", MEMORY),
)
